// Conversations to play through ways of keeping a context short: the textbook case, sessions with texts, and recordings that
// have counts of tokens only. For benches and tests.

import { LIFECYCLES, parseLifecycle } from '../session/compaction/lifecycle.js'
import type { EventBody } from '../session/log/event.js'
import type { Play, PlayStep, PlayStrategy } from './context-play.js'

/** Characters that stand for a token where texts are made up. */
export const TOKEN_CHARS = 4

/** A text of so many tokens that is like no other. */
export function filler(tokens: number, seed: string): string {
  const word = `${seed} `
  return word.repeat(Math.ceil((tokens * TOKEN_CHARS) / word.length)).slice(0, tokens * TOKEN_CHARS)
}

/** A head, then steps that add as much each: 50 steps, 10,000 and 2,000 tokens in the textbook. */
export function textbook({ steps = 50, headTokens = 10_000, stepTokens = 2000 } = {}): Play {
  return {
    head: [{ kind: 'head', apply: 'boundary', system: filler(headTokens - 10, 'rule') }],
    steps: Array.from({ length: steps }, (_, i): PlayStep => {
      const call: EventBody = { kind: 'tool_call', id: `c${i}`, name: 'read', arguments: `{"path":"src/f${i}.ts"}` }
      const before = `c${i - 1}`
      const said: EventBody =
        i === 0
          ? { kind: 'user', content: 'Read all of it, please, and go on.' }
          : { kind: 'tool_result', callId: before, content: filler(stepTokens - 100, `result${i}`) }
      return { said: [said], answer: [{ kind: 'assistant', content: filler(90, `step${i}`) }, call] }
    }),
  }
}

export interface PlainMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string | null
  readonly tool_calls?: readonly {
    readonly id: string
    readonly function: { readonly name: string; readonly arguments: string }
  }[]
  readonly tool_call_id?: string
}

/** A conversation in OpenAI's form; every answer is a request. */
export function messagesPlay(messages: readonly PlainMessage[]): Play {
  const head: EventBody[] = []
  const steps: PlayStep[] = []
  let said: EventBody[] = []
  for (const { role, content, tool_calls: calls = [], tool_call_id: callId = '' } of messages) {
    const text = content ?? ''
    if (role === 'system') head.push({ kind: 'head', apply: 'boundary', system: text })
    else if (role === 'user') said.push({ kind: 'user', content: text })
    else if (role === 'tool') said.push({ kind: 'tool_result', callId, content: text })
    else {
      const called = calls.map(
        ({ id, function: { name, arguments: json } }): EventBody => ({
          ...{ kind: 'tool_call', id, name, arguments: json },
        }),
      )
      steps.push({ said, answer: [{ kind: 'assistant', content: text }, ...called] })
      said = []
    }
  }
  return { head, steps }
}

export interface CountedRequest {
  readonly promptTokens: number
  readonly outputTokens: number
}

/**
 * Recorded requests of one conversation that have counts only: each is the one before, its answer, and a result of what is
 * left. Where a prompt got shorter its client had shortened it, and another play begins.
 */
export function countedPlays(requests: readonly CountedRequest[], headTokens: number): Play[] {
  const plays: { head: EventBody[]; steps: PlayStep[] }[] = []
  let before: CountedRequest | undefined
  for (const [i, request] of requests.entries()) {
    const grown = before === undefined ? -1 : request.promptTokens - before.promptTokens - before.outputTokens
    if (grown < 0) {
      const head: EventBody = { kind: 'head', apply: 'boundary', system: filler(headTokens, `rule${i}`) }
      const first = Math.max(1, request.promptTokens - headTokens)
      plays.push({
        head: [head],
        steps: [{ said: [{ kind: 'user', content: filler(first, `asks${i}`) }], answer: answered(i, request) }],
      })
    } else {
      const result: EventBody = {
        kind: 'tool_result',
        callId: `c${i - 1}`,
        content: filler(Math.max(1, grown), `result${i}`),
      }
      plays.at(-1)?.steps.push({ said: [result], answer: answered(i, request) })
    }
    before = request
  }
  return plays
}

function answered(i: number, { outputTokens }: CountedRequest): EventBody[] {
  return [
    { kind: 'assistant', content: filler(Math.max(1, outputTokens - 10), `says${i}`) },
    { kind: 'tool_call', id: `c${i}`, name: 'run', arguments: `{"path":"src/part-${i}.ts"}` },
  ]
}

const standard = parseLifecycle(undefined)

/** What is compared. */
export const STRATEGIES: readonly PlayStrategy[] = [
  { name: 'append-only', cache: 'prefix', lifecycle: standard, when: 'never' },
  { name: 'pruned in place each step', cache: 'prefix', lifecycle: standard, when: 'pruned' },
  { name: 'micro, then summary', cache: 'prefix', lifecycle: standard, when: 'pressure' },
  { name: 'summary', cache: 'prefix', lifecycle: parseLifecycle({ steps: [] }), when: 'pressure' },
  {
    name: 'discard-75',
    cache: 'prefix',
    lifecycle: parseLifecycle({ steps: [], strategy: 'discard-75' }),
    when: 'pressure',
  },
  {
    name: 'discard-all',
    cache: 'prefix',
    lifecycle: parseLifecycle({ steps: [], strategy: 'discard-all' }),
    when: 'pressure',
  },
  { name: 's08', cache: 'prefix', lifecycle: LIFECYCLES['s08'] ?? standard, when: 'pressure' },
  { name: 'prefix broken each step', cache: 'broken', lifecycle: standard, when: 'never' },
  { name: 'no cache', cache: 'none', lifecycle: standard, when: 'never' },
]
