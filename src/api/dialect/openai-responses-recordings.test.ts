// What Codex, OpenCode, Qwen Code and the SDKs really sent to the Responses API: all of it is taken, earlier turns decode
// to the same messages every time, ids and the order of members never show, namespaced calls find their tools again.

import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../../core/request.js'
import { hasRecordings, type Recording, recordings } from '../../testing/recordings.js'
import { readBody } from '../body.js'
import type { Envelope } from './contract.js'
import { openaiResponses } from './openai-responses.js'

const limits = { n: 16, prompts: 64, stopStrings: 16, stopChars: 512, logitBias: 1024, jsonDepth: 64 }
const tenant = { name: 'default', salt: 'default', admin: true }
const envelope: Envelope = { id: '0123', tenant, session: undefined, priority: 'interactive', limits }

type Hashed = Recording & { readonly message_json_sha256: readonly string[] }

const all = recordings().filter(({ path }) => /\/responses$/.test(path.split('?')[0] ?? '')) as Hashed[]
const runOf = (client: string, run: string) => all.filter((each) => each.client === client && each.run === run)

function decode({ body }: Recording) {
  const decoded = openaiResponses.decode(readBody(Buffer.from(JSON.stringify(body))), envelope)
  const { prompt } = decoded.requests[0]
  if (prompt.kind !== 'chat') throw new Error('a response is a chat')
  return { ...decoded, prompt }
}

function messagesOf(recording: Recording): readonly ChatMessage[] {
  return decode(recording).prompt.messages
}

function startsWith<T>(list: readonly T[], head: readonly T[]): boolean {
  return head.every((each, i) => JSON.stringify(each) === JSON.stringify(list[i]))
}

describe.skipIf(!hasRecordings)('recorded requests (needs ../shared)', () => {
  test('every one is taken; little has no effect', () => {
    expect(all.length).toBeGreaterThan(90)
    const ignored = new Set(all.flatMap((recording) => decode(recording).ignored))
    expect([...ignored].sort()).toEqual(['reasoning.summary', 'tools[web_search]'])
  })

  test('items that were sent again, byte for byte, are the same messages again', () => {
    const pairs = all.flatMap((before, i) =>
      all
        .slice(i + 1)
        .filter((each) => each.client === before.client && each.run === before.run)
        .filter((each) => startsWith(each.message_json_sha256, before.message_json_sha256))
        .map((after) => [before, after] as const),
    )
    expect(pairs.length).toBeGreaterThan(100)
    const broken = pairs.filter(([before, after]) => !startsWith(messagesOf(after), messagesOf(before)))
    expect(broken.map(([before, after]) => `${before.name} -> ${after.name}`)).toEqual([])
  })

  test('Codex: equal texts in another session are equal messages and tools, though every id differs', () => {
    const [one, other] = [runOf('codex', 'main')[0]!, runOf('codex', 'minimal-stream')[0]!]
    expect(one.message_json_sha256).not.toEqual(other.message_json_sha256)
    expect(messagesOf(one)).toEqual(messagesOf(other))
    expect(decode(one).prompt.tools).toEqual(decode(other).prompt.tools)
  })

  test('Codex: where the client metadata and the tools stand changes nothing', () => {
    const { body } = runOf('codex', 'main')[1]!
    const turned = Object.fromEntries(Object.entries(body).reverse())
    const text = (value: object) => Buffer.from(JSON.stringify(value))
    const one = openaiResponses.decode(readBody(text(body)), envelope).requests
    expect(openaiResponses.decode(readBody(text({ ...turned, client_metadata: {} })), envelope).requests).toEqual(one)
  })

  test('Codex: tries after a broken stream have the first try as their prompt, though what was done is appended', () => {
    const tries = runOf('codex', 'fault-broken-stream')
    const lengths = tries.map(({ message_json_sha256: items }) => items.length)
    expect(lengths.at(-1)).toBeGreaterThan(lengths[0]!)
    for (const each of tries.slice(1)) expect(messagesOf(each)).toEqual(messagesOf(tries[0]!))
  })

  test('Codex: a call of a namespaced tool is a call of a tool that is defined', () => {
    const calls = all
      .filter(({ class: kind }) => kind === 'main')
      .flatMap((recording) => {
        const { messages, tools } = decode(recording).prompt
        const names = new Set(tools.map((tool) => tool.name))
        return messages.flatMap((message) => message.toolCalls ?? []).map(({ name }) => [name, names.has(name)])
      })
    expect(calls.filter(([name]) => name === 'spawn_agent').length).toBeGreaterThan(2)
    expect(calls.filter(([, isKnown]) => !isKnown)).toEqual([])
  })

  test('Codex: reasoning comes back with its answer, in one message with text and calls', () => {
    const answers = messagesOf(runOf('codex', 'main').at(-1)!).filter(({ role }) => role === 'assistant')
    expect(answers.length).toBeGreaterThan(2)
    expect(answers.filter(({ reasoning }) => reasoning === undefined)).toEqual([])
    expect(answers[0]).toMatchObject({ content: 'Let me look at the file.\n\n', toolCalls: [{ name: 'exec_command' }] })
  })
})
