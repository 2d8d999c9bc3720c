// Routers on several machines as one fleet: programs that have nothing in common but a redis-server. What it carries lets a
// session go home from wherever it is asked for; without it everybody goes on alone.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'iovalkey'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Program } from './compose.js'
import { composeFleet } from './compose-fleet.js'
import { makeConfig } from './config.js'
import { type MockUpstream, mockUpstream } from './testing/mock-upstream.js'
import { until } from './testing/processes.js'
import { hasRedis, type RedisServer, redisServer } from './testing/redis.js'

const KEY = 'key-of-the-tenant'
const TENANT = 'tenant-by-name'
const LIMIT = 12

let redis: RedisServer
let ups: MockUpstream[] = []
const machines: { readonly url: string; readonly program: Program; readonly dataDir: string }[] = []

beforeEach(async () => {
  redis = await redisServer()
  ups = await Promise.all(Array.from({ length: 3 }, () => mockUpstream()))
})

afterEach(async () => {
  for (const { program, dataDir } of machines.splice(0)) {
    await program.stop(0)
    rmSync(dataDir, { recursive: true, force: true })
  }
  await Promise.all(ups.map((up) => up.close()))
  await redis.close()
})

async function machine(more: Readonly<Record<string, unknown>> = {}): Promise<string> {
  const dataDir = mkdtempSync(join(tmpdir(), 'refrain-machine-'))
  const flags = {
    'server.port': 0,
    dataDir,
    backends: ups.map(({ url }) => ({ url, kind: 'vllm' })),
    tenants: [{ name: TENANT, key: KEY, admin: true, requestsPerMinute: 1000, ...more }],
    'fleet.shared': redis.url,
  }
  const program = await composeFleet(makeConfig({ flags }))
  const url = await program.start()
  machines.push({ url, program, dataDir })
  await until(async () => (await news(url, 'redis-up')) === 1)
  const isUp = async () => {
    const { data } = (await (await ask(url, 'GET', '/v1/backends')).json()) as { data: { state: string }[] }
    return data.every(({ state }) => state === 'up')
  }
  await until(isUp)
  return url
}

function ask(url: string, method: string, path: string, body?: object, session?: string) {
  const headers = {
    authorization: `Bearer ${KEY}`,
    ...(body && { 'content-type': 'application/json' }),
    ...(session !== undefined && { 'x-session-id': session }),
  }
  return fetch(url + path, { method, headers, ...(body && { body: JSON.stringify(body) }) })
}

async function news(url: string, what: string): Promise<number> {
  const text = await (await ask(url, 'GET', '/metrics')).text()
  return Number(new RegExp(`refrain_router_news_total\\{what="${what}"\\} (\\S+)`).exec(text)?.[1] ?? 0)
}

const words = (seed: number, count: number) =>
  Array.from({ length: count }, (_, i) => ((seed * 7919 + i * i * 31) % 9973).toString(36)).join(' ')

class Conversation {
  readonly messages: { role: string; content: string }[]
  readonly session: string | undefined

  constructor(seed: number, session?: string) {
    this.session = session
    this.messages = [
      { role: 'system', content: words(seed % 3, 300) },
      { role: 'user', content: words(100 + seed, 100) },
    ]
  }

  /** Where it went, and why. @throws Error where it was not answered. */
  async turn(url: string): Promise<{ member: string; route: string }> {
    const body = { model: 'mock', messages: this.messages, max_tokens: 1 }
    const response = await ask(url, 'POST', '/v1/chat/completions', body, this.session)
    if (response.status !== 200) throw new Error(`${response.status} ${await response.text()}`)
    await response.arrayBuffer()
    this.messages.push({ role: 'assistant', content: 'a' }, { role: 'user', content: words(this.messages.length, 60) })
    const route = response.headers.get('x-refrain-route') ?? ''
    // The news travel while a client thinks.
    await new Promise((resolve) => setTimeout(resolve, 100))
    return { member: route.split(';')[0] ?? '', route }
  }
}

describe.skipIf(!hasRedis)('several machines (needs redis-server on the PATH)', () => {
  test('send sessions home from wherever they come, and so does one that comes later', async () => {
    const [one, two] = [await machine(), await machine()]
    const conversations = [new Conversation(1, 'named'), new Conversation(2), new Conversation(3), new Conversation(4)]
    const homes: string[] = []
    for (const each of conversations) homes.push((await each.turn(one)).member)
    for (let round = 0; round < 3; round++) {
      for (const [i, each] of conversations.entries()) {
        const { member, route } = await each.turn(round % 2 === 0 ? two : one)
        expect(member).toBe(homes[i])
        expect(route).toContain('reason="session"')
      }
    }
    const late = await machine()
    const { member, route } = await (conversations[0] as Conversation).turn(late)
    expect([member, route]).toEqual([homes[0], expect.stringContaining('reason="session"')])
    expect(await news(two, 'bad')).toBe(0)
  })

  test('go on alone while redis is away, and agree again when it is back', async () => {
    const [one, two] = [await machine(), await machine()]
    const known = new Conversation(1, 'known')
    const { member: home } = await known.turn(one)
    await redis.kill()
    const alone = new Conversation(2, 'alone')
    const { member: other } = await alone.turn(one)
    for (const url of [one, two, one, two]) expect((await known.turn(url)).member).toBe(home)
    await until(async () => (await news(one, 'redis-up')) + (await news(two, 'redis-up')) === 0)
    expect(await news(one, 'redis-outages')).toBe(1)
    await redis.start()
    await until(async () => (await news(one, 'redis-up')) + (await news(two, 'redis-up')) === 2)
    // What was placed meanwhile was kept for later.
    await until(async () => (await alone.turn(two)).member === other)
    const fresh = new Conversation(3, 'fresh')
    const { member } = await fresh.turn(two)
    expect((await fresh.turn(one)).member).toBe(member)
  })

  test('hold limits together', async () => {
    const urls = [await machine({ requestsPerMinute: LIMIT }), await machine({ requestsPerMinute: LIMIT })]
    const body = { model: 'mock', messages: [{ role: 'user', content: 'x' }] }
    let passed = 0
    for (let i = 0; i < 3 * LIMIT; i++) {
      const response = await ask(urls[i % 2] as string, 'POST', '/v1/chat/completions', body)
      if (response.status === 200) passed++
      else expect([response.status, response.headers.get('retry-after') !== null]).toEqual([429, true])
    }
    // One may pass while the news of another is on its way; and a minute's share comes back meanwhile.
    expect(passed).toBeGreaterThanOrEqual(LIMIT)
    expect(passed).toBeLessThanOrEqual(LIMIT + 4)
  })

  test('say nothing there that a client said, nor who it is', async () => {
    const heard: string[] = []
    const spy = new Redis(redis.url)
    const listener = new Redis(redis.url)
    await listener.psubscribe('*')
    listener.on('pmessage', (_pattern, _channel, text: string) => void heard.push(text))
    const [one, two] = [await machine(), await machine()]
    const secret = new Conversation(1, 'session-by-name')
    secret.messages[0] = { role: 'system', content: 'sesame '.repeat(200) }
    await secret.turn(one)
    await secret.turn(two)
    const keys = await spy.keys('*')
    const values = keys.length === 0 ? [] : await spy.mget(keys)
    spy.disconnect()
    listener.disconnect()
    const all = [...heard, ...keys, ...values].join('\n')
    expect(ups.some(({ url }) => all.includes(url))).toBe(true)
    expect(keys.length).toBeGreaterThan(0)
    for (const word of ['sesame', 'session-by-name', TENANT, KEY, '"mock"']) expect(all).not.toContain(word)
  })
})
