// Imports a GGUF: graphs, weights, tokenizer and manifest in one folder of the data folder, named after what it depends on.
// Invariant: a folder under its final name is whole. It is built under another name, flushed, and renamed; what does not
// hold what its manifest promises (an older importer, a torn copy) is built anew. Two processes may import at once.
//
//   <data>/models/<digest, 32 digits>-<kv>/   manifest.json graph-<form>.onnx network.json weights.bin tokenizer.json
//   <data>/models/.importing-<host>-<pid>-*   a build under way, or left by a process that died

import { createHash, randomBytes } from 'node:crypto'
import { mkdir, open, readdir, readFile, rename, rm, stat } from 'node:fs/promises'
import { hostname } from 'node:os'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { ModelManifest } from './contract.js'
import { weightsDigest } from './digest.js'
import { Gguf, type GgufValue } from './gguf.js'
import { type AttentionForm, buildGraph, WEIGHTS_FILE } from './graph/graph.js'
import { type ModelShape, readShape } from './graph/shape.js'
import { storeWeights } from './graph/store.js'
import { claimTensors, type ModelTensors } from './graph/tensors.js'
import { WeightsFile } from './graph/weights.js'
import { ModelError } from './model-error.js'
import { NETWORK_FILE, networkPlan } from './network-plan.js'

/** Raised with every change that alters what an import writes. */
const IMPORTER_VERSION = 5

/** The forms that are written: the engine's two, and the general one. */
const FORMS: readonly AttentionForm[] = ['prefill', 'decode', 'split']

/** Rounds of losing the final name to another process before the import gives up. */
const ATTEMPTS = 5
/** Ten seconds in all: as long as another one may take between moving away and publishing. */
const READS = 200
const READ_MS = 50

/** What prompt/ makes of the tokenizer in a GGUF's metadata; both throw where they cannot. */
export interface TokenizerExport {
  /** The text of a tokenizer.json. */
  readonly build: (metadata: Readonly<Record<string, GgufValue>>) => string
  readonly traits: (
    metadata: Readonly<Record<string, GgufValue>>,
  ) => Pick<ModelManifest, 'template' | 'bosTokenId' | 'addBos' | 'eosTokenIds'>
}

export interface ImportOptions {
  readonly dataDir: string
  /** Whether the graphs round new K/V to fp16-representable values; see ModelManifest. */
  readonly kv: ModelManifest['kv']
  readonly tokenizer: TokenizerExport
  readonly signal?: AbortSignal
  /** Bytes of the GGUF that are done, of all, first for its digest and then for its weights. Not told on reuse. */
  readonly onProgress?: (phase: 'digest' | 'weights', doneBytes: number, totalBytes: number) => void
}

export interface Imported {
  readonly directory: string
  readonly manifest: ModelManifest
}

/** The manifest as it is stored: with the size of every other file. */
interface StoredManifest extends ModelManifest {
  readonly files: Readonly<Record<string, number>>
}

/**
 * The folder of the model in `path`, built unless it is there.
 * @throws ModelError `bad-file` or `unsupported`, naming the key or tensor; the signal's reason when aborted; the
 * system's error when the disk is full. Nothing half done stays under the final name.
 */
export async function importGguf(path: string, options: ImportOptions): Promise<Imported> {
  const { signal, onProgress } = options
  const digest = await weightsDigest(path, {
    ...(signal && { signal }),
    ...(onProgress && { onProgress: (done, total) => onProgress('digest', done, total) }),
  })
  const models = join(options.dataDir, 'models')
  const directory = join(models, `${digest.slice(0, 32)}-${options.kv}`)
  const present = await readFinished(directory, digest)
  if (present !== undefined) return { directory, manifest: present }

  await mkdir(models, { recursive: true })
  await sweep(models)
  const building = join(models, `${buildingPrefix()}${process.pid}-${randomBytes(4).toString('hex')}`)
  await mkdir(building)
  try {
    await build(path, { ...options, digest, building })
    return { directory, manifest: await publish(building, directory, digest) }
  } finally {
    await rm(building, { recursive: true, force: true })
  }
}

interface BuildOptions extends ImportOptions {
  readonly digest: string
  readonly building: string
}

async function build(path: string, options: BuildOptions): Promise<void> {
  const { building, tokenizer } = options
  const gguf = await Gguf.open(path)
  try {
    const shape = readShape(gguf)
    const tensors = claimTensors(gguf, shape)
    const metadata = Object.fromEntries(gguf.metadata)
    const tokenizerJson = exportTokenizer(path, () => tokenizer.build(metadata))
    const traits = exportTokenizer(path, () => tokenizer.traits(metadata))
    const files: Record<string, number> = await writeModel(gguf, shape, tensors, options)
    files['tokenizer.json'] = await writeDurably(join(building, 'tokenizer.json'), tokenizerJson)
    const manifest: StoredManifest = {
      importer: IMPORTER_VERSION,
      architecture: shape.architecture,
      name: gguf.get('general.name', 'string') ?? basename(path),
      weightsDigest: options.digest,
      tokenizerDigest: createHash('sha256').update(tokenizerJson).digest('hex'),
      layers: shape.layers,
      heads: shape.heads,
      kvHeads: shape.kvHeads,
      headDim: shape.headDim,
      dim: shape.dim,
      hiddenDim: shape.hiddenDim,
      vocabSize: shape.vocabSize,
      contextLength: shape.contextLength,
      kv: options.kv,
      template: traits.template,
      bosTokenId: traits.bosTokenId,
      addBos: traits.addBos,
      eosTokenIds: traits.eosTokenIds,
      files,
    }
    await writeDurably(join(building, 'manifest.json'), `${JSON.stringify(manifest, undefined, 2)}\n`)
    await flushFolder(building)
  } finally {
    await gguf.close()
  }
}

