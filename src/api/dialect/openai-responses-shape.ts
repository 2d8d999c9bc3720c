// Shapes of the Responses API: the response object around its output, usage, failures, reasoning in a sealed form.
// https://platform.openai.com/docs/api-reference/responses/object
// Invariant: what the request said is repeated as it was sent; usage always has the cache fields, zeros too.

import { isRetryable } from '../../core/errors.js'
import type { GenerateEvent } from '../../core/events.js'
import type { About, Storing } from './contract.js'
import type { Reading } from './fields.js'
import { asRefrainError } from './openai-shape.js'

type Finish = Extract<GenerateEvent, { type: 'finish' }>

export type ResponseStatus = 'in_progress' | 'completed' | 'incomplete' | 'failed'

/** `input_tokens` includes what was cached. */
export function responsesUsage(finish: Finish, reasoningTokens: number) {
  const { working, memory, disk } = finish.cache
  return {
    input_tokens: finish.promptTokens,
    input_tokens_details: { cached_tokens: working + memory + disk, cache_write_tokens: finish.committedTokens },
    output_tokens: finish.completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: finish.promptTokens + finish.completionTokens,
  }
}

/** Members of the response that say again what was asked; those absent or null get the API's defaults. */
const ECHOED: readonly (readonly [key: string, neutral: string])[] = [
  ['instructions', 'null'],
  ['max_output_tokens', 'null'],
  ['metadata', '{}'],
  ['parallel_tool_calls', 'true'],
  ['prompt_cache_key', 'null'],
  ['reasoning', '{"effort":null,"summary":null}'],
  ['safety_identifier', 'null'],
  ['temperature', '1'],
  ['text', '{"format":{"type":"text"}}'],
  ['tool_choice', '"auto"'],
  ['tools', '[]'],
  ['top_logprobs', '0'],
  ['top_p', '1'],
  ['user', 'null'],
]

/** The members that repeat the request, as JSON without braces: the client's own text. */
export function echoOf({ raw }: Reading): string {
  const members = ECHOED.map(([key, neutral]) => {
    const sent = raw.at([key])
    // Raw line breaks stand between tokens only, never in a string; an event's data is one line.
    const value = sent === undefined || sent === 'null' ? neutral : sent.replace(/[\r\n]+/g, ' ')
    return `"${key}":${value}`
  })
  return members.join(',')
}

/** The same of an answer whose request is not there any more: what the log has of it, the rest as the API's defaults. */
export function echoOfStored(instructions: string, tools: readonly object[]): string {
  const known = new Map([['tools', JSON.stringify(tools)]])
  if (instructions !== '') known.set('instructions', JSON.stringify(instructions))
  return ECHOED.map(([key, neutral]) => `"${key}":${known.get(key) ?? neutral}`).join(',')
}

export interface ResponseParts {
  readonly about: About
  readonly echo: string
  readonly stored?: Storing | undefined
  readonly status: ResponseStatus
  /** JSON text of each item. */
  readonly output: readonly string[]
  readonly usage?: object | undefined
  readonly error?: object | undefined
  /** Results of quick instructions. */
  readonly quick?: object | undefined
}

/** The response object, as JSON. */
export function responseJson({ about, echo, stored, status, output, usage, error, quick }: ResponseParts): string {
  const incomplete = status === 'incomplete' ? '{"reason":"max_output_tokens"}' : 'null'
  return (
    `{"id":"${about.id}","object":"response","created_at":${about.created},"status":"${status}",` +
    `"background":false,"error":${JSON.stringify(error ?? null)},"incomplete_details":${incomplete},` +
    `"model":${JSON.stringify(about.model)},"output":[${output.join(',')}],` +
    `"previous_response_id":${JSON.stringify(stored?.previousId ?? null)},` +
    `"service_tier":"default","store":${stored?.keeps === true},"truncation":"disabled",${echo},"usage":${JSON.stringify(usage ?? null)}` +
    `${quick === undefined ? '' : `,"quick":${JSON.stringify(quick)}`}}`
  )
}

/**
 * `response.error` of a stream that fails: codes of this API, by which Codex decides whether and when to try again. It
 * reads the pause out of the sentence.
 */
export function failureOf(error: unknown): { readonly code: string; readonly message: string } {
  const known = asRefrainError(error)
  if (known.code === 'context_length_exceeded') return { code: known.code, message: known.message }
  if (known.status === 429 || known.status === 503) {
    const seconds = (known.retryAfterMs ?? 1000) / 1000
    return { code: 'rate_limit_exceeded', message: `${known.message}. Please try again in ${seconds}s.` }
  }
  if (known.status < 500 && !isRetryable(known)) return { code: 'invalid_prompt', message: known.message }
  return { code: 'server_error', message: known.message }
}

// --- reasoning -------------------------------------------------------------------------------------------------------

/** In front of what this server seals; another server's content does not begin so. */
const SEAL = 'refrain1.'

/** `encrypted_content`: no secret, but opaque to clients, who send it back as it is. */
export function sealReasoning(text: string): string {
  return SEAL + Buffer.from(text, 'utf8').toString('base64url')
}

/** The text that `sealReasoning` was given; undefined where another server wrote it. */
export function openReasoning(sealed: string): string | undefined {
  if (!sealed.startsWith(SEAL)) return undefined
  return Buffer.from(sealed.slice(SEAL.length), 'base64url').toString('utf8')
}
