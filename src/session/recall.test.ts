// What is found of a conversation that comes back, and what must not be: recorded from event streams as serve.ts does it.

import { describe, expect, test } from 'vitest'
import type { CallDelta, GenerateEvent } from '../core/events.js'
import type { ChatMessage } from '../core/request.js'
import { recall } from './recall.js'
import { createMemoryReplies, type ReplyStore } from './replies.js'
import { recordReplies } from './reply-recorder.js'
import type { TranscriptScope } from './transcript.js'

const EOS = 0
const scope: TranscriptScope = { tenantSalt: 't', model: 'm' }
const cache = { working: 0, memory: 0, disk: 0, computed: 1 }
const textOf = (ids: readonly number[]) => String.fromCodePoint(...ids)
const bytesOf = (id: number) => Buffer.from(id === EOS ? '' : String.fromCodePoint(id))
const STOP = 0x2603

interface Answer {
  readonly content?: string
  readonly reasoning?: string
  readonly calls?: readonly CallDelta[]
  readonly end?: Partial<Extract<GenerateEvent, { type: 'end' }>>
  /** More than the visible text: what a stop string cut off, or the end token. */
  readonly sampled?: readonly number[]
  readonly finish?: boolean
}

async function* answered({ content = '', reasoning = '', calls = [], end = {}, sampled, finish = true }: Answer) {
  const ids = sampled ?? [...[...reasoning, ...content].map((letter) => letter.codePointAt(0) as number), EOS]
  yield { type: 'start', promptTokens: 1, cache, committedTokens: 0 } as const
  yield { type: 'token', choice: 0, ids, text: content, split: { content, reasoning, calls: [] } } as const
  yield { type: 'end', choice: 0, reason: 'stop', split: { content: '', reasoning: '', calls }, ...end } as const
  if (finish) yield { type: 'finish', promptTokens: 1, completionTokens: 1, cache, committedTokens: 0 } as const
}

interface Turned {
  readonly store: ReplyStore
  readonly of?: TranscriptScope
  readonly session?: string
  readonly fillReasoning?: boolean
  readonly continueFinal?: boolean
}

const ask = (messages: readonly ChatMessage[], { store, of = scope, session, ...more }: Turned) =>
  recall(messages, {
    ...{ store, scope: of, fillReasoning: true, continueFinal: false, ...more },
    ...(session !== undefined && { session }),
  })

/** A whole turn: `messages` are asked with, `answer` is given. */
async function turn(messages: readonly ChatMessage[], answer: Answer, how: Turned): Promise<void> {
  const { transcript, after } = await ask(messages, how)
  const begun = how.continueFinal === true ? (messages.at(-1)?.content ?? '') : ''
  const { store, of = scope, session } = how
  const keep = (reply: Parameters<Parameters<typeof recordReplies>[1]['keep']>[0], keys: object) =>
    store.keep({
      tenant: of.tenantSalt,
      ...(session && { session }),
      after,
      reply,
      ...(keys as { transcript: string }),
    })
  const options = {
    opening: '<a>',
    begun,
    transcript,
    scope: of,
    eosTokenIds: [EOS],
    stopTokenIds: [STOP],
    bytesOf,
    keep,
  }
  for await (const _ of recordReplies(answered(answer), options)) {
    // The events pass.
  }
}

const user = (content: string): ChatMessage => ({ role: 'user', content })
const says = (content: string, more: Partial<ChatMessage> = {}): ChatMessage => ({
  role: 'assistant',
  content,
  ...more,
})
const call = (id = 'c1', json = '{"a": 1.0}') => ({ id, name: 'look', arguments: json })
const delta = (id = 'c1', json = '{"a": 1.0}'): CallDelta => ({ index: 0, id, name: 'look', argumentsDelta: json })
const result: ChatMessage = { role: 'tool', content: 'a tree', toolCallId: 'c1' }
const open = () => createMemoryReplies({ memoryBytes: 1e6 })

