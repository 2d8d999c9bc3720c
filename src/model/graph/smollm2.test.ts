// The graph of the real SmolLM2-135M against the reference that was computed from the same file, dequantized, in fp32:
// perplexity of a text and greedy continuations of chats. Runs where the weights were pulled and the reference is at hand.

import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { buildTokenizerJson, tokenizerTraits } from '../../prompt/gguf-tokenizer.js'
import { GraphSession } from '../../testing/graph-session.js'
import { pulledSmolLm2 } from '../../testing/imported-model.js'
import { importGguf } from '../import.js'

interface Reference {
  readonly chats: readonly { readonly token_ids: readonly number[]; readonly greedy_ids: readonly number[] }[]
  readonly perplexity: { readonly token_ids: readonly number[]; readonly ppl: number }
}

const weights = pulledSmolLm2() ?? ''
const fixture = join(import.meta.dirname, '../../../../shared/fixtures/smollm2-reference/reference.json')
const present = existsSync(weights) && existsSync(fixture)

function perplexity(logits: readonly Float32Array[], ids: readonly number[]): number {
  let sum = 0
  for (const [i, next] of ids.slice(1).entries()) {
    const row = logits[i] as Float32Array
    const top = row.reduce((most, value) => Math.max(most, value), Number.NEGATIVE_INFINITY)
    const total = row.reduce((all, value) => all + Math.exp(value - top), 0)
    sum += Math.log(total) + top - (row[next] as number)
  }
  return Math.exp(sum / (ids.length - 1))
}

describe.skipIf(!present)('SmolLM2-135M (needs `refrain pull smollm2-135m-instruct` and ../shared)', () => {
  let folder: string
  let reference: Reference
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'refrain-smollm2-'))
    reference = JSON.parse(readFileSync(fixture, 'utf8')) as Reference
  })
  afterAll(async () => {
    await rm(folder, { recursive: true })
  })

  async function open(kv: 'fp16' | 'fp32'): Promise<GraphSession> {
    const tokenizer = { build: buildTokenizerJson, traits: tokenizerTraits }
    const { directory, manifest } = await importGguf(weights, { dataDir: folder, kv, tokenizer })
    return await GraphSession.open(join(directory, 'graph-split.onnx'), manifest)
  }

  test.each([
    ['fp16', 1e-3],
    ['fp32', 1e-4],
  ] as const)(
    '%s K/V: perplexity within %s of the reference',
    async (kv, tolerance) => {
      const graph = await open(kv)
      const { token_ids: ids, ppl } = reference.perplexity
      const { logits } = await graph.run({ ids })
      expect(Math.abs(perplexity(logits, ids) / ppl - 1)).toBeLessThan(tolerance)
      await graph.close()
    },
    300_000,
  )

  test('fp16 K/V: every greedy token of the chats', async () => {
    const graph = await open('fp16')
    for (const chat of reference.chats) {
      expect(await graph.greedy(chat.token_ids, chat.greedy_ids.length)).toEqual(chat.greedy_ids)
    }
    await graph.close()
  }, 300_000)
})
