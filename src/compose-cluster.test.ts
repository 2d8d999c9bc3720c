// Several router processes behind one port, as their user starts them: the built program over simulated servers. Every
// request comes on a connection of its own, so that the turns of a session come to all processes. A start takes seconds, so
// that most tests are of one.

import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { Agent, type IncomingMessage, request } from 'node:http'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { composeFleet } from './compose-fleet.js'
import { makeConfig } from './config.js'
import { type MockUpstream, mockUpstream } from './testing/mock-upstream.js'
import { childrenOf, isRunning, until } from './testing/processes.js'
import { hasRedis, type RedisServer, redisServer } from './testing/redis.js'
import { isBuilt, type Served, serve } from './testing/served.js'
import { beginStream, chunk, ROLE, type StubUpstream, saying, startStub } from './testing/stub-upstream.js'

// Each process takes its time to start where others use the machine.
vi.setConfig({ testTimeout: 120_000 })

const ADMIN = 'key-of-the-admin'
const LIMITED = 'key-of-the-limited'
/** Of the limited tenant, in a minute. */
const LIMIT = 10

let folder = ''
let served: Served | undefined
const ups: { close(): Promise<void> }[] = []

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'refrain-cluster-'))
})

afterAll(async () => {
  await served?.end('SIGKILL')
  await Promise.all(ups.splice(0).map((up) => up.close()))
  rmSync(folder, { recursive: true, force: true })
})

/** `fleet`: more of that section. Nobody waits here for the first requests to be fast: nothing is warmed up. */
function configOf(urls: readonly string[], fleet = ''): string {
  const file = join(folder, 'config.yaml')
  const tenants = `tenants: [{ name: all, key: ${ADMIN}, admin: true }, { name: some, key: ${LIMITED}, requestsPerMinute: ${LIMIT} }]`
  writeFileSync(
    file,
    `backends: [${urls.map((url) => `{ url: "${url}", kind: vllm }`).join(', ')}]\n${tenants}\nfleet: { warmUp: false${fleet} }\n`,
  )
  return file
}

async function open(urls: readonly string[], fleet = ''): Promise<Served> {
  const args = ['--config', configOf(urls, fleet), '--data-dir', join(folder, 'data'), '--processes', '2']
  served = await serve(args)
  await everywhere(async () => (await call('GET', '/ready')).status === 200)
  return served
}

/** In both processes: new connections come to one after the other; one that was just killed breaks its own. */
async function everywhere(holds: () => Promise<boolean>): Promise<void> {
  for (let i = 0; i < 4; i++) await until(() => holds().catch(() => false))
}

interface Called {
  readonly status: number
  readonly route: string
  readonly text: string
  /** It ended before it was whole. */
  readonly broken: boolean
}

/** Where the process that answers was found by a connection of its own. */
function call(method: string, path: string, more: { body?: object; key?: string; session?: string; at?: string } = {}) {
  const { body, key = ADMIN, session, at = served?.url } = more
  const agent = new Agent({ keepAlive: false })
  return new Promise<Called>((resolve, reject) => {
    const headers = {
      authorization: `Bearer ${key}`,
      ...(body && { 'content-type': 'application/json' }),
      ...(session !== undefined && { 'x-session-id': session }),
    }
    const sent = request(`${at}${path}`, { method, headers, agent }, (response: IncomingMessage) => {
      let text = ''
      const settle = (broken: boolean) =>
        resolve({
          status: response.statusCode ?? 0,
          route: String(response.headers['x-refrain-route'] ?? ''),
          text,
          broken,
        })
      response.on('data', (bytes) => {
        text += bytes
      })
      response.on('end', () => settle(false))
      response.on('error', () => settle(true))
    })
    sent.on('error', reject)
    sent.end(body && JSON.stringify(body))
  })
}

const words = (seed: number, count: number) =>
  Array.from({ length: count }, (_, i) => ((seed * 7919 + i * i * 31) % 9973).toString(36)).join(' ')

