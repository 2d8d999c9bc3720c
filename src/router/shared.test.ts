// News and sessions through a real redis-server: heard, kept, dropped while it is away, and made up for when it is back.

import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, test } from 'vitest'
import { systemClock } from '../core/clock.js'
import { note } from '../core/signals.js'
import { until } from '../testing/processes.js'
import { hasRedis, type RedisServer, redisServer } from '../testing/redis.js'
import type { SessionRecord } from './session-store.js'
import { openShared, type Shared, type SharedOptions } from './shared.js'

const closing: (() => Promise<void>)[] = []

afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})

const canSign = (() => {
  try {
    execFileSync('openssl', ['version'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
})()

async function server(options: Parameters<typeof redisServer>[0] = {}): Promise<RedisServer> {
  const redis = await redisServer(options)
  closing.push(() => redis.close())
  return redis
}

interface Open {
  readonly shared: Shared
  readonly news: string[]
  readonly records: SessionRecord[]
}

function open(redis: Pick<RedisServer, 'url'>, more: Partial<SharedOptions> = {}): Open {
  const news: string[] = []
  const records: SessionRecord[] = []
  const shared = openShared(
    { url: redis.url, prefix: 'test:', ttlMs: 60_000, sessions: 1000, clock: systemClock, ...more },
    { news: (text) => void news.push(text), sessions: (some) => void records.push(...some) },
  )
  closing.push(() => shared.close())
  return { shared, news, records }
}

const record = (key: string): SessionRecord => ({ key, member: 'a', scope: 's', tail: 't', tokens: 5 })

function notes() {
  const said: string[] = []
  const stop = note.subscribe(({ level, text }) => void said.push(`${level}: ${text}`))
  closing.push(async () => stop())
  return said
}

describe.skipIf(!hasRedis)('through redis (needs redis-server on the PATH)', () => {
  test('all with one prefix hear each other and themselves, others do not', async () => {
    const redis = await server()
    const [one, two, other] = [open(redis), open(redis), open(redis, { prefix: 'other:' })]
    await until(() => [one, two, other].every(({ shared }) => shared.isUp))
    one.shared.send('hello')
    await until(() => two.news.length === 1 && one.news.length === 1)
    other.shared.send('elsewhere')
    await until(() => other.news.length === 1)
    expect([one.news, two.news, other.news]).toEqual([['hello'], ['hello'], ['elsewhere']])
  })

  test('sessions are there for those that come later, until they are forgotten', async () => {
    const redis = await server()
    const one = open(redis)
    await one.shared.tried()
    await until(() => one.shared.isUp)
    const all = Array.from({ length: 700 }, (_, i) => record(`k${i}`))
    one.shared.keep(all)
    one.shared.keep([{ ...record('k1'), member: 'b', head: 'h', headTokens: 3 }])
    one.shared.forget(['k0'])
    one.shared.send('done')
    await until(() => one.news.length === 1)
    const late = open(redis)
    await until(() => late.records.length >= 699)
    expect(new Set(late.records.map(({ key }) => key)).size).toBe(699)
    expect(late.records.find(({ key }) => key === 'k1')).toMatchObject({ member: 'b', head: 'h', headTokens: 3 })
  })

  test('while it is away all is dropped and counted, and told once; sessions are written when it is back', async () => {
    const redis = await server()
    const said = notes()
    const one = open(redis)
    const two = open(redis)
    await until(() => one.shared.isUp && two.shared.isUp)
    await redis.kill()
    await until(() => !one.shared.isUp && !two.shared.isUp)
    for (let i = 0; i < 10; i++) one.shared.send('lost')
    one.shared.keep([record('late')])
    await new Promise((resolve) => setTimeout(resolve, 500))
    expect(one.shared.counts).toMatchObject({ lost: 10, outages: 1 })
    await redis.start()
    await until(() => one.shared.isUp && two.shared.isUp)
    one.shared.send('again')
    await until(() => two.news.includes('again'))
    expect(two.news).toEqual(['again'])
    const late = open(redis)
    await until(() => late.records.some(({ key }) => key === 'late'))
    expect(said.filter((text) => text.startsWith('warn'))).toHaveLength(2)
    expect(said.filter((text) => /^info.*is back/.test(text))).toHaveLength(2)
  })

  test('one that stands still is taken to be away, until it goes on', async () => {
    const redis = await server()
    const one = open(redis)
    await until(() => one.shared.isUp)
    redis.pause()
    await until(() => !one.shared.isUp)
    const before = performance.now()
    one.shared.send('lost')
    // It waits for no answer: that would be seconds.
    expect(performance.now() - before).toBeLessThan(1000)
    redis.resume()
    await until(() => one.shared.isUp)
  })

  test('a password is used, and a wrong one is said without it', async () => {
    const redis = await server({ password: 'the-password' })
    const said = notes()
    const wrong = open(redis, { password: 'not-that' })
    await wrong.shared.tried()
    await until(() => said.length > 0)
    expect(wrong.shared.isUp).toBe(false)
    expect(said.join()).toMatch(/fleet\.shared/)
    expect(said.join()).not.toContain('not-that')
    const right = open(redis, { password: 'the-password' })
    await until(() => right.shared.isUp)
    const inUrl = open({ url: redis.url.replace('//', '//:the-password@') })
    await until(() => inUrl.shared.isUp)
  })

  test.skipIf(!canSign)('over TLS, to a server that the given authority vouches for (needs openssl)', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'refrain-tls-'))
    closing.push(async () => rmSync(folder, { recursive: true, force: true }))
    const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')]
    const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1']
    const how = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2']
    execFileSync('openssl', [...how, '-keyout', key, '-out', cert, ...subject], { stdio: 'ignore' })
    const redis = await server({ tls: { cert, key } })
    const trusting = open(redis, { tls: { ca: cert } })
    await until(() => trusting.shared.isUp)
    const strange = open(redis)
    await strange.shared.tried()
    expect(strange.shared.isUp).toBe(false)
    // Whatever a connection that ends in its handshake still tells, nothing is thrown.
    for (let i = 0; i < 40; i++) {
      const brief = open(redis)
      await new Promise((resolve) => setTimeout(resolve, (7 * i) % 23))
      await brief.shared.close()
    }
    const careless = open(redis, { tls: { verify: false } })
    await until(() => careless.shared.isUp)
  })
})

test('where nobody listens it is tried on, and nothing waits or throws', async () => {
  const said = notes()
  const one = open({ url: 'redis://user:secret@127.0.0.1:1' })
  await one.shared.tried()
  one.shared.send('x')
  one.shared.keep([record('k')])
  expect(one.shared.counts).toMatchObject({ sent: 0, lost: 1, outages: 1 })
  expect(said.join()).toMatch(/redis:\/\/127\.0\.0\.1:1 is not reached, routing goes on/)
  expect(said.join()).not.toContain('secret')
})
