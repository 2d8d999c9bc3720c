// An imported model with a runner for tests: a seeded toy, or the real SmolLM2 where its weights were pulled.

import { existsSync, readdirSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import type { KvLayout } from '../core/block.js'
import type { Runner } from '../engine/contract.js'
import { openRunner } from '../engine/runner.js'
import type { ModelManifest } from '../model/contract.js'
import { DECODE_ROWS } from '../model/graph/attention-decode.js'
import { importGguf } from '../model/import.js'
import { buildTokenizerJson, tokenizerTraits } from '../prompt/gguf-tokenizer.js'

export interface ImportedModel {
  readonly directory: string
  readonly manifest: ModelManifest
  readonly layout: KvLayout
  readonly runner: Runner
}

export async function openImported(
  path: string,
  dataDir: string,
  kv: 'fp16' | 'fp32' = 'fp16',
): Promise<ImportedModel> {
  const tokenizer = { build: buildTokenizerJson, traits: tokenizerTraits }
  const { directory, manifest } = await importGguf(path, { dataDir, kv, tokenizer })
  const { layers, kvHeads, headDim, vocabSize } = manifest
  const layout: KvLayout = { layers, kvHeads, headDim, dtype: kv }
  const runner = await openRunner({
    directory,
    layout,
    vocabSize,
    decodeRows: DECODE_ROWS,
    threads: 2,
    provider: 'cpu',
  })
  return { directory, manifest, layout, runner }
}

/** The pulled weights of SmolLM2-135M-Instruct; undefined: tests that need them are skipped. */
export function pulledSmolLm2(): string | undefined {
  const folder = join(homedir(), '.cache', 'refrain', 'models')
  if (!existsSync(folder)) return undefined
  const file = readdirSync(folder).find((name) => /^smollm2-135m-instruct-\w+\.gguf$/.test(name))
  return file && join(folder, file)
}