/** A conversation: every turn is asked once the last one is answered. */
async function converse(session: number, turns: number, named: boolean) {
  const messages = [
    { role: 'system', content: words(session % 3, 400) },
    { role: 'user', content: words(100 + session, 60) },
  ]
  const routes: string[] = []
  for (let turn = 0; turn < turns; turn++) {
    const body = { model: 'mock', messages, max_tokens: 1 }
    const called = await call('POST', '/v1/chat/completions', { body, ...(named && { session: `s${session}` }) })
    if (called.status !== 200) throw new Error(`${called.status} ${called.text}`)
    routes.push(called.route)
    messages.push({ role: 'assistant', content: 'a' }, { role: 'user', content: words(1000 + 50 * session + turn, 40) })
  }
  return routes
}

const memberOf = (route: string) => route.split(';')[0] ?? ''
const pathOf = (id: string) => `/v1/backends/${encodeURIComponent(id)}`

async function metric(name: string): Promise<number> {
  const { text } = await call('GET', '/metrics')
  const lines = text.split('\n').filter((line) => line.startsWith(name))
  return lines.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0)
}

const get = async (path: string) => JSON.parse((await call('GET', path)).text)

/** Each backend and how it is. */
async function states(): Promise<string[]> {
  const { data } = (await get('/v1/backends')) as { data: { id: string; state: string }[] }
  return data.map(({ id, state }) => `${id} ${state}`).sort()
}

const areSo = (expected: readonly string[]) => async () =>
  JSON.stringify(await states()) === JSON.stringify([...expected].sort())

