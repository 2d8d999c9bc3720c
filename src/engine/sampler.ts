// Chooses one token of a choice from a row of logits. Invariant: with temperature 0, or with a seed, the answer depends
// on nothing but the row, the settings and the tokens accepted so far. The engine calls it once a step and a sequence.
//
//   raw logits -> logprobs reported (log softmax of the row as the model gave it)
//     1. logit_bias            2. repetition penalty (prompt and output)   3. frequency and presence (output)
//     4. the grammar's mask    5. temperature; 0 takes the best, the lowest id of equals
//     6. top_k                 7. top_p, of what top_k left                8. min_p, against the best
//     9. one draw from the seeded stream

import type { Sampling } from '../core/request.js'
import { drawToken, logSumExp, type Scale } from './nucleus.js'
import { createPenalties } from './penalties.js'
import { createRandom } from './random.js'

export interface RankedToken {
  readonly id: number
  /** Natural logarithm of the probability before bias, penalties, mask and temperature. */
  readonly logprob: number
}

export interface SampledToken {
  readonly id: number
  /** Undefined unless `topLogprobs` was given. */
  readonly logprob: number | undefined
  /** The `topLogprobs` most probable tokens, best first; the sampled one need not be among them. */
  readonly top: readonly RankedToken[]
}

export interface Sampler {
  /**
   * Chooses a token; `accept` is a call of its own. `logits` has one entry a token and is changed. `mask` has one bit a
   * token, bit `id & 31` of word `id >> 5`; tokens whose bit is 0 are never chosen.
   * @throws Error when a logit is not finite or the mask allows nothing: faults of ours.
   */
  sample(logits: Float32Array, mask?: Int32Array): SampledToken
  /** Counts `id` as output for the penalties. */
  accept(id: number): void
}

export interface SamplerContext {
  readonly promptTokens: Int32Array
  readonly vocabSize: number
  /** Index of the choice; choices of one seed draw from different streams. */
  readonly choice: number
  /** For messages. */
  readonly requestId: string
  /** Undefined: no logprobs are computed. 0: the sampled token's alone. */
  readonly topLogprobs?: number
}

/** Below this, dividing by the temperature overflows: such requests are greedy. */
const GREEDY_BELOW = 1e-5

const NO_TOKENS: readonly RankedToken[] = []

/** @throws RefrainError `invalid_request` when `logitBias` names a token that the vocabulary lacks. */
export function createSampler(sampling: Sampling, context: SamplerContext): Sampler {
  const penalties = createPenalties(sampling, context.promptTokens, context.vocabSize)
  const greedy = sampling.temperature < GREEDY_BELOW
  const random = createRandom(sampling.seed, context.choice)

  return {
    sample(logits, mask) {
      if (logits.length !== context.vocabSize) {
        throw new Error(`request ${context.requestId}: ${logits.length} logits for ${context.vocabSize} tokens`)
      }
      const { requestId, topLogprobs } = context
      let best = argmax(logits)
      if (best < 0) throw new Error(`request ${requestId}: logit ${notFinite(logits)} is not finite`)
      const ranking = topLogprobs === undefined ? undefined : rank(logits, logits[best]!, topLogprobs)
      const raw = ranking === undefined ? undefined : logits.slice()
      if (penalties !== undefined) {
        penalties.apply(logits)
        best = argmax(logits)
        if (best < 0) throw new Error(`request ${requestId}: penalties make logit ${notFinite(logits)}`)
      }
      if (mask !== undefined) best = applyMask(logits, mask, { best, greedy, requestId })
      let id = best
      if (!greedy) {
        const scale: Scale = { best: logits[best]!, inverse: 1 / sampling.temperature }
        id = drawToken(logits, scale, sampling, random())
      }
      if (ranking === undefined || raw === undefined) return { id, logprob: undefined, top: NO_TOKENS }
      return { id, logprob: raw[id]! - ranking.normalizer, top: ranking.top }
    },
    accept: (id) => penalties?.accept(id),
  }
}

