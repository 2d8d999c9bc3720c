// The recorded reference of SmolLM2-135M (fp32, from the same file, dequantized): greedy chats, and the perplexity of a text.
// Tests that use it are skipped where it or the weights are absent.

import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pulledSmolLm2 } from './imported-model.js'

export interface SmolLm2Reference {
  readonly chats: readonly { readonly token_ids: readonly number[]; readonly greedy_ids: readonly number[] }[]
  readonly perplexity: { readonly token_ids: readonly number[]; readonly ppl: number }
}

const fixture = join(import.meta.dirname, '../../../shared/fixtures/smollm2-reference/reference.json')

/** The pulled weights, where the reference is at hand too. */
export const referenceWeights = existsSync(fixture) ? pulledSmolLm2() : undefined

export const smolLm2Reference = () => JSON.parse(readFileSync(fixture, 'utf8')) as SmolLm2Reference

/** The greatest of `logits`. */
export const argmax = (logits: Float32Array) =>
  logits.reduce((top, value, id) => (value > (logits[top] as number) ? id : top), 0)

/** Negative log-likelihood of `next` by `logits`. */
export function surprise(logits: Float32Array, next: number): number {
  const top = logits[argmax(logits)] as number
  return Math.log(logits.reduce((all, value) => all + Math.exp(value - top), 0)) + top - (logits[next] as number)
}
