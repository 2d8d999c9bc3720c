// Checkpoints of a client (`cache_control`) as places in the prompt's tokens. Between steps 5 and 6 of a request's path.
// Invariant: a place is never behind what the client meant.

import type { GenerateRequest, Job } from '../core/request.js'
import type { Rendered } from './contract.js'
import type { EncodedPrompt } from './splice.js'

interface Placed {
  readonly rendered: Rendered
  readonly prompt: EncodedPrompt
  /** For each message as it was sent, without those that hygiene took out: its index in what was rendered. */
  readonly places: readonly number[] | undefined
}

/** The checkpoints of the messages that were asked with, as tokens of what `request` became. */
export function pinsOf(asked: GenerateRequest, request: GenerateRequest, placed: Placed): Job['pins'] {
  if (asked.checkpoints === undefined || asked.prompt.kind !== 'chat' || request.prompt.kind !== 'chat')
    return undefined
  const { rendered, prompt, places } = placed
  const { spans } = rendered
  const { messages } = request.prompt
  // Rules of hygiene take messages out of the head alone.
  const taken = asked.prompt.messages.length - (places ?? messages).length
  const turns = messages.findIndex(({ role }) => role !== 'system')
  const lastOfHead = (turns < 0 ? messages.length : turns) - 1
  return asked.checkpoints.flatMap(({ after, ttlMs }) => {
    const sent = after === 'head' ? lastOfHead : Math.max(0, after - taken)
    const last = after === 'head' ? sent : (places?.[sent] ?? sent)
    // What has no place of its own stands in front of what has one.
    const end = spans.findLast(({ message }) => message <= last)?.end ?? spans[0]?.start
    return end === undefined ? [] : [{ tokens: prompt.tokensBefore(end), ttlMs }]
  })
}
