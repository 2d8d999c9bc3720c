// The graph of the real SmolLM2-135M against the reference that was computed from the same file, dequantized, in fp32:
// perplexity of a text and greedy continuations of chats. Runs where the weights were pulled and the reference is at hand.

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { buildTokenizerJson, tokenizerTraits } from '../../prompt/gguf-tokenizer.js'
import { GraphSession } from '../../testing/graph-session.js'
import { referenceWeights, type SmolLm2Reference, smolLm2Reference, surprise } from '../../testing/smollm2-reference.js'
import { importGguf } from '../import.js'

function perplexity(logits: readonly Float32Array[], ids: readonly number[]): number {
  const sum = ids.slice(1).reduce((all, next, i) => all + surprise(logits[i] as Float32Array, next), 0)
  return Math.exp(sum / (ids.length - 1))
}

describe.skipIf(referenceWeights === undefined)(
  'SmolLM2-135M (needs `refrain pull smollm2-135m-instruct` and ../shared)',
  () => {
    let folder: string
    let reference: SmolLm2Reference
    beforeAll(async () => {
      folder = await mkdtemp(join(tmpdir(), 'refrain-smollm2-'))
      reference = smolLm2Reference()
    })
    afterAll(async () => {
      await rm(folder, { recursive: true })
    })

    async function open(kv: 'fp16' | 'fp32'): Promise<GraphSession> {
      const tokenizer = { build: buildTokenizerJson, traits: tokenizerTraits }
      const { directory, manifest } = await importGguf(referenceWeights as string, { dataDir: folder, kv, tokenizer })
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
  },
)
