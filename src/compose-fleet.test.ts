// A fleet as a whole: the program over servers that are simulated truly, through the routes of clients and of operators.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Program } from './compose.js'
import { composeFleet } from './compose-fleet.js'
import { makeConfig } from './config.js'
import { type MockUpstream, mockUpstream } from './testing/mock-upstream.js'

let program: Program | undefined
let ups: MockUpstream[] = []
let url = ''
let dataDir = ''

beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), 'refrain-fleet-'))
})

afterEach(async () => {
  await program?.stop(0)
  await Promise.all(ups.map((up) => up.close()))
  rmSync(dataDir, { recursive: true, force: true })
  program = undefined
  ups = []
})

async function open(count: number, flags: Readonly<Record<string, unknown>> = {}) {
  ups = await Promise.all(Array.from({ length: count }, () => mockUpstream()))
  const backends = ups.map((up) => ({ url: up.url }))
  program = await composeFleet(makeConfig({ flags: { 'server.port': 0, dataDir, backends, ...flags } }))
  url = await program.start()
  for (const up of ups) await until(async () => (await backend(up.url)).state === 'up')
}

async function until(holds: () => Promise<boolean>) {
  for (let tries = 0; tries < 3000; tries++) {
    if (await holds()) return
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error('it never came true')
}

async function call(method: string, path: string, body?: unknown, headers: Record<string, string> = {}) {
  const response = await fetch(url + path, {
    method,
    headers: { ...(body !== undefined && { 'content-type': 'application/json' }), ...headers },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  })
  const value = (await response.json()) as Record<string, unknown>
  return { status: response.status, value, route: response.headers.get('x-refrain-route') ?? '' }
}

const pathOf = (id: string) => `/v1/backends/${encodeURIComponent(id)}`
const backend = async (id: string) => (await call('GET', pathOf(id))).value

const HEAD = { role: 'system', content: 'You are careful. '.repeat(120) }
const chat = (text: string, more: object = {}) => ({
  model: 'mock',
  messages: [HEAD, { role: 'user', content: text }],
  max_tokens: 2,
  ...more,
})
const ask = (text: string, session?: string) =>
  call('POST', '/v1/chat/completions', chat(text), session === undefined ? {} : { 'x-refrain-session': session })

describe('a fleet', () => {
  test('a session stays where it was, and a dry run says so without sending anything', async () => {
    await open(2)
    const first = await ask('one', 's1')
    const home = first.route.split(';')[0]
    const dry = await call('POST', '/v1/route', chat('one more'), { 'x-refrain-session': 's1' })
    expect(dry.value).toMatchObject({ object: 'route', backend: home, model: 'mock', session: 's1' })
    expect(dry.value['predicted_hit_tokens']).toBeGreaterThan(100)
    expect(dry.value['scores']).toHaveLength(2)
    expect(ups.map(({ counts }) => counts.requests).reduce((a, b) => a + b)).toBe(1)
    for (let turn = 0; turn < 4; turn++) expect((await ask(`turn ${turn}`, 's1')).route.split(';')[0]).toBe(home)
  })

  test('sessions return home after the router was started anew', async () => {
    await open(2)
    const homes = new Map<string, string>()
    for (const session of ['s1', 's2', 's3']) homes.set(session, (await ask('one', session)).route.split(';')[0] ?? '')
    await program?.stop(0)
    const backends = ups.map((up) => ({ url: up.url })).reverse()
    program = await composeFleet(makeConfig({ flags: { 'server.port': 0, dataDir, backends } }))
    url = await program.start()
    for (const up of ups) await until(async () => (await backend(up.url))['state'] === 'up')
    for (const [session, home] of homes) expect((await ask('one', session)).route.split(';')[0]).toBe(home)
  })

  test('a session that is released is unknown, and an unknown one cannot be', async () => {
    await open(2)
    await ask('one', 's/1')
    const path = `/v1/sessions/${encodeURIComponent('s/1')}/route`
    expect(await call('DELETE', path)).toMatchObject({ status: 200, value: { id: 's/1', deleted: true } })
    expect(await call('DELETE', path)).toMatchObject({ status: 404 })
  })

  test('each backend is measured, and one that is gone is not', async () => {
    await open(2)
    const [a, b] = ups.map((up) => up.url) as [string, string]
    await ask('one')
    await call('DELETE', pathOf(b))
    const text = await (await fetch(`${url}/metrics`)).text()
    expect(text).toContain(`refrain_backend_up{backend="${a}",state="up"} 1`)
    expect(text).toContain(`refrain_backend_requests_in_flight{backend="${a}"} 0`)
    expect(text).toContain('refrain_llama_slot_moves_total{what="saved"} 0')
    expect(text).not.toContain(b)
  })

  test('a drained backend gets nothing until undrain', async () => {
    await open(2)
    const [a, b] = ups as [MockUpstream, MockUpstream]
    expect((await call('POST', `${pathOf(a.url)}/drain`)).value).toMatchObject({ id: a.url, state: 'draining' })
    for (let i = 0; i < 4; i++) await ask(`question ${i}`)
    expect([a.counts.requests, b.counts.requests]).toEqual([0, 4])
    await call('POST', `${pathOf(b.url)}/drain`)
    expect(await ask('nobody is left')).toMatchObject({ status: 500, value: { error: { code: 'engine_failed' } } })
    expect((await call('POST', `${pathOf(a.url)}/undrain`)).value).toMatchObject({ state: 'up' })
    expect(await ask('again')).toMatchObject({ status: 200 })
    expect(a.counts.requests).toBe(1)
  })

  test('a drained backend is drained after a restart, until it is undrained or taken out', async () => {
    await open(3)
    const urls = ups.map((up) => up.url)
    const [one, two, three] = urls as [string, string, string]
    const again = async (backends: readonly string[]) => {
      await program?.stop(0)
      const flags = { 'server.port': 0, dataDir, backends: backends.map((each) => ({ url: each })) }
      program = await composeFleet(makeConfig({ flags }))
      url = await program.start()
      for (const each of backends) await until(async () => (await backend(each)).state !== 'starting')
    }
    for (const each of urls) await call('POST', `${pathOf(each)}/drain`)
    await call('POST', `${pathOf(two)}/undrain`)
    await call('DELETE', pathOf(three))
    await again([one, two])
    expect((await backend(one)).state).toBe('draining')
    expect((await backend(two)).state).toBe('up')
    for (const text of ['a', 'b', 'c']) expect((await ask(text)).route.split(';')[0]).toBe(two)
    expect((await call('POST', '/v1/backends', { url: three })).status).toBe(201)
    await until(async () => (await backend(three)).state === 'up')
    await call('POST', `${pathOf(one)}/undrain`)
    await again([one, two])
    expect((await backend(one)).state).toBe('up')
  })

  test('backends come and go while it runs; what cannot be one is refused by its field', async () => {
    await open(1)
    const other = await mockUpstream()
    ups.push(other)
    const added = await call('POST', '/v1/backends', { url: other.url, name: 'other' })
    expect(added).toMatchObject({ status: 201, value: { id: 'other', source: 'api' } })
    await until(async () => (await backend('other'))['state'] === 'up')
    expect((await call('DELETE', pathOf(ups[0]!.url))).status).toBe(200)
    expect(await ask('who is there')).toMatchObject({ status: 200 })
    expect(other.counts.requests).toBe(1)
    expect((await call('GET', '/v1/backends')).value['data']).toHaveLength(1)
    const refused = async (body: unknown) => (await call('POST', '/v1/backends', body)).value['error']
    expect(await refused({ url: other.url, name: 'other' })).toMatchObject({ param: 'name' })
    expect(await refused({ url: 'ftp://x' })).toMatchObject({ param: 'url' })
    expect(await refused({ url: other.url, kind: 'what' })).toMatchObject({ param: 'kind' })
    expect(await refused({ url: other.url, what: 1 })).toMatchObject({ param: 'what' })
    const long = 'é/'.repeat(60)
    expect((await call('DELETE', pathOf(long))).value['error']).toMatchObject({
      message: expect.stringContaining(long),
    })
  })

  test('a watched file brings and takes backends; SIGHUP reads the config again', async () => {
    ups = await Promise.all([mockUpstream(), mockUpstream(), mockUpstream()])
    const [a, b, c] = ups.map((up) => up.url) as [string, string, string]
    const file = join(dataDir, 'more')
    writeFileSync(file, `${b}\n`)
    const flags = { 'server.port': 0, dataDir, 'fleet.watch': file, 'fleet.watchMs': 20 }
    const again = () => makeConfig({ flags: { ...flags, backends: [{ url: c }] } })
    program = await composeFleet(makeConfig({ flags: { ...flags, backends: [{ url: a }] } }), { again })
    url = await program.start()
    const ids = async () => ((await call('GET', '/v1/backends')).value['data'] as { id: string }[]).map(({ id }) => id)
    await until(async () => (await ids()).join() === [a, b].join())
    process.emit('SIGHUP')
    await until(async () => (await ids()).join() === [b, c].join())
    writeFileSync(file, '[]')
    await until(async () => (await ids()).join() === c)
  })

  test('one that dies is down, its sessions go elsewhere, and it is used again when it is back', async () => {
    await open(2, { 'fleet.probeMs': 50, 'fleet.downProbeMs': 20 })
    const home = (await ask('one', 's1')).route.split(';')[0]
    const dead = ups.find((up) => up.url === home) as MockUpstream
    await dead.close()
    expect(await ask('two', 's1')).toMatchObject({ status: 200 })
    await until(async () => (await backend(dead.url))['state'] === 'down')
    expect((await backend(dead.url))['reason']).toMatch(/ECONNREFUSED|refused/i)
    const ready = (await call('GET', '/ready')).value
    expect(ready).toMatchObject({ status: 'ready', notes: [expect.stringContaining(dead.url)] })
    ups.push(await mockUpstream({ port: Number(new URL(dead.url).port) }))
    await until(async () => (await backend(dead.url))['state'] === 'up')
  })

  test('the routes are described, and those of operators need an admin', async () => {
    const tenants = [
      { name: 'a', key: 'key-of-a-tenant' },
      { name: 'root', key: 'key-of-an-admin', admin: true },
    ]
    ups = [await mockUpstream()]
    const backends = ups.map((up) => ({ url: up.url }))
    program = await composeFleet(makeConfig({ flags: { 'server.port': 0, dataDir, backends, tenants } }))
    url = await program.start()
    const { paths } = (await call('GET', '/openapi.json')).value as { paths: Record<string, object> }
    expect(Object.keys(paths)).toEqual(
      expect.arrayContaining(['/v1/backends', '/v1/backends/{id}', '/v1/backends/{id}/drain', '/v1/route']),
    )
    const as = (key: string) => ({ authorization: `Bearer ${key}` })
    expect((await call('GET', '/v1/backends', undefined, as('key-of-a-tenant'))).status).toBe(403)
    expect((await call('GET', '/v1/backends', undefined, as('key-of-an-admin'))).status).toBe(200)
    expect((await call('POST', '/v1/route', chat('x'), as('key-of-a-tenant'))).status).toBe(403)
  })
})
