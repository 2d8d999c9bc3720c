// Thirty ways in which clients change what they have sent before, each explained: the reason, the message, the byte. Through
// the whole server, with the scripted backend and a ChatML template.

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { seeded } from '../testing/random.js'
import { post, scriptedProgram } from '../testing/scripted-program.js'

// biome-ignore lint/suspicious/noExplicitAny: bodies and answers are plain JSON
type Json = any

const random = seeded(20261130).next
const WORDS = 'cache block prefix token router session tier engine queue stream model tenant'.split(' ')
const words = (count: number): string =>
  Array.from(
    { length: count },
    () => `${WORDS[Math.floor(random() * WORDS.length)]}${Math.floor(random() * 100)}`,
  ).join(' ')

const tool = (name: string) => ({
  type: 'function',
  function: { name, description: words(20), parameters: { type: 'object', properties: { path: { type: 'string' } } } },
})
const call = (id: string) => ({
  id,
  type: 'function',
  function: { name: 'read', arguments: JSON.stringify({ path: words(12), line: 10 }) },
})

const base = {
  tools: ['read', 'write', 'search', 'run'].map(tool),
  messages: [
    { role: 'system', content: `You are careful. It is 2026-11-30T08:15:42Z. ${words(60)}` },
    { role: 'user', content: words(40) },
    { role: 'assistant', content: words(30), reasoning_content: words(40), tool_calls: [call('call_1')] },
    { role: 'tool', tool_call_id: 'call_1', content: words(150) },
    { role: 'assistant', content: words(50), reasoning_content: words(40) },
    { role: 'user', content: words(40) },
  ],
}
const NEXT = [
  { role: 'assistant', content: 'ok' },
  { role: 'user', content: 'go on' },
]

interface Expected {
  readonly reason: string
  readonly message?: number
  readonly part?: string
  readonly byte?: number
  readonly change?: string
  readonly tools?: readonly (readonly [string, string])[]
  readonly whitespace?: true
}

interface Mutation {
  readonly name: string
  readonly expected: Expected
  /** Undefined: ChatML. */
  readonly template?: string
  /** Changes a copy of the next turn's body. */
  change(body: Json): void
}

/** Puts `now` where the content of a message has `old`, and says at which byte. */
function edit(
  name: string,
  message: number,
  old: string | RegExp,
  now: string,
  more: Partial<Expected> = {},
): Mutation {
  const { content } = base.messages[message] as { content: string }
  const after = content.replace(old, now)
  let at = 0
  while (content[at] === after[at]) at++
  const byte = Buffer.byteLength(content.slice(0, at))
  const reason = message === 0 ? 'system_changed' : 'messages_changed'
  return {
    name,
    expected: { reason, message, part: 'content', byte, change: 'edited', ...more },
    change: ({ messages }) => {
      messages[message].content = after
    },
  }
}

const at = (index: number) => (base.messages[index] as { content: string }).content

const toolsChanged = (name: string, tools: Expected['tools'] & {}, change: (tools: Json[]) => void): Mutation => ({
  name,
  expected: { reason: 'tools_changed', tools },
  change: (body) => change(body.tools),
})

/** A template with a head that an option changes. */
const BANNER =
  "{{ 'Banner.\\n' if banner is defined else 'Plain.\\n' }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}" +
  "{{ '<|im_start|>' + m.role + '\\n' + m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}" +
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

const MUTATIONS: readonly Mutation[] = [
  // tools
  toolsChanged('a tool moved to the front', [['run', 'moved']], (tools) => tools.unshift(tools.pop())),
  toolsChanged('a tool moved to the end', [['read', 'moved']], (tools) => tools.push(tools.shift())),
  toolsChanged('a tool added in front', [['grep', 'added']], (tools) => tools.unshift(tool('grep'))),
  toolsChanged('a tool added at the end', [['grep', 'added']], (tools) => tools.push(tool('grep'))),
  toolsChanged('a tool removed', [['write', 'removed']], (tools) => tools.splice(1, 1)),
  toolsChanged('a tool described otherwise', [['search', 'edited']], (tools) => {
    tools[2].function.description += ' (session 4711)'
  }),
  toolsChanged("a schema's keys in another order", [['read', 'edited']], (tools) => {
    const { type, properties } = tools[0].function.parameters
    tools[0].function.parameters = { properties, type }
  }),
  toolsChanged(
    'a tool in place of another',
    [
      ['fetch', 'added'],
      ['run', 'removed'],
    ],
    (tools) => {
      tools[3] = tool('fetch')
    },
  ),
  toolsChanged(
    'all tools gone',
    ['read', 'write', 'search', 'run'].map((name) => [name, 'removed'] as const),
    (tools) => tools.splice(0),
  ),
  // system
  edit('a clock', 0, '08:15:42', '08:16:03'),
  edit('a clock, the last digit', 0, '08:15:42', '08:15:43'),
  edit('a date', 0, '2026-11-30', '2026-12-01'),
  edit('a word in the system text', 0, 'careful', 'cautious'),
  edit('a sentence behind the system text', 0, /$/, ' Be brief.', { byte: Buffer.byteLength(at(0)) }),
  edit('a counter in front', 0, /^/, '[49%] '),
  {
    name: 'a system message more',
    expected: { reason: 'system_changed' },
    change: ({ messages }) => messages.splice(1, 0, { role: 'system', content: words(30) }),
  },
  // old messages
  edit('an old question edited', 1, at(1).slice(60, 70), 'EDITED', {}),
  edit('an old result pruned', 3, at(3), '[pruned]', { byte: 0 }),
  edit('an old result cut short', 3, at(3).slice(400), '', {}),
  edit('an old result edited in the middle', 3, at(3).slice(500, 510), '~~~~'),
  edit('another letter case', 4, at(4).slice(0, 5), at(4).slice(0, 5).toUpperCase()),
  edit('words beyond ASCII', 4, at(4).slice(90, 100), 'größer→', {}),
  edit('white space doubled', 3, ' ', '  ', { whitespace: true }),
  edit('a line break at the end', 4, /$/, '\n', { whitespace: true, byte: Buffer.byteLength(at(4)) }),
  edit('a line break for a blank', 5, ' ', '\n', { whitespace: true }),
  {
    name: 'a message left out',
    expected: { reason: 'messages_changed', message: 4, change: 'removed' },
    change: ({ messages }) => messages.splice(4, 1),
  },
  {
    name: 'a message put in between',
    expected: { reason: 'messages_changed', message: 4, change: 'inserted' },
    change: ({ messages }) => messages.splice(4, 0, { role: 'user', content: words(20) }),
  },
  {
    name: "a call's argument edited",
    expected: { reason: 'messages_changed', message: 2, part: 'tool_calls', change: 'edited' },
    change: ({ messages }) => {
      const [{ function: made }] = messages[2].tool_calls
      made.arguments = made.arguments.replace('"line":10', '"line":11')
    },
  },
  // reasoning
  {
    name: 'a think block stripped',
    expected: { reason: 'reasoning_dropped', message: 4 },
    change: ({ messages }) => delete messages[4].reasoning_content,
  },
  {
    name: 'all think blocks stripped',
    expected: { reason: 'reasoning_dropped', message: 2 },
    change: ({ messages }) => {
      for (const message of messages) delete message.reasoning_content
    },
  },
  // the template
  {
    name: 'an option of the template',
    expected: { reason: 'template_changed' },
    template: BANNER,
    change: (body) => {
      body.chat_template_kwargs = { banner: 'on' }
    },
  },
  {
    name: 'the cache salt',
    expected: { reason: 'tenant' },
    change: (body) => {
      body.cache_salt = 'pepper'
    },
  },
]

