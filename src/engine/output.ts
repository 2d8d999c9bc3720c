// What of a choice's sampled tokens becomes visible: detokenizer, stop strings, end tokens, the token limit and logprobs
// joined. Invariant: the texts of all pushes put together are the answer, whole characters only; after `done` the choice
// is over and push is not called again. The engine calls it once a sampled token.

import type { FinishReason, TokenLogprob } from '../core/events.js'
import type { Detokenizer, Tokenizer } from '../prompt/contract.js'
import type { RankedToken, SampledToken } from './sampler.js'
import { createStopScanner, type StopStep } from './stop.js'

export interface OutputOptions {
  readonly tokenizer: Pick<Tokenizer, 'decode' | 'bytesOf' | 'spellingOf' | 'isSpecial'>
  /** A fresh one, this choice's own. */
  readonly detokenizer: Detokenizer
  readonly stops: readonly string[]
  readonly eosTokenIds: readonly number[]
  readonly stopTokenIds: readonly number[]
  /** True: EOS is a token like any other, though without text. */
  readonly ignoreEos: boolean
  readonly maxTokens: number
  /** Undefined: none are reported. */
  readonly logprobs: number | undefined
}

export interface OutputStep {
  /** May be empty: an incomplete character, the beginning of a stop string, an end token. */
  readonly text: string
  readonly done?: { readonly reason: FinishReason; readonly stopString?: string }
  /** Of this token; absent for the one that ends the answer without being part of it. */
  readonly logprobs?: readonly (TokenLogprob & { readonly top: readonly TokenLogprob[] })[]
}

export interface Output {
  push(token: SampledToken): OutputStep
  /** Text that is held back, for an end that `push` did not see; incomplete characters become U+FFFD. */
  flush(): string
}

export function createOutput(options: OutputOptions): Output {
  const { detokenizer, logprobs } = options
  const scanner = createStopScanner(options.stops)
  const ends = new Set(options.ignoreEos ? options.stopTokenIds : [...options.eosTokenIds, ...options.stopTokenIds])
  let count = 0

  /** The step that `scanned` makes, or the last one when `reason` says that nothing follows. */
  const finish = (scanned: StopStep, reason: FinishReason | undefined): OutputStep => {
    if (scanned.stopped !== undefined) return stoppedBy(scanned.visible, scanned.stopped)
    if (reason === undefined) return { text: scanned.visible }
    const rest = scanner.push(detokenizer.end())
    const text = scanned.visible + rest.visible
    if (rest.stopped !== undefined) return stoppedBy(text, rest.stopped)
    return { text: text + scanner.end(), done: { reason } }
  }

  return {
    push(token) {
      count++
      if (ends.has(token.id)) return finish({ visible: '' }, 'stop')
      const scanned = scanner.push(detokenizer.push(token.id))
      const step = finish(scanned, count >= options.maxTokens ? 'length' : undefined)
      return logprobs === undefined ? step : { ...step, logprobs: [describe(token, options.tokenizer)] }
    },
    flush: () => finish({ visible: '' }, 'stop').text,
  }
}

function stoppedBy(text: string, stopString: string): OutputStep {
  return { text, done: { reason: 'stop', stopString } }
}

const encoder = new TextEncoder()

function describe({ id, logprob, top }: SampledToken, tokenizer: OutputOptions['tokenizer']) {
  if (logprob === undefined) throw new Error(`token ${id} was sampled without the logprobs that were asked for`)
  const spell = (token: RankedToken): TokenLogprob => {
    const special = tokenizer.isSpecial(token.id)
    const text = special ? tokenizer.spellingOf(token.id) : tokenizer.decode([token.id])
    const bytes = Array.from(special ? encoder.encode(text) : tokenizer.bytesOf(token.id))
    return { id: token.id, text, bytes, logprob: token.logprob }
  }
  return { ...spell({ id, logprob }), top: top.map(spell) }
}
