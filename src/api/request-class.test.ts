// Classes of requests, by hand and over every recorded request of real clients.

import { describe, expect, test } from 'vitest'
import { hasRecordings, lowerHeaders, recordings } from '../testing/recordings.js'
import { BodyScan } from './body-scan.js'
import { lightBody } from './light-body.js'
import { classify } from './request-class.js'

const user = (content: unknown) => ({ role: 'user', content })
const tool = { type: 'function', function: { name: 'f' } }
const call = {
  role: 'assistant',
  tool_calls: [{ id: '1', type: 'function', function: { name: 'f', arguments: '{}' } }],
}

describe('what a client says of itself', () => {
  test.each([
    [{ 'x-refrain-request-class': 'auxiliary', 'x-claude-code-request-class': 'main' }, 'auxiliary'],
    [{ 'x-claude-code-request-class': 'main' }, 'main'],
    [{ 'x-claude-code-request-class': 'workflow' }, 'subagent'],
    [{ 'x-claude-code-compaction': 'auto' }, 'compaction'],
    [{ 'x-claude-code-agent-id': 'a' }, 'subagent'],
    [{ 'x-openai-subagent': 'compact' }, 'compaction'],
    [{ 'x-openai-subagent': 'memory_consolidation' }, 'auxiliary'],
    [{ 'x-openai-subagent': 'review' }, 'subagent'],
    [{ 'x-codex-turn-metadata': '{"request_kind":"compaction","thread_source":"user"}' }, 'compaction'],
    [{ 'x-codex-turn-metadata': '{"request_kind":"turn","thread_source":"thread_title"}' }, 'auxiliary'],
    [{ 'x-codex-turn-metadata': 'broken' }, undefined],
    [{ 'x-refrain-request-class': 'constructor' }, undefined],
    [{}, undefined],
  ])('%j', (headers, requestClass) => {
    const body = { messages: [user('Hello')], tools: [tool] }
    expect(classify(headers as Record<string, string>, body)).toEqual(
      requestClass === undefined ? {} : { requestClass },
    )
  })
})

describe('the shape', () => {
  const of = (body: Record<string, unknown>) => classify({}, body).requestClass
  const title = user('Generate a title for this conversation:\n')

  test.each([
    ['a title by its request', { messages: [title, user('Hi')] }, 'auxiliary'],
    ['a title that was asked for long ago', { messages: [title, call, user('Hi')] }, undefined],
    ['a title by its system text', { system: 'You are a title generator.', messages: [user('Hi')] }, 'auxiliary'],
    ['a title by its schema', titleSchema(), 'auxiliary'],
    ['a suggestion, tools and all', { messages: [user('[SUGGESTION MODE: ...]')], tools: [tool] }, 'auxiliary'],
    ['Open WebUI tags', { messages: [user('### Task:\nGenerate 1-3 broad tags\n<chat_history>')] }, 'auxiliary'],
    ['Open WebUI follow-ups', { messages: [user('### Task:\nSuggest 3-5 relevant follow-up questions')] }, 'auxiliary'],
    ['Open WebUI queries', { messages: [user('### Task:\nAnalyze the chat history to determine ...')] }, 'auxiliary'],
    [
      'Open WebUI emoji',
      { messages: [user("Your task is to reflect the speaker's likely facial expression ...")] },
      'auxiliary',
    ],
    ['Open WebUI tools', webUiTools(), 'auxiliary'],
    ['Open WebUI documents', { messages: [user('### Task:\nRespond to the user query using the context')] }, undefined],
    [
      'LibreChat',
      { messages: [user('Provide a concise, 5-word-or-less title for the conversation, ...')] },
      'auxiliary',
    ],
    ['LibreChat, structured', libreChat([{ type: 'function', function: { name: 'title' } }]), 'auxiliary'],
    ['the same words in a talk', { messages: [user('a'), call, ...libreChat([]).messages] }, undefined],
    ['LibreChat, by a schema', titleSchema('language'), 'auxiliary'],
    [
      'Continue',
      { messages: [user('Given the following... please reply with a title for the chat that is ...')] },
      'auxiliary',
    ],
    ['Goose', { messages: [user('---BEGIN USER MESSAGES---\nHi\n---END USER MESSAGES---')] }, 'auxiliary'],
    ['LobeChat', { messages: [lobe(), user('user: Hi\n\nPlease ...')] }, 'auxiliary'],
    ['Copilot', { system: 'You craft pithy titles for chatbot conversations.', messages: [user('Hi')] }, 'auxiliary'],
    ['NextChat, behind the talk', { messages: [user('Hi'), call, nextChat()] }, 'auxiliary'],
    ['who speaks next, tools and all', { messages: [user('a'), call, nextSpeaker()], tools: [tool] }, 'auxiliary'],
    ['a schema with more than a title', titleSchema('body'), undefined],
    ['a conversation as one text', { messages: [user('<conversation>\nuser: Hi')] }, 'compaction'],
    ['a snapshot, tools and all', { messages: [user('Now a <state_snapshot>')], tools: [tool] }, 'compaction'],
    ['tools are gone', { messages: [user('a'), call, user('Summarize all that')], tools: [] }, 'compaction'],
    ['a probe', { max_tokens: 1, messages: [user('quota')] }, 'auxiliary'],
    ['tools are gone, but the talk goes on', { messages: [user('a'), call, user('Thanks!')] }, undefined],
    ['an application about titles', { messages: [user('Write a title for my book')] }, undefined],
    ['a talk about summaries', { messages: [user('Summarize this: ...')] }, undefined],
    ['a title in a session with tools', { messages: [title], tools: [tool] }, undefined],
    ['nothing', {}, undefined],
    ['nonsense', { messages: [1, null, { role: 'user', content: { a: 1 } }], tools: 'x', system: 3 }, undefined],
  ])('%s', (_, body, requestClass) => {
    expect(of(body)).toBe(requestClass)
    // In front of a fleet the same rules see less of it.
    const scan = new BodyScan(Buffer.from(JSON.stringify(body)))
    expect(of(lightBody(scan))).toBe(requestClass)
  })
})

