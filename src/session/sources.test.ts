// Verdicts: whoever revokes is heard, whoever cannot be asked counts as a no, and nobody is asked twice for the same.

import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, expect, test, vi } from 'vitest'
import { createMemoryLog } from './log/memory.js'
import { policyUrl } from './policy-url.js'
import { type AskPolicy, SourcePolicy, type SourceRules, type Verdict } from './sources.js'

const newLog = () => createMemoryLog({ limits: { sessionEvents: 9, sessionBytes: 999, sources: 9 }, maxBytes: 9999 })
const rules: SourceRules = { unknown: 'auto', policyFault: 'revoked', policyTtlMs: 1000 }
const put = (source: string, state: Verdict) => ({ source, state, at: 1 })

test('without anybody to ask what was put counts, and what was not put is seen', async () => {
  const policy = new SourcePolicy(rules, { log: newLog() })
  await policy.set('acme', put('b', 'revoked'))
  await policy.set('acme', put('c', 'granted'))
  expect(await policy.verdicts('acme', ['c', 'b', 'a'])).toEqual({ a: 'granted', b: 'revoked', c: 'granted' })
  expect(await policy.verdicts('other', ['b'])).toEqual({ b: 'granted' })
  await policy.set('acme', put('b', 'granted'))
  expect(await policy.verdicts('acme', ['b'])).toEqual({ b: 'granted' })
  expect(await policy.grants('acme')).toEqual([put('b', 'granted'), put('c', 'granted')])
  const closed = new SourcePolicy({ ...rules, unknown: 'revoked' }, { log: newLog() })
  expect(await closed.verdicts('acme', ['a'])).toEqual({ a: 'revoked' })
})

test('what was put outlives the policy that held it', async () => {
  const log = newLog()
  await new SourcePolicy(rules, { log }).set('acme', put('a', 'revoked'))
  expect(await new SourcePolicy(rules, { log }).verdicts('acme', ['a'])).toEqual({ a: 'revoked' })
})

test('revoked by either is revoked; what nobody knows is too, where somebody is asked', async () => {
  const says = new Map<string, Verdict>([
    ['yes', 'granted'],
    ['no', 'revoked'],
    ['put-no', 'granted'],
    ['put-yes-no', 'revoked'],
  ])
  const policy = new SourcePolicy(rules, { log: newLog(), ask: async () => says })
  for (const source of ['put-yes', 'put-yes-no']) await policy.set('acme', put(source, 'granted'))
  await policy.set('acme', put('put-no', 'revoked'))
  expect(await policy.verdicts('acme', ['yes', 'no', 'put-no', 'put-yes-no', 'put-yes', 'unknown'])).toEqual({
    ...{ yes: 'granted', no: 'revoked', 'put-no': 'revoked' },
    ...{ 'put-yes-no': 'revoked', 'put-yes': 'granted', unknown: 'revoked' },
  })
})

test('who gives no answer counts as a no, or as silence where the config says so', async () => {
  const ask: AskPolicy = () => Promise.reject(new Error('is away'))
  const closed = new SourcePolicy(rules, { log: newLog(), ask })
  await closed.set('acme', put('b', 'granted'))
  expect(await closed.verdicts('acme', ['a', 'b'])).toEqual({ a: 'revoked', b: 'revoked' })
  const open = new SourcePolicy({ ...rules, policyFault: 'granted' }, { log: newLog(), ask })
  await open.set('acme', put('b', 'granted'))
  expect(await open.verdicts('acme', ['a', 'b'])).toEqual({ a: 'revoked', b: 'granted' })
  expect(await closed.verdicts('acme', [])).toEqual({})
})

test('answers count for a while, by tenant; who asks at the same time waits for the same answer', async () => {
  let now = 0
  const ask = vi.fn<AskPolicy>(async (_, sources) => new Map(sources.map((source) => [source, 'granted'])))
  const policy = new SourcePolicy(rules, { log: newLog(), ask, now: () => now })
  await Promise.all([policy.verdicts('acme', ['a', 'b']), policy.verdicts('acme', ['a', 'b'])])
  await policy.verdicts('acme', ['b', 'c'])
  await policy.verdicts('other', ['a'])
  expect(ask.mock.calls).toEqual([
    ['acme', ['a', 'b']],
    ['acme', ['c']],
    ['other', ['a']],
  ])
  now = 1001
  await policy.verdicts('acme', ['a'])
  expect(ask.mock.calls.at(-1)).toEqual(['acme', ['a']])
  policy.forget('acme')
  await policy.verdicts('acme', ['a'])
  expect(ask).toHaveBeenCalledTimes(5)
})

// --- over HTTP ----------------------------------------------------------------------------------------------------------

let server: Server | undefined
afterEach(async () => {
  server?.closeAllConnections()
  await new Promise((resolve) => (server === undefined ? resolve(0) : server.close(resolve)))
})

async function answering(status: number, body: string | undefined): Promise<{ url: string; bodies: string[] }> {
  const bodies: string[] = []
  server = createServer((request, response) => {
    let text = ''
    request.on('data', (part) => {
      text += part
    })
    request.on('end', () => {
      bodies.push(text)
      if (body !== undefined) response.writeHead(status, { location: '/elsewhere' }).end(body)
    })
  })
  await new Promise<void>((resolve) => server?.listen(0, '127.0.0.1', resolve))
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/policy`, bodies }
}

test('the policy URL is asked by POST and believed about what it was asked', async () => {
  const { url, bodies } = await answering(200, '{"granted":["a","b","z"],"revoked":["b"]}')
  const answer = await policyUrl({ url, timeoutMs: 5000 })('acme', ['a', 'b', 'c'])
  expect(bodies.map((body) => JSON.parse(body))).toEqual([{ tenant: 'acme', sources: ['a', 'b', 'c'] }])
  expect([...answer]).toEqual([
    ['a', 'granted'],
    ['b', 'revoked'],
  ])
})

test.each([
  [500, '{"granted":["a"]}'],
  [302, '{"granted":["a"]}'],
  [200, 'yes'],
  [200, '{"granted":"a"}'],
  [200, 'null'],
  [200, ' '.repeat(5_000_000)],
  [200, undefined],
])('status %i with what is no answer is a fault', async (status, body) => {
  const { url } = await answering(status, body)
  await expect(policyUrl({ url, timeoutMs: body === undefined ? 50 : 5000 })('acme', ['a'])).rejects.toThrow()
})