const flagsOf = (template: string) => ({
  'backend.options': {
    template,
    end: '<|im_end|>',
    answer: 'ok',
  },
  'explain.keepText': true,
})

let program: Program
beforeAll(async () => {
  program = await scriptedProgram(flagsOf('chatml'))
})
afterAll(() => program.stop(0))

async function explained(session: string, turn: number, of: Program = program): Promise<Json> {
  const reply = await of.server.app.inject({ method: 'GET', url: `/v1/sessions/${session}/turns/${turn}/explain` })
  expect(reply.statusCode, reply.body).toBe(200)
  return reply.json()
}

async function ask(session: string, body: object, of: Program = program): Promise<void> {
  const reply = await post(of, '/v1/chat/completions', { max_tokens: 4, ...body }, { 'x-refrain-session': session })
  expect(reply.status, reply.text).toBe(200)
}

describe('a turn that', () => {
  test('only adds to the one before misses nothing', async () => {
    await ask('same', base)
    await ask('same', { ...base, messages: [...base.messages, ...NEXT] })
    expect((await explained('same', 1)).miss.reason).toBe('first_seen')
    const { miss, cache, segments } = await explained('same', 2)
    expect(miss).toBeNull()
    expect(cache.computed).toBeLessThan(128)
    expect(segments.map((segment: Json) => segment.kind)).toEqual([
      ...Array(4).fill('tool'),
      'system',
      ...Array(7).fill('message'),
    ])
    const placed = segments.filter((segment: Json) => segment.byte_at !== undefined)
    placed.slice(1).forEach((segment: Json, i: number) => {
      expect(segment.byte_at).toBe(placed[i].byte_at + placed[i].bytes)
      expect(segment.token_at).toBe(placed[i].token_at + placed[i].tokens)
    })
  })

  test('there are thirty mutations', () => expect(MUTATIONS.length).toBeGreaterThanOrEqual(30))

  test.each(MUTATIONS)('has $name', async ({ name, expected, change, template = 'chatml' }) => {
    const session = `m-${name.replace(/[^a-z]+/gi, '-')}`
    // A cache of its own, so that no other mutation has left its blocks there.
    const own = await scriptedProgram(flagsOf(template))
    try {
      await ask(session, base, own)
      const body = structuredClone({ ...base, messages: [...base.messages, ...NEXT] })
      change(body)
      await ask(session, body, own)
      const { miss, cache } = await explained(session, 2, own)
      expect(seen(miss, expected)).toEqual(expected)
      expect(miss.missed_tokens % 64).toBe(0)
      expect(miss.missed_tokens).toBeGreaterThan(0)
      expect(miss.missed_tokens).toBeLessThanOrEqual(cache.computed)
      if (miss.difference?.before !== undefined) expect(miss.difference.before).not.toBe(miss.difference.after)
    } finally {
      await own.stop(0)
    }
  })
})

/** Of what is said, what the test has an opinion on. */
function seen(miss: Json, expected: Expected): object {
  const { message, tools, whitespace } = miss?.difference ?? {}
  const all: Json = {
    reason: miss?.reason,
    message: message?.index,
    part: message?.part,
    byte: message?.byte,
    change: message?.change,
    tools: tools?.map((each: Json) => [each.name, each.change]),
    whitespace,
  }
  return Object.fromEntries(Object.keys(expected).map((key) => [key, all[key]]))
}
