// Several router processes behind one port, as their user starts them: the built program over simulated servers. Every
// request comes on a connection of its own, so that the turns of a session come to all processes.

import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { Agent, type IncomingMessage, request } from 'node:http'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { composeFleet } from './compose-fleet.js'
import { makeConfig } from './config.js'
import { type MockUpstream, mockUpstream } from './testing/mock-upstream.js'
import { childrenOf, isRunning, until } from './testing/processes.js'
import { hasRedis, redisServer } from './testing/redis.js'
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

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'refrain-cluster-'))
})

afterEach(async () => {
  await served?.end('SIGKILL')
  await Promise.all(ups.splice(0).map((up) => up.close()))
  rmSync(folder, { recursive: true, force: true })
  served = undefined
})

async function mocks(count: number): Promise<MockUpstream[]> {
  const started = await Promise.all(Array.from({ length: count }, () => mockUpstream({ rate: 200_000 })))
  ups.push(...started)
  return started
}

async function stub(): Promise<StubUpstream> {
  const started = await startStub()
  ups.push({ close: () => started.kill() })
  return started
}

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

async function open(processes: number, urls: readonly string[], fleet = ''): Promise<Served> {
  const args = ['--config', configOf(urls, fleet), '--data-dir', join(folder, 'data'), '--processes', String(processes)]
  served = await serve(args)
  await everywhere(processes, async () => (await call('GET', '/ready')).status === 200)
  return served
}