const BLOCK = 1024

/** The lowest id of the largest logit; -1 when any logit is not finite. */
function argmax(logits: Float32Array): number {
  let best = Number.NEGATIVE_INFINITY
  let start = 0
  for (let from = 0; from < logits.length; from += BLOCK) {
    const value = blockMax(logits, from, Math.min(from + BLOCK, logits.length))
    if (Number.isNaN(value)) return -1
    if (value > best) {
      best = value
      start = from
    }
  }
  return logits.indexOf(best, start)
}

/** The largest of `logits[from, end)`, NaN when one of them is not finite. */
function blockMax(logits: Float32Array, from: number, end: number): number {
  // A sum of finite floats is finite, and whatever is not stays in it. Four sums that do not wait for each other cost less
  // than a test of each logit.
  let a = 0
  let b = 0
  let c = 0
  let d = 0
  let best = Number.NEGATIVE_INFINITY
  const even = end - ((end - from) % 4)
  for (let i = from; i < even; i += 4) {
    const w = logits[i]!
    const x = logits[i + 1]!
    const y = logits[i + 2]!
    const z = logits[i + 3]!
    a += w
    b += x
    c += y
    d += z
    if (w > best) best = w
    if (x > best) best = x
    if (y > best) best = y
    if (z > best) best = z
  }
  for (let i = even; i < end; i++) {
    const w = logits[i]!
    a += w
    if (w > best) best = w
  }
  return best + (a + b + c + d) * 0
}

function notFinite(logits: Float32Array): string {
  const at = logits.findIndex((logit) => !Number.isFinite(logit))
  return `${at} (${logits[at]})`
}

interface Masking {
  readonly best: number
  readonly greedy: boolean
  readonly requestId: string
}

/** Returns the best allowed token. When more than that will be asked, forbidden logits become -Infinity. */
function applyMask(logits: Float32Array, mask: Int32Array, { best, greedy, requestId }: Masking): number {
  if (mask.length !== (logits.length + 31) >> 5) {
    throw new Error(`request ${requestId}: a mask of ${mask.length} words for ${logits.length} tokens`)
  }
  if (greedy && (mask[best >> 5]! >>> (best & 31)) & 1) return best
  let found = -1
  let value = Number.NEGATIVE_INFINITY
  for (let word = 0; word < mask.length; word++) {
    const bits = mask[word]!
    const start = word << 5
    const end = Math.min(start + 32, logits.length)
    if (bits === 0) {
      if (!greedy) logits.fill(Number.NEGATIVE_INFINITY, start, end)
      continue
    }
    for (let id = start; id < end; id++) {
      if ((bits >>> (id & 31)) & 1) {
        if (logits[id]! > value) {
          value = logits[id]!
          found = id
        }
      } else logits[id] = Number.NEGATIVE_INFINITY
    }
  }
  if (found < 0) throw new Error(`request ${requestId}: the mask allows no token`)
  return found
}

/** The `count` most probable tokens and the logarithm of the sum of all exponentials. */
function rank(logits: Float32Array, best: number, count: number): { normalizer: number; top: RankedToken[] } {
  const normalizer = logSumExp(logits, best)
  const ids: number[] = []
  const values: number[] = []
  let bar = Number.NEGATIVE_INFINITY
  for (let id = 0; id < logits.length && count > 0; id++) {
    const logit = logits[id]!
    if (logit <= bar) continue
    // Only strictly larger ones move up, so that equals stay in the order of their ids.
    let at = Math.min(values.length, count - 1)
    while (at > 0 && values[at - 1]! < logit) {
      values[at] = values[at - 1]!
      ids[at] = ids[at - 1]!
      at--
    }
    values[at] = logit
    ids[at] = id
    if (values.length === count) bar = values[count - 1]!
  }
  return { normalizer, top: ids.map((id, i) => ({ id, logprob: values[i]! - normalizer })) }
}
