// What a server elsewhere answered to a side question that it got as a chat of its own: the text, the alternatives of its
// first token, what it cost. Invariant: an answer without a message is none, and a refusal keeps the server's own words.

import { RefrainError } from '../core/errors.js'
import type { AsideAnswer } from './asides.js'

/** One body, whatever its status. */
export interface AsideReply {
  readonly status: number
  readonly body: Buffer
  readonly usage?: {
    readonly promptTokens: number
    readonly completionTokens: number
    readonly cachedTokens?: number
  }
}

/** @throws RefrainError where it is no answer. */
export function asideAnswer({ status, body, usage }: AsideReply): AsideAnswer {
  const value = parsed(body.toString('utf8'))
  if (status >= 400) throw new RefrainError(codeOf(status), refusalIn(value, status))
  const choice = (value as { choices?: readonly WireChoice[] } | undefined)?.choices?.[0]
  const content = choice?.message?.content
  if (choice === undefined || typeof content !== 'string') {
    throw new RefrainError('engine_failed', 'the backend answered without a message')
  }
  const first = choice.logprobs?.content?.[0]?.top_logprobs
  const { promptTokens = 0, completionTokens = 0, cachedTokens } = usage ?? {}
  return {
    text: content,
    cut: choice.finish_reason === 'length',
    ...(Array.isArray(first) && { first }),
    ...{ promptTokens, completionTokens },
    ...(cachedTokens !== undefined && { cachedTokens }),
  }
}

interface WireChoice {
  readonly message?: { readonly content?: unknown }
  readonly finish_reason?: string
  readonly logprobs?: {
    readonly content?: readonly { readonly top_logprobs?: readonly { token: string; logprob: number }[] }[]
  } | null
}

function codeOf(status: number) {
  if (status === 429) return 'queue_full'
  return status >= 500 ? 'engine_failed' : 'invalid_request'
}

function refusalIn(value: unknown, status: number): string {
  const { error, message, detail } = (value ?? {}) as {
    error?: { message?: unknown }
    message?: unknown
    detail?: unknown
  }
  const said = [error?.message, message, detail].find((each) => typeof each === 'string')
  return said === undefined ? `the backend answers ${status}` : String(said)
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    // What is no JSON is no message.
    return undefined
  }
}
