// What the SDK, the AI SDK, OpenCode, Qwen Code and litellm really sent to the Messages API: all of it is taken, earlier
// turns decode to the same messages every time though cache marks move, and only what has no effect is named.

import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../../core/request.js'
import { hasRecordings, type Recording, recordings } from '../../testing/recordings.js'
import { readBody } from '../body.js'
import { anthropicMessages, decodeConversation } from './anthropic-messages.js'
import type { Envelope } from './contract.js'

const limits = { n: 16, prompts: 64, stopStrings: 16, stopChars: 512, logitBias: 1024, jsonDepth: 64 }
const tenant = { name: 'default', salt: 'default', admin: true }
const envelope: Envelope = { id: '0123', tenant, session: undefined, priority: 'interactive', limits }

const sent = recordings().filter(({ path }) => path.split('?')[0] === '/v1/messages')
const counted = recordings().filter(({ path }) => path.split('?')[0]?.endsWith('/count_tokens'))

function decode({ body }: Recording) {
  const decoded = anthropicMessages.decode(readBody(Buffer.from(JSON.stringify(body))), envelope)
  const { prompt, checkpoints } = decoded.requests[0]
  if (prompt.kind !== 'chat') throw new Error('a message is a chat')
  return { ...decoded, prompt, checkpoints }
}

const runOf = (client: string) => sent.filter((each) => each.client === client && each.class === 'main')
const startsWith = (list: readonly ChatMessage[], head: readonly ChatMessage[]) =>
  head.every((each, i) => JSON.stringify(each) === JSON.stringify(list[i]))

describe.skipIf(!hasRecordings)('recorded requests (needs ../shared)', () => {
  test('every one is taken; little has no effect', () => {
    expect(sent.length).toBeGreaterThan(30)
    const ignored = new Set(sent.flatMap((recording) => decode(recording).ignored))
    expect([...ignored].sort()).toEqual(['thinking.budget_tokens'])
  })

  test.each(['opencode', 'qwen-code', 'anthropic-js', 'ai-sdk', 'litellm'])(
    '%s: each request of a prompt begins with the messages of the one before, marks or not',
    (client) => {
      const steps = runOf(client)
      expect(steps.length).toBeGreaterThan(3)
      const pairs = steps.slice(1).map((after, i) => [steps[i] as Recording, after] as const)
      const inOne = pairs.filter(([before, after]) => before.run === after.run && before.prompt === after.prompt)
      expect(inOne.length).toBeGreaterThan(1)
      for (const [before, after] of inOne) {
        expect(startsWith(decode(after).prompt.messages, decode(before).prompt.messages)).toBe(true)
        expect(decode(after).prompt.tools).toEqual(decode(before).prompt.tools)
      }
    },
  )

  test('marks become checkpoints and are no part of the prompt', () => {
    const marked = sent.filter(({ body }) => JSON.stringify(body).includes('cache_control'))
    expect(new Set(marked.map(({ client }) => client))).toEqual(new Set(['opencode', 'qwen-code']))
    for (const recording of marked) {
      const { prompt, checkpoints } = decode(recording)
      expect(checkpoints?.length).toBeGreaterThan(0)
      expect(checkpoints?.every(({ ttlMs }) => ttlMs === 300_000)).toBe(true)
      expect(JSON.stringify(prompt)).not.toContain('cache_control')
      // The last one stands at the end of what was said.
      expect(checkpoints?.map(({ after }) => after)).toContain(prompt.messages.length - 1)
    }
  })

  test('reasoning, text and calls of an answer come back as one message; results refer to their calls', () => {
    for (const client of ['opencode', 'qwen-code', 'anthropic-js', 'ai-sdk', 'litellm']) {
      const { messages } = decode(runOf(client).at(-1) as Recording).prompt
      const answers = messages.filter(({ role }) => role === 'assistant')
      expect(answers.length).toBeGreaterThan(1)
      expect(answers.every(({ reasoning }) => reasoning !== undefined)).toBe(true)
      const ids = answers.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id))
      expect(messages.filter(({ role }) => role === 'tool').map(({ toolCallId }) => toolCallId)).toEqual(ids)
    }
  })

  test('what is counted is what would be sent', () => {
    expect(counted.length).toBeGreaterThan(1)
    for (const { body, client, run } of counted) {
      const { prompt } = decodeConversation(readBody(Buffer.from(JSON.stringify(body))), envelope)
      const first = sent.find((each) => each.client === client && each.run === run) as Recording
      expect(prompt.tools).toEqual(decode(first).prompt.tools)
    }
  })
})
