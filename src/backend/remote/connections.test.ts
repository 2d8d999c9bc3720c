// Connections in plain HTTP: when one is used again, and what is told where it ends too soon.

import { createServer as createHttpServer } from 'node:http'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { Connections } from './connections.js'
import type { Outgoing, RemoteFault } from './contract.js'

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end()
})

const ANSWER = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok'

/** What `answer` does with each socket's bytes. */
async function serverOf(answer: (socket: Socket, text: string) => void): Promise<{ url: URL; sockets: Socket[] }> {
  const sockets: Socket[] = []
  const server = createServer((socket) => {
    sockets.push(socket)
    socket.on('error', () => undefined)
    socket.on('data', (bytes) => answer(socket, bytes.toString('latin1')))
  })
  const url = await listening(server)
  ends.push(() => {
    for (const socket of sockets) socket.destroy()
  })
  return { url, sockets }
}

async function listening(server: Server): Promise<URL> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', () => resolve()))
  ends.push(() => server.close())
  return new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/base`)
}

function clientOf(url: URL): Connections {
  const client = new Connections({ url, connectMs: 1000 })
  ends.push(() => client.close())
  return client
}

const GET: Outgoing = { method: 'GET', path: '/x', headers: {} }

function ask(client: Connections, out: Outgoing = GET): Promise<{ status: number; body: string }> {
  return new Promise((resolve, reject) => {
    let status = 0
    let body = ''
    // As exchanges do: whatever ended it, its connection is told that it is over.
    const stop = client.send(out, {
      head(code) {
        status = code
      },
      data(bytes) {
        body += bytes.toString()
      },
      end() {
        stop()
        resolve({ status, body })
      },
      fail: reject,
    })
  })
}

const faultIn = (asked: Promise<unknown>) =>
  asked.then(
    () => undefined,
    (fault: RemoteFault) => fault,
  )

describe('a connection is used again', () => {
  test('for one request after the other, and not for two at once', async () => {
    const { url, sockets } = await serverOf((socket) => setTimeout(() => socket.write(ANSWER), 5))
    const client = clientOf(url)
    for (let i = 0; i < 3; i++) expect(await ask(client)).toEqual({ status: 200, body: 'ok' })
    expect(sockets).toHaveLength(1)
    await Promise.all([ask(client), ask(client)])
    expect(sockets).toHaveLength(2)
  })

  test.each([
    ['that the server closes', 'HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok'],
    ['with more than an answer on it', `${ANSWER}more`],
  ])('but for one %s', async (_, answer) => {
    const { url, sockets } = await serverOf((socket) => socket.write(answer))
    const client = clientOf(url)
    for (let i = 0; i < 2; i++) expect(await ask(client)).toEqual({ status: 200, body: 'ok' })
    expect(sockets).toHaveLength(2)
  })

  test('but for one whose request was answered before it was read', async () => {
    const { url, sockets } = await serverOf((socket) => {
      socket.pause()
      socket.write(ANSWER)
    })
    const client = clientOf(url)
    const body = Buffer.alloc(16 * 1024 * 1024, 'x')
    for (let i = 0; i < 2; i++)
      expect(await ask(client, { ...GET, method: 'POST', body })).toMatchObject({ body: 'ok' })
    expect(sockets).toHaveLength(2)
  })

  test('but for one that the server has closed meanwhile', async () => {
    const { url, sockets } = await serverOf((socket) => socket.write(ANSWER))
    const client = clientOf(url)
    await ask(client)
    sockets[0]?.end()
    await new Promise((resolve) => sockets[0]?.once('close', resolve))
    expect(await ask(client)).toMatchObject({ body: 'ok' })
    expect(sockets).toHaveLength(2)
  })
})

describe('what is sent', () => {
  test('is a request that another parser reads: path, headers, body', async () => {
    const seen: unknown[] = []
    const server = createHttpServer(async (request, response) => {
      const parts: Buffer[] = []
      for await (const part of request) parts.push(part as Buffer)
      const { method, url, headers } = request
      seen.push({ method, url, headers, body: Buffer.concat(parts).toString() })
      response.end('ok')
    })
    const url = await listening(server)
    const client = clientOf(url)
    const body = Buffer.from('{"a":1}')
    await ask(client, { method: 'POST', path: '/v1/x?y=1', headers: { 'content-type': 'application/json' }, body })
    await ask(client, { method: 'POST', path: '/', headers: { host: 'other' } })
    const { host } = url
    expect(seen).toEqual([
      {
        method: 'POST',
        url: '/base/v1/x?y=1',
        headers: { host, connection: 'keep-alive', 'content-type': 'application/json', 'content-length': '7' },
        body: '{"a":1}',
      },
      {
        method: 'POST',
        url: '/base/',
        headers: { host: 'other', connection: 'keep-alive', 'content-length': '0' },
        body: '',
      },
    ])
  })

  test.each([
    [{ headers: { a: 'x\r\nb: y' } }],
    [{ headers: { a: '\u0100' } }],
    [{ path: '/ HTTP/1.1' }],
    [{ path: '/\n' }],
  ])('is never %j', async (more) => {
    const { url, sockets } = await serverOf((socket) => socket.write(ANSWER))
    expect(await faultIn(ask(clientOf(url), { ...GET, ...more }))).toMatchObject({ sent: false })
    expect(sockets).toHaveLength(0)
  })
})

describe('what fails', () => {
  test('nobody listens: it was not sent', async () => {
    const server = createServer()
    const url = await listening(server)
    await new Promise((resolve) => server.close(resolve))
    expect(await faultIn(ask(clientOf(url)))).toMatchObject({ sent: false, code: 'ECONNREFUSED' })
  })

  test.each([
    ['without a word', ''],
    ['in the middle of a head', 'HTTP/1.1 200 OK\r\n'],
    ['in the middle of a body', ANSWER.slice(0, -1)],
  ])('the server leaves %s', async (_, text) => {
    const { url } = await serverOf((socket) => socket.end(text))
    expect(await faultIn(ask(clientOf(url)))).toMatchObject({ sent: true, code: 'CLOSED' })
  })

  test('the server speaks something else', async () => {
    const { url } = await serverOf((socket) => socket.write('220 ready\r\n\r\n'))
    expect(await faultIn(ask(clientOf(url)))).toMatchObject({ sent: true })
  })

  test('all connections are closed', async () => {
    const { url } = await serverOf(() => undefined)
    const client = clientOf(url)
    const asked = faultIn(ask(client))
    await client.close()
    expect(await asked).toMatchObject({ name: 'RemoteFault' })
    expect(await faultIn(ask(client))).toMatchObject({ sent: false })
  })
})

test('an exchange that is ended says nothing more, and its server sees it', async () => {
  const { url, sockets } = await serverOf((socket) => socket.write(ANSWER.slice(0, -1)))
  const client = clientOf(url)
  const told: string[] = []
  await new Promise<void>((resolve) => {
    const end = client.send(GET, {
      head: () => undefined,
      data() {
        end()
        resolve()
      },
      end: () => told.push('end'),
      fail: () => told.push('fail'),
    })
  })
  await new Promise((resolve) => sockets[0]?.once('close', resolve))
  expect(told).toEqual([])
})

test('an end that comes late ends no other exchange', async () => {
  const { url } = await serverOf((socket) => setTimeout(() => socket.write(ANSWER), 5))
  const client = clientOf(url)
  const none = () => undefined
  const end = await new Promise<() => void>((resolve) => {
    const stop = client.send(GET, { head: none, data: none, end: () => resolve(stop), fail: none })
  })
  const next = ask(client)
  end()
  expect(await next).toMatchObject({ body: 'ok' })
})
