import { existsSync, readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { loadCard } from '../model/card.js'
import { weightsPath } from '../model/pull.js'
import { referenceLogits } from './reference-forward.js'

// The recorded reference was computed by another program (dequantized weights, fp32) from the very same file.
const recorded = join(import.meta.dirname, '../../../shared/fixtures/smollm2-reference/reference.json')
const card = await loadCard('smollm2-135m-instruct')
const weights = weightsPath(card, join(homedir(), '.cache', 'refrain', 'models'))
const missing = [recorded, weights].filter((path) => !existsSync(path))

interface Chat {
  readonly token_ids: readonly number[]
  readonly last_position_top8: readonly { readonly id: number; readonly logit: number }[]
  readonly mean_nll_of_prompt: number
}

describe('the reference on the real model', () => {
  test.skipIf(missing.length > 0)(
    'gives the recorded logits and likelihood (needs ../shared and `refrain pull smollm2-135m-instruct`)',
    async () => {
      const { chats } = JSON.parse(readFileSync(recorded, 'utf8')) as { chats: readonly Chat[] }
      const { token_ids: ids, last_position_top8: top, mean_nll_of_prompt: nll } = chats[0]!
      const logits = await referenceLogits(weights, ids)
      const last = logits.at(-1)!
      for (const { id, logit } of top) expect(Math.abs(last[id]! - logit)).toBeLessThan(1e-3)
      expect(last.indexOf(Math.max(...last))).toBe(top[0]!.id)
      const losses = ids.slice(1).map((id, position) => surprise(logits[position]!, id))
      const mean = losses.reduce((sum, loss) => sum + loss) / losses.length
      expect(Math.abs(mean - nll)).toBeLessThan(1e-4)
    },
    120_000,
  )
})

/** Negative logarithm of the probability of `id`. */
function surprise(logits: Float32Array, id: number): number {
  const top = logits.reduce((most, value) => Math.max(most, value))
  const total = logits.reduce((sum, value) => sum + Math.exp(value - top), 0)
  return Math.log(total) + top - logits[id]!
}