// One start for all: each test goes on from where the one before has left it.
describe.skipIf(!isBuilt)('two processes (needs npm run build)', { retry: 0 }, () => {
  const mocks: MockUpstream[] = []
  let redis: RedisServer | undefined
  /** The only one that has the model `m`. */
  let stub: StubUpstream
  let pid = 0
  const chat = { model: 'm', messages: [{ role: 'user', content: 'x' }] }

  beforeAll(async () => {
    mocks.push(...(await Promise.all(Array.from({ length: 4 }, () => mockUpstream({ rate: 200_000 })))))
    stub = await startStub()
    redis = hasRedis ? await redisServer() : undefined
    ups.push(...mocks, { close: () => stub.kill() }, ...(redis === undefined ? [] : [redis]))
    const fleet = `, breakerFailures: 2, breakerMs: 60000${redis === undefined ? '' : `, shared: "${redis.url}"`}`
    const urls = mocks.map(({ url }) => url)
    pid = (await open(urls, fleet)).pid
  }, 120_000)

  test('every turn is sent home, whether sessions are named or not, also under load', async () => {
    const all = await Promise.all(Array.from({ length: 16 }, (_, i) => converse(i, 6, i % 2 === 0)))
    // Whoever does not know of the turn before takes the next one for a new session's.
    const later = all.flatMap((routes) => routes.slice(1))
    expect(later.filter((route) => /reason="(new head|overlap|replicated hot head|home is gone)/.test(route))).toEqual(
      [],
    )
    // Of what was sent before nothing is computed again, but a head on as many servers as got it.
    const computed = mocks.reduce((sum, { counts }) => sum + counts.promptTokens - counts.cachedTokens, 0)
    const sent = mocks.reduce((sum, { counts }) => sum + counts.promptTokens, 0)
    expect(computed / sent).toBeLessThan(0.4)
    expect(await metric('refrain_requests_total{route="/v1/chat/completions",status="200"')).toBe(16 * 6)
    expect(await metric('refrain_router_news_total{what="heard"}')).toBeGreaterThan(16 * 6)
    expect(await metric('refrain_router_news_total{what="bad"}')).toBe(0)
  })

  test('each explains all turns, and shows all of them on its page', async () => {
    for (let i = 0; i < 4; i++) {
      const { data, missing } = await get('/v1/sessions/s0/turns')
      expect(missing).toBeUndefined()
      const turns = data as { turn: number; status: string; miss: { reason: string } | null }[]
      expect(turns.map(({ turn, status }) => `${turn} ${status}`)).toEqual([1, 2, 3, 4, 5, 6].map((n) => `${n} done`))
      expect(turns.flatMap(({ miss }) => (miss === null ? [] : [miss.reason]))).toEqual(['first_seen'])
      expect(await get('/v1/sessions/s0/turns/3/explain')).toMatchObject({ session: 's0', turn: 3, miss: null })
      expect((await get('/v1/explain/sessions')).data).toHaveLength(16)
    }
    const requests = ({ series }: { series: number[][] }) => series.reduce((sum, row) => sum + (row[1] as number), 0)
    const feed = await get('/v1/dashboard/feed')
    expect(feed).toMatchObject({ reset: true, missing: [], server: { processes: 2, explains: true } })
    expect(feed.sessions).toHaveLength(16)
    expect(feed.backends).toHaveLength(4)
    expect(requests(feed)).toBe(16 * 6)
    // Told by whichever process is asked, what came to whichever.
    await converse(20, 2, true)
    // Sessions are looked at twice a second.
    await until(async () => {
      const { reset, sessions } = await get(`/v1/dashboard/feed?since=${feed.cursor}`)
      expect(reset).toBe(false)
      return sessions.length === 1 && sessions[0].session === 's20' && sessions[0].turns === 2
    })
    expect(requests(await get('/v1/dashboard/feed'))).toBe(16 * 6 + 2)
    expect((await get('/v1/dashboard/sessions/s20/turns')).turns).toHaveLength(2)
  })

  test.skipIf(!hasRedis)('they share with other machines through redis (needs redis-server on the PATH)', async () => {
    const flags = {
      'server.port': 0,
      dataDir: join(folder, 'elsewhere'),
      backends: mocks.map(({ url }) => ({ url, kind: 'vllm' })),
      tenants: [{ name: 'all', key: ADMIN, admin: true }],
      'fleet.shared': redis?.url,
    }
    const elsewhere = await composeFleet(makeConfig({ flags }))
    try {
      const there = { at: await elsewhere.start() }
      await until(async () => (await metric('refrain_router_news_total{what="redis-up"')) === 1)
      await until(async () => (await call('GET', '/ready', there)).status === 200)
      const messages = [{ role: 'user', content: words(1, 300) }]
      const homes = new Set<string>()
      for (let turn = 0; turn < 8; turn++) {
        const body = { model: 'mock', messages, max_tokens: 1 }
        const { status, route } = await call('POST', '/v1/chat/completions', { body, ...(turn % 3 === 2 && there) })
        expect(status).toBe(200)
        if (turn > 0) expect(route).toContain('reason="session"')
        homes.add(memberOf(route))
        messages.push({ role: 'assistant', content: 'a' }, { role: 'user', content: words(turn, 40) })
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
      expect(homes.size).toBe(1)
    } finally {
      await elsewhere.stop(0)
    }
  })

  test('what an operator changes in one of them is so in both; what fails in one is left alone by both', async () => {
    const [one, two, ...others] = mocks.map(({ url }) => url) as [string, string, ...string[]]
    const rest = others.map((url) => `${url} up`)
    expect((await call('DELETE', pathOf(two))).status).toBe(200)
    expect((await call('POST', '/v1/backends', { body: { url: stub.url, kind: 'vllm' } })).status).toBe(201)
    await everywhere(areSo([`${one} up`, `${stub.url} up`, ...rest]))
    expect((await call('POST', `${pathOf(one)}/drain`)).status).toBe(200)
    await everywhere(areSo([`${one} draining`, `${stub.url} up`, ...rest]))

    stub.answer = (_request, response) => {
      response.writeHead(500).end('{}')
    }
    // One of them has two failures, the other at most one.
    for (let i = 0; i < 3; i++) await call('POST', '/v1/chat/completions', { body: chat })
    await everywhere(areSo([`${one} draining`, `${stub.url} down`, ...rest]))
    await everywhere(async () => (await get(pathOf(stub.url))).reason.includes('the circuit is open'))
    expect((await call('DELETE', pathOf(stub.url))).status).toBe(200)
    configOf([...mocks.map(({ url }) => url), stub.url])
    process.kill(pid, 'SIGHUP')
    await everywhere(areSo([`${one} draining`, `${two} up`, `${stub.url} up`, ...rest]))
  })

  test('one that stands still is named, not waited for; killed, it breaks its own streams only, and is started again', async () => {
    const count = 8
    const held: (() => void)[] = []
    stub.answer = holdingAt(held)
    const streams = Array.from({ length: count }, (_, i) =>
      call('POST', '/v1/chat/completions', { body: { ...chat, stream: true }, session: `held${i}` }).catch(
        () => 'reset' as const,
      ),
    )
    await until(() => held.length === count)
    const before = childrenOf(pid)
    expect(before).toHaveLength(2)
    const [victim] = before as [number]
    process.kill(victim, 'SIGSTOP')
    // A connection on its way to it is closed, not kept waiting; those that came to the other one are answered.
    const calls = Array.from({ length: 4 }, () =>
      call('GET', '/health').then(
        ({ status }) => status,
        () => 'closed',
      ),
    )
    const settled: unknown[] = []
    for (const each of calls) void each.then((end) => settled.push(end))
    await until(() => settled.length === 3)
    const { data, missing } = await get('/v1/explain/sessions')
    expect(missing).toEqual([expect.stringMatching(/^router process [01]$/)])
    expect(data.length).toBeGreaterThanOrEqual(17)
    expect((await get('/v1/dashboard/feed')).missing).toEqual(missing)
    process.kill(victim, 'SIGKILL')
    expect((await Promise.all(calls)).toSorted()).toEqual([200, 200, 200, 'closed'])
    await until(() => stub.aborted > 0)
    for (const release of held) release()
    const ends = await Promise.all(streams)
    const whole = ends.filter((end) => end !== 'reset' && !end.broken && end.text.endsWith('data: [DONE]\n\n'))
    const broken = ends.filter((end) => end === 'reset' || end.broken)
    expect(whole.length + broken.length).toBe(count)
    expect(Math.min(whole.length, broken.length)).toBeGreaterThan(0)
    for (const end of broken) if (end !== 'reset') expect(end.text).not.toContain('[DONE]')

    // Whoever asks meanwhile is answered by the other one, and by the new one once that can.
    stub.answer = saying(['hi'])
    const statuses: number[] = []
    const isBack = () => childrenOf(pid).filter((child) => child !== victim).length === 2
    const isAsked = () => served?.log().includes('is back') === true
    for (let more = 8; more > 0; ) {
      statuses.push(
        await call('POST', '/v1/chat/completions', { body: chat }).then(
          ({ status }) => status,
          () => 0,
        ),
      )
      if (isBack() && isAsked()) more--
    }
    expect(new Set(statuses)).toEqual(new Set([200]))
    await everywhere(async () => (await call('GET', '/ready')).status === 200)
    // Nothing of the one that died counts as under way, and the one that takes its place knows what was changed before it.
    await everywhere(async () => (await call('GET', pathOf(stub.url))).text.includes('"in_flight":0'))
    const one = (mocks[0] as MockUpstream).url
    await everywhere(async () => (await states()).includes(`${one} draining`))
    await everywhere(async () => (await get('/v1/explain/sessions')).missing === undefined)
    expect((await call('POST', `${pathOf(one)}/undrain`)).status).toBe(200)
    await everywhere(async () => (await states()).includes(`${one} up`))
  })

  test('sessions are forgotten and limits hold over both', async () => {
    // A process that was not told of it yet answers 404, and all forget it the same.
    await until(async () => {
      await call('POST', '/v1/chat/completions', { body: { ...chat, model: 'mock' }, session: 'gone' })
      return (await call('DELETE', '/v1/sessions/gone/route')).status === 200
    })
    await everywhere(async () => (await call('DELETE', '/v1/sessions/gone/route')).status === 404)

    const statuses: number[] = []
    for (let i = 0; i < 3 * LIMIT; i++) {
      statuses.push((await call('POST', '/v1/chat/completions', { body: chat, key: LIMITED })).status)
    }
    const passed = statuses.filter((status) => status === 200).length
    expect(new Set(statuses)).toEqual(new Set([200, 429]))
    // While one batch is on its way another process may let one more in; and a minute's share comes back meanwhile.
    expect(passed).toBeGreaterThanOrEqual(LIMIT)
    expect(passed).toBeLessThanOrEqual(LIMIT + 5)
  })

  test('a drain lets streams end, and sessions go home after it; all end with their owner', async () => {
    const held: (() => void)[] = []
    stub.answer = holdingAt(held)
    const homes: (string | undefined)[] = []
    for (let session = 0; session < 6; session++) {
      await converse(30 + session, 2, true)
      // Until both have been told, and say the same.
      await until(async () => {
        const seen: string[] = []
        for (let i = 0; i < 4; i++) seen.push(...(await converse(30 + session, 1, true)).map(memberOf))
        homes[session] = seen[0]
        return new Set(seen).size === 1
      })
    }
    const drained = Array.from({ length: 4 }, () =>
      call('POST', '/v1/chat/completions', { body: { ...chat, stream: true } }),
    )
    await until(() => held.length === 4)
    const ended = served?.end('SIGTERM')
    await until(() => served?.log().includes('draining') === true)
    for (const release of held) release()
    for (const { text } of await Promise.all(drained)) expect(text.endsWith('data: [DONE]\n\n')).toBe(true)
    expect(await ended).toBe(0)
    // Without redis: what is known is known from the data folder.
    const again = await open(mocks.map(({ url }) => url))
    await everywhere(areSo(mocks.map(({ url }) => `${url} up`)))
    for (const [session, home] of homes.entries()) {
      const [route] = await converse(30 + session, 1, true)
      expect(memberOf(route as string)).toBe(home)
    }
    const after = childrenOf(again.pid)
    expect(after).toHaveLength(2)
    await again.end('SIGKILL')
    await until(() => after.every((child) => !isRunning(child)))
  })
})

test.skipIf(!isBuilt)('what keeps one process from starting ends the whole (needs npm run build)', async () => {
  const taken = createServer().listen(0, '127.0.0.1')
  ups.push({ close: async () => void taken.close() })
  await once(taken, 'listening')
  const { port } = taken.address() as AddressInfo
  const args = ['--workers', '127.0.0.1:1', '--processes', '2', '--port', String(port)]
  const fault: unknown = await serve([...args, '--data-dir', join(folder, 'taken')]).catch((error: unknown) => error)
  expect(String(fault)).toMatch(/code 2.*refrain: bind EADDRINUSE/s)
  // The other process, which asks an owner that is gone, has nothing to add.
  expect(String(fault)).not.toContain('EPIPE')
  await expect(serve(['--processes', '2', '--scripted'])).rejects.toThrow(/code 2.*fleet\.processes/s)
})

/** Streams that begin and end when they are released. */
function holdingAt(held: (() => void)[]): StubUpstream['answer'] {
  return (_request, response) => {
    beginStream(response)
    response.write(ROLE + chunk({ content: 'one ' }))
    held.push(() => {
      response.end(`${chunk({ content: 'two' })}${chunk({}, 'stop')}data: [DONE]\n\n`)
    })
  }
}
