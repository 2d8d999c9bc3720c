// Who may come in: keys and tenants, the loopback rules that keep web pages out, and what is bound where.

import { afterEach, describe, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { ConfigError, makeConfig } from '../config.js'
import { type Note, note, type RequestSettled, requestSettled } from '../core/signals.js'
import { chat, post, scriptedProgram } from '../testing/scripted-program.js'
import { isLoopback } from './gate.js'

let program: Program
afterEach(() => program?.stop(0))

const get = async (url: string, headers: Record<string, string> = {}) => {
  const reply = await program.server.app.inject({ method: 'GET', url, headers })
  return { status: reply.statusCode, json: reply.json.bind(reply) }
}

describe('without keys on loopback', () => {
  test.each([
    [{ host: '127.0.0.1:8080' }, 200],
    [{ host: 'localhost' }, 200],
    [{ host: '[::1]:9' }, 200],
    [{ host: 'LOCALHOST:1' }, 200],
    [{ host: 'evil.example' }, 403],
    [{ host: 'localhost.evil.example' }, 403],
    [{ host: '127.0.0.1.evil.example' }, 403],
    [{ origin: 'http://localhost:3000' }, 200],
    [{ origin: 'https://127.0.0.1' }, 200],
    [{ origin: 'null' }, 403],
    [{ origin: 'https://evil.example' }, 403],
    [{ origin: 'http://localhost:3000@evil.example' }, 403],
    [{ origin: 'http://localhost.evil.example' }, 403],
  ])('%j is answered with %i', async (headers, status) => {
    program = await scriptedProgram()
    expect((await get('/v1/models', headers)).status).toBe(status)
    expect((await get('/health', headers)).status).toBe(status)
  })

  test('a body that a web page could send without asking is refused', async () => {
    program = await scriptedProgram()
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=x']) {
      const reply = await post(program, '/v1/chat/completions', chat(), { 'content-type': type })
      expect(reply.status).toBe(415)
      expect(reply.json().error.code).toBe('unsupported_media_type')
    }
    const compressed = await post(program, '/v1/chat/completions', chat(), { 'content-encoding': 'gzip' })
    expect(compressed.status).toBe(415)
    const charset = await post(program, '/v1/chat/completions', chat(), {
      'content-type': 'application/json; charset=utf-8',
    })
    expect(charset.status).toBe(200)
  })

  test('an admin route is open, a key that is sent all the same does no harm', async () => {
    program = await scriptedProgram()
    expect((await get('/v1/cache', { authorization: 'Bearer unused' })).status).toBe(200)
  })
})

describe('with keys', () => {
  const tenants = [
    { name: 'team', key: 'key-of-the-team' },
    { name: 'ops', key: 'key-of-the-admins', admin: true },
  ]
  const as = (key: string) => ({ authorization: `Bearer ${key}` })

  test('a wrong or absent key is 401, whatever it looks like', async () => {
    program = await scriptedProgram({ tenants })
    const wrong = ['', 'Bearer', 'Bearer ', 'Bearer key-of-the-tea', 'Basic key-of-the-team', 'Bearer key-of-the-teamx']
    for (const authorization of wrong) expect((await get('/v1/models', { authorization })).status).toBe(401)
    const none = await get('/v1/models')
    expect(none.status).toBe(401)
    expect(none.json().error).toMatchObject({ code: 'unauthorized', type: 'authentication_error' })
    expect((await get('/health')).status).toBe(200)
    expect((await get('/ready')).status).toBe(200)
  })

  test("a key opens what is a tenant's, an admin's also the cache", async () => {
    program = await scriptedProgram({ tenants })
    expect((await get('/v1/models', as('key-of-the-team'))).status).toBe(200)
    expect((await get('/v1/models', { 'x-api-key': 'key-of-the-team' })).status).toBe(200)
    expect((await get('/v1/cache', as('key-of-the-team'))).status).toBe(403)
    expect((await get('/v1/cache', as('key-of-the-admins'))).status).toBe(200)
    expect((await post(program, '/v1/cache/warm', chat(), as('key-of-the-team'))).status).toBe(403)
    expect((await get('/metrics')).status).toBe(200)
  })

  test('metrics need an admin once the server can be reached from elsewhere', async () => {
    program = await scriptedProgram({ tenants, 'server.host': '0.0.0.0' })
    expect((await get('/metrics')).status).toBe(401)
    expect((await get('/metrics', as('key-of-the-team'))).status).toBe(403)
    expect((await get('/metrics', as('key-of-the-admins'))).status).toBe(200)
    expect((await get('/v1/models', { ...as('key-of-the-team'), host: 'models.example' })).status).toBe(200)
  })

  test('two tenants never share a hit, one does with itself, and not across salts', async () => {
    program = await scriptedProgram({ tenants })
    const cached = async (key: string, more: object = {}) => {
      const reply = await post(program, '/v1/chat/completions', chat('same '.repeat(200), more), as(key))
      return reply.json().usage.prompt_tokens_details.cached_tokens
    }
    expect(await cached('key-of-the-team')).toBe(0)
    expect(await cached('key-of-the-team')).toBeGreaterThan(0)
    expect(await cached('key-of-the-admins')).toBe(0)
    expect(await cached('key-of-the-team', { cache_salt: 'mine' })).toBe(0)
    expect(await cached('key-of-the-team', { cache_salt: 'mine' })).toBeGreaterThan(0)
    expect(await cached('key-of-the-team', { cache_salt: 'yours' })).toBe(0)
  })

  test('a refused request is not read: its body may be anything', async () => {
    program = await scriptedProgram({ tenants, 'limits.bodyBytes': 100 })
    expect((await post(program, '/v1/chat/completions', 'x'.repeat(1000))).status).toBe(401)
  })

  test('keys are in no signal and in no answer', async () => {
    const seen: (Note | RequestSettled)[] = []
    const stops = [note.subscribe((each) => seen.push(each)), requestSettled.subscribe((each) => seen.push(each))]
    program = await scriptedProgram({ tenants })
    const replies = [
      await post(program, '/v1/chat/completions', chat(), as('key-of-the-team')),
      await post(program, '/v1/chat/completions', '{', as('key-of-the-team')),
      await post(program, '/v1/chat/completions', chat(), as('key-of-nobody')),
    ]
    for (const stop of stops) stop()
    expect(seen.length).toBeGreaterThan(0)
    expect(JSON.stringify([seen, replies.map(({ headers, text }) => [headers, text])])).not.toMatch(/key-of-/)
  })
})

describe('where it may be bound', () => {
  test('elsewhere without keys only when that is said', () => {
    const elsewhere = { 'server.host': '0.0.0.0' }
    expect(() => makeConfig({ flags: elsewhere })).toThrow(ConfigError)
    expect(() => makeConfig({ flags: elsewhere })).toThrow(/allowUnauthenticated/)
    expect(makeConfig({ flags: { ...elsewhere, 'server.allowUnauthenticated': true } }).server.host).toBe('0.0.0.0')
    expect(makeConfig({ flags: { ...elsewhere, tenants: [{ name: 'a', key: 'a-long-key' }] } })).toBeDefined()
  })

  test('loopback is an address of this machine, by name or number', () => {
    for (const host of ['127.0.0.1', '127.8.8.8', 'localhost', '::1', '[::1]']) expect(isLoopback(host)).toBe(true)
    for (const host of ['0.0.0.0', '::', '10.0.0.1', 'example.org', '127.0.0.1.nip.io', '']) {
      expect(isLoopback(host)).toBe(false)
    }
  })
})