/** In each process: new connections come to one after the other; one that was just killed breaks its own. */
async function everywhere(processes: number, holds: () => Promise<boolean>): Promise<void> {
  for (let i = 0; i < 2 * processes; i++) await until(() => holds().catch(() => false))
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

describe.skipIf(!isBuilt)('several processes (needs npm run build)', () => {
  test('every turn is sent home, whether sessions are named or not, also under load', async () => {
    const servers = await mocks(4)
    const urls = servers.map(({ url }) => url)
    await open(3, urls)
    const all = await Promise.all(Array.from({ length: 16 }, (_, i) => converse(i, 6, i % 2 === 0)))
    // Whoever does not know of the turn before takes the next one for a new session's.
    const later = all.flatMap((routes) => routes.slice(1))
    expect(later.filter((route) => /reason="(new head|overlap|replicated hot head|home is gone)/.test(route))).toEqual(
      [],
    )
    // Of what was sent before nothing is computed again, but a head on as many servers as got it.
    const computed = servers.reduce((sum, { counts }) => sum + counts.promptTokens - counts.cachedTokens, 0)
    const sent = servers.reduce((sum, { counts }) => sum + counts.promptTokens, 0)
    expect(computed / sent).toBeLessThan(0.4)
    expect(await metric('refrain_requests_total{route="/v1/chat/completions",status="200"')).toBe(16 * 6)
    expect(await metric('refrain_router_news_total{what="heard"}')).toBeGreaterThan(16 * 6)
    expect(await metric('refrain_router_news_total{what="bad"}')).toBe(0)
  })

  test('what an operator changes in one of them is so in all, also in one that comes later; limits hold over all', async () => {
    const [one, two] = (await mocks(2)) as [MockUpstream, MockUpstream]
    await open(2, [one.url])
    const states = async () => {
      const { text } = await call('GET', '/v1/backends')
      const { data } = JSON.parse(text) as { data: { id: string; state: string }[] }
      return data.map(({ id, state }) => `${id} ${state}`).sort()
    }
    const isSo = (expected: readonly string[]) => async () =>
      JSON.stringify(await states()) === JSON.stringify([...expected].sort())
    expect((await call('POST', '/v1/backends', { body: { url: two.url } })).status).toBe(201)
    await everywhere(2, isSo([`${one.url} up`, `${two.url} up`]))
    expect((await call('POST', `${pathOf(one.url)}/drain`)).status).toBe(200)
    await everywhere(2, isSo([`${one.url} draining`, `${two.url} up`]))
    // One dies. A connection on its way to it is closed, not kept waiting; those that came to the other one are answered.
    const [victim] = childrenOf(served?.pid as number) as [number]
    process.kill(victim, 'SIGSTOP')
    const calls = Array.from({ length: 4 }, () =>
      call('GET', '/health').then(
        ({ status }) => status,
        () => 'closed',
      ),
    )
    const settled: unknown[] = []
    for (const each of calls) void each.then((end) => settled.push(end))
    await until(() => settled.length === 3)
    process.kill(victim, 'SIGKILL')
    expect((await Promise.all(calls)).toSorted()).toEqual([200, 200, 200, 'closed'])
    // The one that takes its place knows of it.
    await until(() => served?.log().includes('is back') === true)
    await everywhere(2, isSo([`${one.url} draining`, `${two.url} up`]))
    expect((await call('POST', `${pathOf(one.url)}/undrain`)).status).toBe(200)
    expect((await call('DELETE', pathOf(two.url))).status).toBe(200)
    await everywhere(2, isSo([`${one.url} up`]))
    configOf([one.url, two.url])
    process.kill(served?.pid as number, 'SIGHUP')
    await everywhere(2, isSo([`${one.url} up`, `${two.url} up`]))

    const body = { model: 'mock', messages: [{ role: 'user', content: 'x' }] }
    await call('POST', '/v1/chat/completions', { body, session: 'gone' })
    await until(async () => (await call('DELETE', '/v1/sessions/gone/route')).status === 200)
    await everywhere(2, async () => (await call('DELETE', '/v1/sessions/gone/route')).status === 404)

    const statuses: number[] = []
    for (let i = 0; i < 3 * LIMIT; i++) {
      statuses.push((await call('POST', '/v1/chat/completions', { body, key: LIMITED })).status)
    }
    const passed = statuses.filter((status) => status === 200).length
    expect(new Set(statuses)).toEqual(new Set([200, 429]))
    // While one batch is on its way another process may let one more in; and a minute's share comes back meanwhile.
    expect(passed).toBeGreaterThanOrEqual(LIMIT)
    expect(passed).toBeLessThanOrEqual(LIMIT + 5)
  })

  test('one that is killed breaks its own streams only, and is started again; a drain lets streams end, and sessions go home after it; all end with their owner', async () => {
    const up = await stub()
    const [one, two] = (await mocks(2)) as [MockUpstream, MockUpstream]
    const count = 8
    const held: (() => void)[] = []
    const holding: StubUpstream['answer'] = (_request, response) => {
      beginStream(response)
      response.write(ROLE + chunk({ content: 'one ' }))
      held.push(() => {
        response.end(`${chunk({ content: 'two' })}${chunk({}, 'stop')}data: [DONE]\n\n`)
      })
    }
    up.answer = holding
    const { pid } = await open(2, [one.url, two.url, up.url])
    const body = { model: 'm', stream: true, messages: [{ role: 'user', content: 'x' }] }
    const streams = Array.from({ length: count }, (_, i) =>
      call('POST', '/v1/chat/completions', { body, session: `s${i}` }).catch(() => 'reset' as const),
    )
    await until(() => held.length === count)
    const before = childrenOf(pid)
    expect(before).toHaveLength(2)
    process.kill(before[0] as number, 'SIGKILL')
    await until(() => up.aborted > 0)
    for (const release of held) release()
    const ends = await Promise.all(streams)
    const whole = ends.filter((end) => end !== 'reset' && !end.broken && end.text.endsWith('data: [DONE]\n\n'))
    const broken = ends.filter((end) => end === 'reset' || end.broken)
    expect(whole.length + broken.length).toBe(count)
    expect(Math.min(whole.length, broken.length)).toBeGreaterThan(0)
    for (const end of broken) if (end !== 'reset') expect(end.text).not.toContain('[DONE]')

    // Whoever asks meanwhile is answered by the other one, and by the new one once that can.
    up.answer = saying(['hi'])
    const statuses: number[] = []
    const isBack = () => childrenOf(pid).filter((child) => child !== before[0]).length === 2
    const isAsked = () => served?.log().includes('is back') === true
    for (let more = 20; more > 0; ) {
      const whole = { ...body, stream: false }
      statuses.push(
        await call('POST', '/v1/chat/completions', { body: whole }).then(
          ({ status }) => status,
          () => 0,
        ),
      )
      if (isBack() && isAsked()) more--
    }
    expect(new Set(statuses)).toEqual(new Set([200]))
    await everywhere(2, async () => (await call('GET', '/ready')).status === 200)
    // Nothing of the one that died counts as under way.
    await everywhere(2, async () => (await call('GET', pathOf(up.url))).text.includes('"in_flight":0'))

    held.length = 0
    up.answer = holding
    const homes: (string | undefined)[] = []
    for (let session = 0; session < 6; session++) homes.push((await converse(session, 2, true)).map(memberOf)[1])
    const drained = Array.from({ length: 4 }, () => call('POST', '/v1/chat/completions', { body }))
    await until(() => held.length === 4)
    const ended = served?.end('SIGTERM')
    await until(() => served?.log().includes('draining') === true)
    for (const release of held) release()
    for (const { text } of await Promise.all(drained)) expect(text.endsWith('data: [DONE]\n\n')).toBe(true)
    expect(await ended).toBe(0)
    const again = await open(2, [one.url, two.url])
    for (const [session, home] of homes.entries()) {
      const [route] = await converse(session, 1, true)
      expect(memberOf(route as string)).toBe(home)
    }
    const after = childrenOf(again.pid)
    expect(after).toHaveLength(2)
    await again.end('SIGKILL')
    await until(() => after.every((child) => !isRunning(child)))
  })

  test.skipIf(!hasRedis)('they share with other machines through redis (needs redis-server on the PATH)', async () => {
    const redis = await redisServer()
    ups.push(redis)
    const urls = (await mocks(3)).map(({ url }) => url)
    await open(2, urls, `, shared: "${redis.url}"`)
    const flags = {
      'server.port': 0,
      dataDir: join(folder, 'elsewhere'),
      backends: urls.map((url) => ({ url, kind: 'vllm' })),
      tenants: [{ name: 'all', key: ADMIN, admin: true }],
      'fleet.shared': redis.url,
    }
    const elsewhere = await composeFleet(makeConfig({ flags }))
    ups.push({ close: () => elsewhere.stop(0) })
    const there = { url: await elsewhere.start() }
    await until(async () => (await metric('refrain_router_news_total{what="redis-up"')) === 1)
    await until(async () => (await call('GET', '/ready', { at: there.url })).status === 200)
    const messages = [{ role: 'user', content: words(1, 300) }]
    const homes = new Set<string>()
    for (let turn = 0; turn < 8; turn++) {
      const body = { model: 'mock', messages, max_tokens: 1 }
      const at = turn % 3 === 2 ? there : {}
      const { status, route } = await call('POST', '/v1/chat/completions', { body, ...at })
      expect(status).toBe(200)
      if (turn > 0) expect(route).toContain('reason="session"')
      homes.add(memberOf(route))
      messages.push({ role: 'assistant', content: 'a' }, { role: 'user', content: words(turn, 40) })
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    expect(homes.size).toBe(1)
  })

  test('what keeps one from starting ends the whole, as it would one alone', async () => {
    const taken = createServer().listen(0, '127.0.0.1')
    ups.push({ close: async () => void taken.close() })
    await once(taken, 'listening')
    const { port } = taken.address() as AddressInfo
    const args = ['--workers', '127.0.0.1:1', '--processes', '2', '--data-dir', folder, '--port', String(port)]
    const fault: unknown = await serve(args).catch((error: unknown) => error)
    expect(String(fault)).toMatch(/code 2.*refrain: bind EADDRINUSE/s)
    // The other process, which asks an owner that is gone, has nothing to add.
    expect(String(fault)).not.toContain('EPIPE')
    await expect(serve(['--processes', '2', '--scripted'])).rejects.toThrow(/code 2.*fleet\.processes/s)
  })
})
