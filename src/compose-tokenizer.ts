// The part of the composition root that opens a tokenizer alone, for commands that count tokens of texts: that of a card whose
// weights are there, of a GGUF file, or a tokenizer.json. Invariant: nothing is pulled or imported for it.

import { existsSync, statSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { basename, join, resolve } from 'node:path'
import type { Config } from './config.js'
import { UsageError } from './core/usage-error.js'
import type { TokenCounter } from './lint/lint.js'
import { type Card, loadCard, packageModels } from './model/card.js'
import { Gguf } from './model/gguf.js'
import { ModelError } from './model/model-error.js'
import { weightsPath } from './model/pull.js'
import { buildTokenizerJson } from './prompt/gguf-tokenizer.js'
import { createTokenizer } from './prompt/tokenizer.js'

/** Texts that come back (tools, system prompts) are tokenized once. */
const MEMO_BYTES = 32 * 1024 * 1024

/**
 * Counts tokens as `name` does: a card's name, or the path of a GGUF file, of a tokenizer.json or of a folder with one.
 * @throws UsageError where it is not there or cannot be used, ModelError where a card or a GGUF file is broken.
 */
export async function openCounter(name: string, config: Pick<Config, 'model' | 'dataDir'>): Promise<TokenCounter> {
  const { path, json } = await sourceOf(name, config)
  try {
    const tokenizer = createTokenizer(await json(), { addBos: false, eosTokenIds: [], memoBytes: MEMO_BYTES })
    return {
      name: path === undefined ? name : basename(path),
      count: (text) => tokenizer.encode(text, { special: 'text', bos: 'none' }).length,
    }
  } catch (error) {
    if (error instanceof ModelError || error instanceof UsageError) throw error
    throw new UsageError(`--tokenizer ${name}: ${(error as Error).message}`, { cause: error })
  }
}

interface Source {
  /** Undefined: a card's. */
  readonly path?: string
  json(): Promise<string>
}

async function sourceOf(name: string, config: Pick<Config, 'model' | 'dataDir'>): Promise<Source> {
  const isPath = /[/\\]|\.(json|gguf)$/i.test(name) || (existsSync(name) && statSync(name).isDirectory())
  if (!isPath) {
    const weights = await weightsOf(await loadCard(name, [join(config.dataDir, 'cards'), packageModels()]), config)
    return { json: () => tokenizerIn(weights) }
  }
  const path = existsSync(name) && statSync(name).isDirectory() ? join(name, 'tokenizer.json') : name
  if (!existsSync(path)) throw new UsageError(`--tokenizer: there is no file ${resolve(path)}`)
  return { path, json: () => (/\.gguf$/i.test(path) ? tokenizerIn(path) : readFile(path, 'utf8')) }
}

/** Where the weights of `card` are: pulled, or in a file of the operator's. @throws UsageError */
async function weightsOf(card: Card, { model, dataDir }: Pick<Config, 'model' | 'dataDir'>): Promise<string> {
  const files = card.sources.flatMap((source) => (source.kind === 'file' ? [resolve(dataDir, source.path)] : []))
  const found = [weightsPath(card, model.directory), ...files].find((path) => existsSync(path))
  if (found !== undefined) return found
  const text = `its weights are not here: refrain pull ${card.name}, or name a tokenizer.json`
  throw new UsageError(`--tokenizer ${card.name}: ${text}`)
}

async function tokenizerIn(path: string): Promise<string> {
  const gguf = await Gguf.open(path)
  try {
    return buildTokenizerJson(Object.fromEntries(gguf.metadata))
  } finally {
    await gguf.close()
  }
}
