// Shapes of the Messages API: usage, errors, signatures of reasoning, what is said of cache misses. Invariant: the three
// input counts are never negative and sum to the prompt's length; an error says only what the catalogue lets it say.
// https://platform.claude.com/docs/en/api/messages, https://platform.claude.com/docs/en/api/errors

import { createHash } from 'node:crypto'
import type { RefrainError } from '../../core/errors.js'
import type { GenerateEvent } from '../../core/events.js'
import type { MissReason } from './contract.js'
import { asRefrainError } from './openai-shape.js'

type Counted = Extract<GenerateEvent, { type: 'start' | 'finish' }>

export interface OutputCounts {
  readonly output: number
  readonly thinking: number
}

/**
 * `usage`, which `message_delta` says again with the last counts. `input_tokens` is what was neither read from the cache
 * nor newly written to it as full blocks.
 */
export function anthropicUsage(event: Counted, counts: OutputCounts, lifetime: '5m' | '1h') {
  const { promptTokens, cache, committedTokens } = event
  const read = Math.min(promptTokens, cache.working + cache.memory + cache.disk)
  const created = Math.max(0, Math.min(committedTokens, promptTokens - read))
  return {
    input_tokens: promptTokens - read - created,
    cache_creation_input_tokens: created,
    cache_read_input_tokens: read,
    cache_creation: {
      ephemeral_5m_input_tokens: lifetime === '5m' ? created : 0,
      ephemeral_1h_input_tokens: lifetime === '1h' ? created : 0,
    },
    output_tokens: counts.output,
    output_tokens_details: { thinking_tokens: counts.thinking },
    server_tool_use: null,
    service_tier: 'standard',
  }
}

/** `{type: "error", error: {type, message}, request_id}`. */
export function anthropicError(error: unknown, requestId: string): string {
  const known = asRefrainError(error)
  const told = { type: typeOf(known.status), message: messageOf(known), ...detailsOf(known) }
  return JSON.stringify({ type: 'error', error: told, request_id: requestId })
}

/** The field of a thread that is not there. */
export const NO_THREAD = 'thread.previous_message_id'

/** By this code the official clients know that they have to send a conversation again, all of it. */
function detailsOf({ param }: RefrainError) {
  return param === NO_THREAD ? { details: { error_code: 'thread_not_found' } } : {}
}

export const anthropicErrorSchema = {
  type: 'object',
  required: ['type', 'error'],
  properties: {
    type: { const: 'error' },
    error: {
      type: 'object',
      required: ['type', 'message'],
      properties: { type: { type: 'string' }, message: { type: 'string' } },
    },
    request_id: { type: ['string', 'null'] },
  },
}

function typeOf(status: number): string {
  switch (status) {
    case 401:
      return 'authentication_error'
    case 403:
      return 'permission_error'
    case 404:
      return 'not_found_error'
    case 408:
      return 'timeout_error'
    case 413:
      return 'request_too_large'
    case 429:
      return 'rate_limit_error'
    case 503:
      return 'overloaded_error'
  }
  return status >= 500 ? 'api_error' : 'invalid_request_error'
}

/** Claude Code compacts on these words, and on the token where the words change. */
function messageOf({ code, message }: RefrainError): string {
  if (code === 'reasoning_missing') return message.replace('`reasoning_content`', '`content[].thinking`')
  if (code !== 'context_length_exceeded') return message
  const limit = /maximum context length is (\d+) tokens/.exec(message)?.[1]
  const asked = /resulted in (\d+) tokens/.exec(message)?.[1]
  const counts = limit === undefined || asked === undefined ? '' : `: ${asked} tokens > ${limit} maximum`
  return `prompt is too long${counts} (capability_rejected: prompt_too_long). ${message}`
}

/** `diagnostics` of an answer; without a comparison at hand the reason is `unavailable`. */
export function diagnosticsOf(reason: MissReason | 'unavailable') {
  if (reason === 'unavailable') return { cache_miss_reason: { type: 'unavailable' } }
  const { type, missedTokens } = reason
  return {
    cache_miss_reason: {
      type,
      ...(missedTokens === undefined ? {} : { cache_missed_input_tokens: missedTokens }),
    },
  }
}

// --- reasoning -------------------------------------------------------------------------------------------------------

/** In front of reasoning that a client asked not to be shown and sends back all the same. */
const SEAL = 'refrain1.'

/**
 * What closes a thinking block. It depends on the text alone, so that a repeated turn is the same bytes; nothing is
 * checked when it comes back.
 */
export function signatureOf(thought: string): string {
  return createHash('sha256').update('refrain thinking\n').update(thought).digest('base64')
}

/** A signature that holds the text: `thinking.display: "omitted"`. */
export function sealThinking(thought: string): string {
  return SEAL + Buffer.from(thought, 'utf8').toString('base64url')
}

/** The text that `sealThinking` was given; undefined where this server did not write it. */
export function openThinking(sealed: string): string | undefined {
  if (!sealed.startsWith(SEAL)) return undefined
  return Buffer.from(sealed.slice(SEAL.length), 'base64url').toString('utf8')
}
