// Where shapes come from: a name of models/shapes, a YAML shape, a config.json, or a GGUF file's header. Invariant: a name
// that is unknown is answered with those that there are and the other ways to say it.

import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { UsageError } from '../core/usage-error.js'
import { packageModels } from '../model/card.js'
import { Gguf } from '../model/gguf.js'
import { shapeOfConfig } from './hugging-face.js'
import type { KvShape } from './shape.js'
import { parseShape } from './shape.js'

/**
 * The shape that `source` names: a file (`.gguf`, `.json`, `.yaml`) or a name of `folders`.
 * @throws UsageError, or ModelError where a GGUF file is none.
 */
export async function loadShape(
  source: string,
  folders: readonly string[] = [join(packageModels(), 'shapes')],
): Promise<KvShape> {
  if (/\.(gguf|json|ya?ml)$/i.test(source)) return await fromFile(source)
  if (/^[a-z0-9][a-z0-9._-]*$/.test(source)) {
    for (const folder of folders) {
      const path = join(folder, `${source}.yaml`)
      if (existsSync(path)) return parseShape(await readFile(path, 'utf8'), path)
    }
  }
  const known = await shapeNames(folders)
  throw new UsageError(
    `no shape is called '${source}'; known are ${known.join(', ') || 'none'}; or give a GGUF file, a config.json or a YAML shape`,
  )
}

/** Names of all shapes in `folders`, sorted. */
export async function shapeNames(
  folders: readonly string[] = [join(packageModels(), 'shapes')],
): Promise<readonly string[]> {
  const files = await Promise.all(folders.map(async (folder) => (existsSync(folder) ? await readdir(folder) : [])))
  const names = files.flat().filter((file) => file.endsWith('.yaml'))
  return [...new Set(names.map((file) => basename(file, '.yaml')))].sort()
}

async function fromFile(path: string): Promise<KvShape> {
  if (!existsSync(path)) throw new UsageError(`there is no file ${path}`)
  if (/\.gguf$/i.test(path)) return await shapeOfGguf(path)
  const text = await readFile(path, 'utf8')
  if (!/\.json$/i.test(path)) return parseShape(text, path)
  let config: unknown
  try {
    config = JSON.parse(text)
  } catch (error) {
    throw new UsageError(`${path}: it is not JSON: ${(error as Error).message}`)
  }
  if (typeof config !== 'object' || config === null) throw new UsageError(`${path}: it is no model's config`)
  return shapeOfConfig(config as Record<string, unknown>, path)
}

/** @throws UsageError where the header lacks what is needed, ModelError where it is no GGUF file. */
export async function shapeOfGguf(path: string): Promise<KvShape> {
  const file = await Gguf.open(path)
  try {
    const architecture = file.get('general.architecture', 'string') ?? ''
    const value = (key: string) => file.get(`${architecture}.${key}`, 'number')
    const layers = value('block_count')
    const all = value('attention.head_count')
    const width = value('embedding_length')
    if (layers === undefined || all === undefined || width === undefined) {
      throw new UsageError(`${path}: the header of '${architecture}' does not say its layers, heads and width`)
    }
    const latentDim = value('attention.kv_lora_rank')
    const keyDim = value('attention.key_length') ?? width / all
    const contextLength = value('context_length')
    const window = value('attention.sliding_window')
    const kvHeads = value('attention.head_count_kv') ?? all
    const heads = {
      kind: 'full',
      kvHeads,
      headDim: keyDim,
      valueDim: value('attention.value_length') ?? keyDim,
    } as const
    const latent = latentDim === undefined ? undefined : latentDim + (value('rope.dimension_count') ?? 0)
    return {
      name: file.get('general.name', 'string') ?? basename(path),
      ...(window !== undefined && {
        note: `Some layers keep ${window} tokens only; all are counted whole: an upper bound.`,
      }),
      ...(contextLength !== undefined && { contextLength }),
      dtype: 'fp16',
      layers: [{ ...(latent === undefined ? heads : ({ kind: 'latent', dim: latent } as const)), count: layers }],
    }
  } finally {
    await file.close()
  }
}
