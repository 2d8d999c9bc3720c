// Session keys, by hand and over every recorded request of real clients.

import { describe, expect, test } from 'vitest'
import { hasRecordings, lowerHeaders, recordings } from '../testing/recordings.js'
import { checkSignals, DEFAULT_SIGNALS, sessionSignal } from './session-signal.js'

const of = (headers: Record<string, string>, body: Record<string, unknown> = {}) => sessionSignal(headers, body)

describe('the order', () => {
  test.each([
    ['our own header goes first', { 'x-refrain-session': 'own', 'session-id': 's' }, {}, 'own'],
    ['headers go before the body', { 'x-session-id': 'h' }, { prompt_cache_key: 'b' }, 'h'],
    ['an empty header is no signal', { 'x-refrain-session': ' ' }, { prompt_cache_key: 'b' }, 'b'],
    ['Amp', { 'x-amp-thread-id': 'T-1' }, {}, 'T-1'],
    ['OpenCode at its own provider', { 'x-opencode-session': 'ses_1' }, {}, 'ses_1'],
    ['Hermes at xAI', { 'x-grok-conv-id': 'g' }, {}, 'g'],
    ['Open WebUI', { 'x-openwebui-chat-id': 'c', 'x-openwebui-user-id': 'u' }, {}, 'c'],
    ['older Codex', { session_id: 'old' }, {}, 'old'],
    ['DashScope', {}, { metadata: { sessionId: 'd', promptId: 'p' } }, 'd'],
    ['conversation as a text', {}, { conversation: 'conv_1' }, 'conv_1'],
    ['conversation as an object', {}, { conversation: { id: 'conv_2' } }, 'conv_2'],
  ])('%s', (_, headers, body, session) => {
    expect(of(headers as Record<string, string>, body)).toEqual({ session })
  })

  test('what names one request is no session', () => {
    expect(of({ 'x-client-request-id': 'r', 'x-request-id': 'q' }, { previous_response_id: 'resp_1' })).toEqual({})
  })

  test('can be configured, but not to nonsense', () => {
    expect(sessionSignal({ 'x-team': 't' }, { user: 'u' }, ['body:user', 'x-team'])).toEqual({ session: 'u' })
    expect(() => checkSignals(['x-client-request-id'])).toThrow(/names a single request/)
    expect(() => checkSignals(['X-Upper'])).toThrow(/neither a header/)
    expect(() => checkSignals(['body:'])).toThrow(/neither a header/)
    expect(checkSignals(DEFAULT_SIGNALS)).toBe(DEFAULT_SIGNALS)
  })
})

describe('Claude Code', () => {
  const uuid = '0aa7b2a4-2a3c-4b3e-9d1a-3f1f0e0c9d11'
  test.each([
    ['as JSON', JSON.stringify({ device_id: 'd', account_uuid: '', session_id: uuid })],
    ['as a suffix', `user_ab12_account__session_${uuid}`],
  ])('packs the session into the user id %s', (_, user_id) => {
    expect(of({}, { metadata: { user_id } })).toEqual({ session: uuid })
  })

  test.each(['someone@example.com', '{broken', '{"other":1}', '_session_'])('%s is no session', (user_id) => {
    expect(of({}, { metadata: { user_id } })).toEqual({})
  })

  test('a sub-agent has a key of its own and a parent, nested ones too', () => {
    const headers = { 'x-claude-code-session-id': 's', 'x-claude-code-agent-id': 'a' }
    expect(of(headers)).toEqual({ session: 's/a', parentSession: 's' })
    expect(of({ ...headers, 'x-claude-code-parent-agent-id': 'p' })).toEqual({ session: 's/a', parentSession: 's/p' })
  })
})

describe('hostile values', () => {
  test('a long key becomes a short one, the same for the same key', () => {
    const { session } = of({}, { prompt_cache_key: 'k'.repeat(100_000) })
    expect(session).toMatch(/^sha256:[0-9a-f]{64}$/)
    expect(of({}, { prompt_cache_key: 'k'.repeat(100_000) })).toEqual({ session })
  })

  test.each([1, null, {}, [], { id: 1 }, true])('%j is no key', (value) => {
    expect(of({}, { prompt_cache_key: value, conversation: value, metadata: value })).toEqual({})
  })

  test('inherited names are no fields', () => {
    expect(sessionSignal({}, {}, ['body:constructor.name', 'body:__proto__.x'])).toEqual({})
  })
})

describe.skipIf(!hasRecordings)('recorded requests (needs ../shared)', () => {
  const all = recordings().filter(({ path }) => !path.includes('count_tokens'))
  const signalOf = (recording: (typeof all)[number]) => sessionSignal(lowerHeaders(recording), recording.body)

  test('there are some', () => expect(all.length).toBeGreaterThan(250))

  test('a conversation keeps one key over all its turns and its resumption', () => {
    for (const run of new Set(all.map(({ client, run }) => `${client} ${run}`))) {
      const own = all.filter((each) => `${each.client} ${each.run}` === run && each.class === 'main')
      if (own.length === 0) continue
      const keys = new Set(own.map((each) => signalOf(each).session))
      expect([run, keys.size]).toEqual([run, 1])
    }
  })

  test('Codex: threads are sessions; sub-agents, forks and reviews know whose they are; titles stand alone', () => {
    for (const each of all.filter(({ client }) => client === 'codex')) {
      const headers = lowerHeaders(each)
      const { session, parentSession } = signalOf(each)
      expect(session).toBe(headers['thread-id'])
      const isChild = each.class === 'sub-agent' || each.class === 'review'
      expect([each.name, parentSession]).toEqual([each.name, isChild ? headers['session-id'] : undefined])
      // The body alone says the same, where a proxy drops the headers.
      expect(sessionSignal({}, each.body)).toEqual({ session, ...(parentSession && { parentSession }) })
    }
  })

  test('OpenCode: side requests carry the main key, sub-agents name their parent', () => {
    const own = all.filter(({ client }) => client === 'opencode')
    for (const each of own.filter(({ class: kind }) => kind !== 'sub-agent')) {
      expect(signalOf(each)).toEqual({ session: lowerHeaders(each)['x-session-id'] })
    }
    for (const each of own.filter(({ class: kind }) => kind === 'sub-agent')) {
      const parent = own.find(({ run, class: kind }) => run === each.run && kind === 'main')
      expect(signalOf(each).parentSession).toBe(parent && signalOf(parent).session)
    }
  })

  test('Qwen Code and the libraries send none, but for a prompt_cache_key', () => {
    for (const each of all.filter(({ client }) => client !== 'codex' && client !== 'opencode')) {
      const key = each.body['prompt_cache_key']
      expect([each.name, signalOf(each)]).toEqual([each.name, key === undefined ? {} : { session: key }])
    }
  })
})