describe('an answer that comes back', () => {
  test('is what was generated: white space, arguments, reasoning; its ids have no end', async () => {
    const store = open()
    await turn([user('hi')], { content: 'Let me look.\n\n', reasoning: 'hm\n', calls: [delta()] }, { store })
    const sent = [user('hi'), says('Let me look.', { toolCalls: [call('c1', '{"a":1}')] }), result]
    const { messages, replies, places } = await ask(sent, { store })
    expect(messages).toEqual([user('hi'), says('Let me look.\n\n', { reasoning: 'hm\n', toolCalls: [call()] }), result])
    expect(replies.map((reply) => reply && textOf([...reply.ids]))).toEqual([
      undefined,
      'hm\nLet me look.\n\n',
      undefined,
    ])
    expect(places).toEqual([0, 1, 2])
  })

  test('keeps the id that the client gave its call, for its results name it so', async () => {
    const store = open()
    await turn([user('hi')], { calls: [delta('a-long-id')] }, { store })
    const { messages, replies } = await ask([user('hi'), says('', { toolCalls: [call('a-long')] })], { store })
    expect(messages[1]?.toolCalls).toEqual([call('a-long')])
    expect(replies[1]).toBeDefined()
  })

  test('without tools reasoning is not filled in, but what came is made whole', async () => {
    const store = open()
    await turn([user('hi')], { content: 'Yes.', reasoning: 'I think so.\n' }, { store })
    const reasoningOf = async (reasoning?: string) => {
      const sent = [user('hi'), says('Yes.', reasoning === undefined ? {} : { reasoning })]
      return (await ask(sent, { store, fillReasoning: false })).messages[1]?.reasoning
    }
    expect(await reasoningOf()).toBeUndefined()
    expect(await reasoningOf('(reasoning omitted)')).toBeUndefined()
    expect(await reasoningOf('I think so.')).toBe('I think so.\n')
    expect(await reasoningOf('so.\n')).toBe('I think so.\n')
    expect(await reasoningOf('I do not.')).toBe('I do not.')
  })

  test('in two messages is one; the places say so', async () => {
    const store = open()
    await turn([user('hi')], { content: 'Look: ', calls: [delta()] }, { store })
    const sent = [user('hi'), says('Look:'), says('', { toolCalls: [call()] }), result]
    const { messages, places } = await ask(sent, { store })
    expect(messages).toEqual([user('hi'), says('Look: ', { toolCalls: [call()] }), result])
    expect(places).toEqual([0, 1, 1, 2])
  })

  test('whose reasoning comes as a message in front of it is one, and so are the turns behind', async () => {
    const store = open()
    const sent = [user('hi'), says('hm'), says('Yes.')]
    await turn([user('hi')], { content: 'Yes.\n', reasoning: 'hm\n' }, { store })
    await turn([...sent, user('and?')], { content: 'No.\n' }, { store })
    const { messages } = await ask([...sent, user('and?'), says('No.')], { store })
    expect(messages).toEqual([user('hi'), says('Yes.\n', { reasoning: 'hm\n' }), user('and?'), says('No.\n')])
  })

  test('two answers in a row stay two', async () => {
    const store = open()
    await turn([user('hi')], { content: 'One.\n' }, { store })
    await turn([user('hi'), says('One.')], { content: 'Two.\n' }, { store })
    const { messages } = await ask([user('hi'), says('One.'), says('Two.'), user('x')], { store })
    expect(messages).toEqual([user('hi'), says('One.\n'), says('Two.\n'), user('x')])
  })

  test('that continued a message is one with it; the message itself stays as it came while it is continued', async () => {
    const store = open()
    await turn([user('hi'), says('The answer ')], { content: 'is 3.\n' }, { store, continueFinal: true })
    const { messages } = await ask([user('hi'), says('The answer is 3.')], { store })
    expect(messages[1]?.content).toBe('The answer is 3.\n')
    const again = await ask([user('hi'), says('The answer is 3.')], { store, continueFinal: true })
    expect([again.messages[1]?.content, again.replies[1]]).toEqual(['The answer is 3.', undefined])
  })

  test('behind a history that was edited is found by its call; words alone are not', async () => {
    const store = open()
    await turn([user('hi')], { content: 'Look.\n', calls: [delta()] }, { store })
    const sent = [user('hi'), says('Look.', { toolCalls: [call()] }), result]
    await turn(sent, { content: 'A tree.\n' }, { store })
    const edited = [user('HI'), ...sent.slice(1), says('A tree.')]
    const { messages } = await ask(edited, { store })
    expect([messages[1]?.content, messages[3]?.content]).toEqual(['Look.\n', 'A tree.'])
    const other = [user('HI'), says('Else.', { toolCalls: [call()] }), result]
    expect((await ask(other, { store })).messages).toEqual(other)
  })
})