/** weights.bin and the graphs; returns their sizes. */
async function writeModel(
  gguf: Gguf,
  shape: ModelShape,
  tensors: ModelTensors,
  { building, kv, signal, onProgress }: BuildOptions,
): Promise<Record<string, number>> {
  const file = await open(join(building, WEIGHTS_FILE), 'wx')
  const target = new WeightsFile(file)
  try {
    const weights = await storeWeights(gguf, shape, tensors, target, {
      ...(signal && { signal }),
      ...(onProgress && { onProgress: (done, total) => onProgress('weights', done, total) }),
    })
    await file.sync()
    const sizes: Record<string, number> = { [WEIGHTS_FILE]: target.bytes }
    sizes[NETWORK_FILE] = await writeDurably(join(building, NETWORK_FILE), networkPlan(shape, weights))
    for (const attention of FORMS) {
      const name = `graph-${attention}.onnx`
      sizes[name] = await writeDurably(join(building, name), buildGraph(shape, weights, { attention, kv }))
    }
    return sizes
  } finally {
    await file.close()
  }
}

/** A tokenizer that prompt/ refuses is something unsupported in the file. */
function exportTokenizer<T>(path: string, make: () => T): T {
  try {
    return make()
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new ModelError('unsupported', `${path}: its tokenizer cannot be used: ${reason}`, { cause })
  }
}

/** Gives the build its final name, unless another process was faster: then its folder is as good. */
async function publish(building: string, directory: string, digest: string): Promise<ModelManifest> {
  let isOurs = false
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    try {
      await rename(building, directory)
      isOurs = true
      await flushFolder(join(directory, '..'))
    } catch (error) {
      if (!isTaken(error)) throw error
    }
    const manifest = isOurs ? await readAgain(directory, digest) : await readFinished(directory, digest)
    if (manifest !== undefined) return manifest
    if (isOurs) break
    // What lies there is stale or torn. It is moved away in one step, so that nobody meets it half deleted.
    const stale = `${building}-stale`
    await rename(directory, stale).catch((error: unknown) => {
      if (!isAbsent(error)) throw error
    })
    await rm(stale, { recursive: true, force: true })
  }
  throw new Error(`${directory} is replaced by other processes faster than it can be written`)
}

/**
 * What was just published: another process that met the torn folder before it may take it for that, move it away, and put
 * its own there, which is as good.
 */
async function readAgain(directory: string, digest: string): Promise<ModelManifest | undefined> {
  for (let attempt = 0; attempt < READS; attempt++) {
    const manifest = await readFinished(directory, digest)
    if (manifest !== undefined) return manifest
    await sleep(READ_MS)
  }
  return undefined
}

/** The manifest, where the folder is of this importer and its files have the sizes that it names. */
async function readFinished(directory: string, digest: string): Promise<ModelManifest | undefined> {
  let manifest: StoredManifest
  try {
    manifest = JSON.parse(await readFile(join(directory, 'manifest.json'), 'utf8')) as StoredManifest
  } catch (error) {
    if (error instanceof SyntaxError || isAbsent(error)) return undefined
    throw error
  }
  if (manifest?.importer !== IMPORTER_VERSION || manifest.weightsDigest !== digest) return undefined
  for (const [name, bytes] of Object.entries(manifest.files)) {
    const size = await stat(join(directory, name)).then(
      (found) => found.size,
      (error: unknown) => {
        if (isAbsent(error)) return undefined
        throw error
      },
    )
    if (size !== bytes) return undefined
  }
  return manifest
}

function buildingPrefix(): string {
  return `.importing-${hostname()}-`
}

/** Removes builds of this machine whose process is gone. */
async function sweep(models: string): Promise<void> {
  for (const name of await readdir(models)) {
    if (!name.startsWith(buildingPrefix())) continue
    const pid = Number.parseInt(name.slice(buildingPrefix().length), 10)
    if (Number.isInteger(pid) && !isAlive(pid)) await rm(join(models, name), { recursive: true, force: true })
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    // EPERM: it lives, under another user.
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** Returns the bytes written. */
async function writeDurably(path: string, content: string | Uint8Array): Promise<number> {
  const bytes = typeof content === 'string' ? Buffer.from(content) : content
  const file = await open(path, 'wx')
  try {
    await file.writeFile(bytes)
    await file.sync()
  } finally {
    await file.close()
  }
  return bytes.byteLength
}

async function flushFolder(path: string): Promise<void> {
  const folder = await open(path, 'r')
  try {
    await folder.sync()
  } finally {
    await folder.close()
  }
}

function isTaken(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException
  return code === 'ENOTEMPTY' || code === 'EEXIST'
}

function isAbsent(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException
  return code === 'ENOENT' || code === 'ENOTDIR'
}
