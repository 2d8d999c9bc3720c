// What changes single logits before a token is chosen: logit_bias, repetition, presence and frequency penalties.
// Invariant: a step costs the number of distinct tokens concerned, never the vocabulary.

import { RefrainError } from '../core/errors.js'
import type { Sampling } from '../core/request.js'

export interface Penalties {
  /** Changes `logits` in place: bias first, then the repetition penalty, then frequency and presence. */
  apply(logits: Float32Array): void
  /** Counts `id` as generated. */
  accept(id: number): void
}

/**
 * The penalties of one choice; undefined: nothing changes. The repetition penalty (Keskar et al. 2019, CTRL) divides positive and multiplies
 * negative logits of tokens in prompt or output; frequency and presence follow OpenAI: `- count * frequency - presence`
 * over generated tokens.
 * @throws RefrainError `invalid_request` when `logitBias` names a token that the vocabulary lacks.
 */
export function createPenalties(
  sampling: Sampling,
  promptTokens: Int32Array,
  vocabSize: number,
): Penalties | undefined {
  const { repetitionPenalty, presencePenalty, frequencyPenalty } = sampling
  const bias = biasOf(sampling.logitBias, vocabSize)
  const penalized = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0
  if (bias.length === 0 && !penalized) return undefined

  const counts = new Map<number, number>()
  if (repetitionPenalty !== 1) for (const id of promptTokens) counts.set(id, 0)
  return {
    apply(logits) {
      for (const [id, value] of bias) logits[id] = logits[id]! + value
      for (const [id, count] of counts) {
        let logit = logits[id]!
        logit = logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty
        if (count > 0) logit -= count * frequencyPenalty + presencePenalty
        logits[id] = logit
      }
    },
    accept(id) {
      if (penalized) counts.set(id, (counts.get(id) ?? 0) + 1)
    },
  }
}

function biasOf(logitBias: Sampling['logitBias'], vocabSize: number): [number, number][] {
  return Object.entries(logitBias).map(([key, value]) => {
    const id = Number(key)
    if (!Number.isInteger(id) || id < 0 || id >= vocabSize) {
      const message = `logit_bias names token ${key}, but the vocabulary ends at ${vocabSize - 1}`
      throw new RefrainError('invalid_request', message, { param: 'logit_bias' })
    }
    return [id, value]
  })
}