describe('of several answers that say the same', () => {
  const sessions = ['a', 'b'] as const
  const open2 = async () => {
    const store = open()
    for (const session of sessions) {
      await turn([user('hi')], { calls: [delta()], reasoning: `I am ${session}.` }, { store, session })
    }
    return store
  }
  const sent = [user('hi'), says('', { toolCalls: [call()] }), result]

  test('each session gets its own; who has none gets the newest', async () => {
    const store = await open2()
    for (const session of sessions) {
      expect((await ask(sent, { store, session })).messages[1]?.reasoning).toBe(`I am ${session}.`)
    }
    expect((await ask(sent, { store })).messages[1]?.reasoning).toBe('I am b.')
  })

  test('the reasoning that came says which; then the replies that its prompt was made with', async () => {
    const store = await open2()
    for (const name of sessions) {
      const first = says('', { toolCalls: [call()], reasoning: `I am ${name}.` })
      expect((await ask([user('hi'), first], { store })).messages[1]?.reasoning).toBe(`I am ${name}.`)
      await turn([user('hi'), first, result], { content: 'A tree.', reasoning: `${name} saw it.` }, { store })
      const { messages } = await ask([user('hi'), first, result, says('A tree.')], { store })
      expect(messages[3]?.reasoning).toBe(`${name} saw it.`)
    }
    const first = says('', { toolCalls: [call()], reasoning: 'I am a.' })
    const { messages } = await ask([user('hi'), first, result, says('A tree.')], { store })
    expect(messages[3]?.reasoning).toBe('a saw it.')
  })
})

test('nothing is found across tenants, models and salts, by words or by calls', async () => {
  const store = open()
  await turn([user('hi')], { content: 'Yes.\n', calls: [delta()] }, { store })
  const sent = [user('hi'), says('Yes.', { toolCalls: [call()] })]
  for (const of of [
    { ...scope, tenantSalt: 'u' },
    { ...scope, model: 'n' },
    { ...scope, cacheSalt: 's' },
  ]) {
    expect((await ask(sent, { store, of })).messages).toEqual(sent)
  }
})

describe('what was sampled', () => {
  const idsOf = async (answer: Answer, sent = answer.content ?? '') => {
    const store = open()
    await turn([user('hi')], answer, { store })
    const { replies } = await ask([user('hi'), says(sent)], { store })
    return replies[1] && [textOf([...replies[1].ids]), replies[1].rest]
  }
  const letters = (text: string) => [...text].map((letter) => letter.codePointAt(0) as number)

  test('all of it where the length ended it, without the token where one stopped it', async () => {
    expect(await idsOf({ content: 'abc', sampled: letters('abc'), end: { reason: 'length' } })).toEqual(['abc', ''])
    expect(await idsOf({ content: 'abc', sampled: [...letters('abc'), STOP] })).toEqual(['abc', ''])
    // A constraint may end an answer without any such token.
    expect(await idsOf({ content: 'abc', sampled: letters('abc') })).toEqual(['abc', ''])
  })

  test('up to the stop string, and what is visible behind the last whole token', async () => {
    const end = { reason: 'stop', stopString: 'END' } as const
    expect(await idsOf({ content: 'abc', sampled: letters('abcEND'), end })).toEqual(['abc', ''])
    const kept = async (content: string, tokens: readonly string[]) => {
      const { transcript } = await ask([user('hi')], { store: open() })
      const options = { opening: '', begun: '', transcript, scope, eosTokenIds: [EOS], stopTokenIds: [] }
      const found: string[] = []
      const events = answered({ content, sampled: tokens.map((_, i) => i + 1), end })
      for await (const _ of recordReplies(events, {
        ...options,
        bytesOf: (id) => Buffer.from(tokens[id - 1] as string, 'latin1'),
        keep: ({ ids, rest }) => found.push(`${ids.join()}+${rest}`),
      })) {
        // The events pass.
      }
      return found
    }
    expect(await kept('abc', ['ab', 'cEND'])).toEqual(['1+c'])
    expect(await kept('aé', ['a\xc3', '\xa9', 'END'])).toEqual(['1,2+'])
    expect(await kept('aéc', ['a', '\xc3', '\xa9cEND'])).toEqual(['1+éc'])
  })

  test('nothing of a request that did not finish, of an empty answer, or of one that went on behind its end', async () => {
    expect(await idsOf({ content: 'abc', finish: false })).toBeUndefined()
    expect(await idsOf({ content: ' \n' })).toBeUndefined()
    expect(await idsOf({ content: 'ab', sampled: [97, EOS, 98], end: { reason: 'length' } })).toBeUndefined()
  })
})