describe('a context that was rewritten', () => {
  test('is told once by Claude Code, counted by Codex', () => {
    expect(classify({ 'x-claude-code-context-compacted': '1' }, {})).toEqual({ contextEpoch: 'new' })
    expect(classify({ 'x-codex-window-id': '01a2:3' }, {})).toEqual({ contextEpoch: 3 })
    expect(classify({}, { client_metadata: { 'x-codex-window-id': '01a2:0' } })).toEqual({ contextEpoch: 0 })
    expect(classify({ 'x-codex-window-id': 'none' }, {})).toEqual({})
  })
})

/** Texts that the recordings only name by digest, and what they are known by. */
const TEXTS: Readonly<Record<string, string>> = {
  '3e272a96': '<conversation>\n',
  '5ec1840a': '<conversation>\n',
  '53e6d97a': '[SUGGESTION MODE: ',
  c93fbc7b: 'Produce the summary as <state_snapshot> ',
}

describe.skipIf(!hasRecordings)('recorded requests (needs ../shared)', () => {
  const CLASS: Readonly<Record<string, string | undefined>> = {
    'sub-agent': 'subagent',
    review: 'subagent',
    title: 'auxiliary',
    suggestion: 'auxiliary',
    compaction: 'compaction',
  }
  const all = recordings().filter(({ path }) => !path.includes('count_tokens'))

  test.each(['codex', 'opencode', 'qwen-code', 'libraries'])('%s', (client) => {
    const own = all.filter((each) =>
      client === 'libraries' ? !['codex', 'opencode', 'qwen-code'].includes(each.client) : each.client === client,
    )
    expect(own.length).toBeGreaterThan(20)
    for (const each of own) {
      const text = JSON.stringify(each.body).replace(/<text \d+ chars sha256:(\w{8})>/g, (mark, digest: string) => {
        return JSON.stringify(TEXTS[digest] ?? mark).slice(1, -1)
      })
      const { requestClass } = classify(lowerHeaders(each), JSON.parse(text))
      // Qwen Code says nothing of its sub-agents: they are turns like others.
      const expected = client === 'qwen-code' && each.class === 'sub-agent' ? undefined : CLASS[each.class]
      expect([each.name, requestClass]).toEqual([each.name, expected])
    }
  })
})

const nextSpeaker = () => user('Analyze *only* the content and structure of your immediately preceding response (...)')
const nextChat = () =>
  user('Please generate a four to five word title summarizing our conversation without any lead-in')
const lobe = () => ({
  role: 'system',
  content: "You need to summarize the user's conversation into a title within 10 words",
})
const webUiTools = () => ({
  messages: [
    { role: 'system', content: 'Available Tools: [...]\n\nYour task is to choose and return the correct tool(s) ...' },
    user('Query: History:\nUSER: Hi'),
  ],
})
const libreChat = (tools: object[]) => ({
  messages: [user('Analyze this conversation and provide:\n1. The detected language ...')],
  tools,
})

function titleSchema(more?: string): Record<string, unknown> {
  const properties = { title: { type: 'string' }, ...(more !== undefined && { [more]: { type: 'string' } }) }
  const schema = { type: 'object', properties }
  return { input: [user('Hi')], text: { format: { type: 'json_schema', name: 'x', schema } } }
}
