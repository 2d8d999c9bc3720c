// What a server elsewhere is, found out by asking; with which key, over which connection.

import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, test } from 'vitest'
import { startStub } from '../../testing/stub-upstream.js'
import type { Remote, RemoteOptions } from './contract.js'
import { openRemote } from './open-remote.js'

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end()
})

const LIMITS = { connectMs: 1000, askMs: 1000 }

function remoteOf(url: string, more: Partial<RemoteOptions> = {}): Remote {
  const remote = openRemote(
    {
      url,
      kind: 'auto',
      forwardAuthorization: false,
      headers: {},
      shared: false,
      priority: false,
      models: {},
      ...more,
    },
    LIMITS,
  )
  ends.push(() => remote.close())
  return remote
}

type Routes = Readonly<Record<string, unknown>>

/** Answers `GET path` with JSON; everything else is a 404. */
function listener(routes: Routes, seen: IncomingMessage[] = []) {
  return (request: IncomingMessage, response: ServerResponse) => {
    seen.push(request)
    const value = routes[`${request.method} ${request.url}`]
    response.writeHead(value === undefined ? 404 : 200, { 'content-type': 'application/json' })
    response.end(JSON.stringify(value ?? { detail: 'Not Found' }))
  }
}

async function listening(server: Server, scheme = 'http'): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', () => resolve()))
  ends.push(() => {
    server.closeAllConnections()
    server.close()
  })
  return `${scheme}://127.0.0.1:${(server.address() as AddressInfo).port}`
}

const models = (owner: string | undefined) => ({ data: [{ id: 'm', owned_by: owner, meta: { n_ctx: 512 } }] })

test('its adapters are told from its model by their parent', async () => {
  const data = [
    { id: 'm', owned_by: 'vllm', parent: null },
    { id: 'sql', owned_by: 'vllm', parent: 'm' },
  ]
  const url = await listening(createServer(listener({ 'GET /v1/models': { data } })))
  const { models: told } = await remoteOf(url).ask()
  expect(told.map(({ id, isAdapter }) => [id, isAdapter])).toEqual([
    ['m', undefined],
    ['sql', true],
  ])
})

describe('its kind', () => {
  test.each([
    ['vllm', 'vllm'],
    ['sglang', 'sglang'],
    ['llamacpp', 'llama-cpp'],
    ['refrain', 'refrain'],
    ['somebody', 'openai'],
  ])('by whom its models are owned: %s', async (owner, kind) => {
    const url = await listening(createServer(listener({ 'GET /v1/models': models(owner) })))
    expect(await remoteOf(url).ask()).toMatchObject({ kind, models: [{ id: 'm', contextLength: 512 }] })
  })

  test.each([
    ['/version', 'vllm'],
    ['/get_server_info', 'sglang'],
    ['/props', 'llama-cpp'],
  ])('by what only it answers: %s', async (path, kind) => {
    const routes = { 'GET /v1/models': models('me'), [`GET ${path}`]: { total_slots: 4 } }
    const facts = await remoteOf(await listening(createServer(listener(routes)))).ask()
    expect(facts.kind).toBe(kind)
    if (kind === 'llama-cpp') expect(facts.slots).toBe(4)
  })

  test('as the config says, unasked', async () => {
    const url = await listening(createServer(listener({ 'GET /v1/models': models('vllm') })))
    expect((await remoteOf(url, { kind: 'openai' }).ask()).kind).toBe('openai')
  })
})

test('dialects that it lacks are found out', async () => {
  const stub = await startStub({ lacks: ['/v1/messages', '/v1/responses'] })
  ends.push(() => stub.kill())
  expect((await remoteOf(stub.url).ask()).lacks).toEqual(['/v1/messages', '/v1/responses'])
  expect(stub.requests).toHaveLength(0)
})

test('every question has its key, its headers and the path in front', async () => {
  const seen: IncomingMessage[] = []
  const url = await listening(createServer(listener({ 'GET /x/v1/models': models('vllm') }, seen)))
  const remote = remoteOf(`${url}/x/`, { apiKey: 'secret-key', headers: { 'X-Org': 'o' } })
  await remote.ask()
  expect(remote.id).toBe(`${url}/x`)
  expect(seen.every(({ headers }) => headers.authorization === 'Bearer secret-key' && headers['x-org'] === 'o')).toBe(
    true,
  )
})

test('a name and a password of the URL are sent, and are no part of the id', async () => {
  const seen: IncomingMessage[] = []
  const url = await listening(createServer(listener({ 'GET /v1/models': models('vllm') }, seen)))
  const remote = remoteOf(url.replace('//', '//me:p%40ss@'), { dataParallelRank: 1 })
  await remote.ask()
  expect(remote.id).toBe(`${url}#1`)
  expect(seen[0]?.headers.authorization).toBe(`Basic ${Buffer.from('me:p@ss').toString('base64')}`)
})

describe('what does not answer', () => {
  test('is told as unsent where nobody listens', async () => {
    const stub = await startStub()
    await stub.kill()
    await expect(remoteOf(stub.url).ask()).rejects.toMatchObject({ name: 'RemoteFault', sent: false })
  })

  test('is given up in time', async () => {
    const url = await listening(createServer(() => undefined))
    await expect(remoteOf(url).call('GET', '/health', { timeoutMs: 50 })).rejects.toThrow(/no answer to GET \/health/)
    const stop = new AbortController()
    const asking = remoteOf(url).call('GET', '/health', { signal: stop.signal })
    stop.abort()
    await expect(asking).rejects.toThrow(/given up/)
  })

  test('is no server of models where it has none', async () => {
    const url = await listening(createServer(listener({})))
    await expect(remoteOf(url).ask()).rejects.toThrow(/\/v1\/models answers 404/)
  })

  test('a ping fails for a server that is not ready, not for one without the route', async () => {
    const loading = createServer((_, response) => response.writeHead(503).end())
    await expect(remoteOf(await listening(loading)).ping()).rejects.toThrow(/503/)
    await remoteOf(await listening(createServer(listener({})))).ping()
  })
})

const hasOpenssl = (() => {
  try {
    execFileSync('openssl', ['version'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
})()

describe('TLS (needs openssl)', () => {
  test.skipIf(!hasOpenssl)('a server is trusted by the CA of the config, and by no other', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'refrain-tls-'))
    ends.push(() => rmSync(folder, { recursive: true }))
    const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')]
    const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1', '-days', '2']
    const made = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
    execFileSync('openssl', [...made, '-keyout', key, '-out', cert, ...subject], { stdio: 'ignore' })
    const routes = { 'GET /v1/models': models('vllm') }
    const server = createTlsServer({ key: readFileSync(key), cert: readFileSync(cert) }, listener(routes))
    const url = await listening(server as unknown as Server, 'https')
    expect((await remoteOf(url, { tls: { ca: cert } }).ask()).kind).toBe('vllm')
    expect((await remoteOf(url, { tls: { verify: false } }).ask()).kind).toBe('vllm')
    await expect(remoteOf(url).ask()).rejects.toThrow(/self-signed/)
  })
})
