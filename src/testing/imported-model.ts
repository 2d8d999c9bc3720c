// An imported model with a runner for tests: a seeded toy, or the real SmolLM2 where its weights were pulled.

import { existsSync, readdirSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import type { KvLayout } from '../core/block.js'
import type { Runner } from '../engine/contract.js'
import type { ModelManifest } from '../model/contract.js'
import { importGguf } from '../model/import.js'
import type { NetworkForm } from '../native/network.js'
import { buildTokenizerJson, tokenizerTraits } from '../prompt/gguf-tokenizer.js'
import { chooseProvider, openProvider, type Provider } from '../provider.js'

export interface ImportedModel {
  readonly directory: string
  readonly manifest: ModelManifest
  readonly layout: KvLayout
  readonly runner: Runner
}

export interface OpenImportedOptions {
  readonly kv?: 'fp16' | 'fp32'
  /** Default: what `auto` takes here. */
  readonly provider?: Provider
  readonly form?: NetworkForm
  readonly trees?: boolean
}

export async function openImported(
  path: string,
  dataDir: string,
  { kv = 'fp16', trees = true, ...options }: OpenImportedOptions = {},
): Promise<ImportedModel> {
  const tokenizer = { build: buildTokenizerJson, traits: tokenizerTraits }
  const { directory, manifest } = await importGguf(path, { dataDir, kv, tokenizer })
  const { layers, kvHeads, headDim, vocabSize } = manifest
  const layout: KvLayout = { layers, kvHeads, headDim, dtype: kv }
  const provider = options.provider ?? chooseProvider({ provider: 'auto', kernels: 'auto' }, manifest).provider
  const runner = await openProvider({ provider, directory, layout, vocabSize, threads: 2, trees, ...options })
  return { directory, manifest, layout, runner }
}

/** The pulled weights of SmolLM2-135M-Instruct; undefined: tests that need them are skipped. */
export function pulledSmolLm2(): string | undefined {
  const folder = join(homedir(), '.cache', 'refrain', 'models')
  if (!existsSync(folder)) return undefined
  const file = readdirSync(folder).find((name) => /^smollm2-135m-instruct-\w+\.gguf$/.test(name))
  return file && join(folder, file)
}
