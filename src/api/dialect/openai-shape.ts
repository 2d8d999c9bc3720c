// Shapes that OpenAI's two generating APIs share: usage, errors, a chunk's beginning. Invariant: usage always has the
// cache fields of OpenAI and of DeepSeek, zeros too, and prompt_tokens includes what was cached.

import { ERRORS, RefrainError } from '../../core/errors.js'
import type { GenerateEvent } from '../../core/events.js'
import type { About } from './contract.js'

/**
 * `usage` of an answer; prompt_cache_hit_tokens and prompt_cache_miss_tokens (DeepSeek) part prompt_tokens in two.
 * https://platform.openai.com/docs/api-reference/chat/object
 */
export function usageOf(finish: Extract<GenerateEvent, { type: 'finish' }>, reasoningTokens: number) {
  const cached = finish.cache.working + finish.cache.memory + finish.cache.disk
  return {
    prompt_tokens: finish.promptTokens,
    completion_tokens: finish.completionTokens,
    total_tokens: finish.promptTokens + finish.completionTokens,
    prompt_tokens_details: { cached_tokens: cached, cache_write_tokens: finish.committedTokens, audio_tokens: 0 },
    completion_tokens_details: {
      reasoning_tokens: reasoningTokens,
      audio_tokens: 0,
      accepted_prediction_tokens: 0,
      rejected_prediction_tokens: 0,
    },
    prompt_cache_hit_tokens: cached,
    prompt_cache_miss_tokens: finish.promptTokens - cached,
  }
}

/** `{error: {message, type, param, code}}`. What is no RefrainError is our own fault and says nothing of itself. */
export function errorBody(error: unknown): string {
  const known = asRefrainError(error)
  return JSON.stringify({
    error: { message: known.message, type: typeOf(known.status), param: known.param ?? null, code: known.code },
  })
}

/** `error`, or `internal` in its place. */
export function asRefrainError(error: unknown): RefrainError {
  if (error instanceof RefrainError) return error
  return new RefrainError('internal', ERRORS.internal.sentence, { cause: error })
}

function typeOf(status: number): string {
  if (status === 401) return 'authentication_error'
  if (status === 403) return 'permission_error'
  if (status === 429) return 'rate_limit_error'
  return status >= 500 ? 'server_error' : 'invalid_request_error'
}

/** The members that every chunk of a stream begins with, without the closing brace. */
export function headOf(object: string, { id, created, model }: About): string {
  return JSON.stringify({ id, object, created, model }).slice(0, -1)
}

export const SSE_END = 'data: [DONE]\n\n'
