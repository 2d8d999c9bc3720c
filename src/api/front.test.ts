import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import fc from 'fast-check'
import { afterEach, expect, test } from 'vitest'
import { systemClock as clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import { asRefrainError } from './dialect/openai-shape.js'
import { refuseSocket } from './failure.js'
import { type Front, putInFront } from './front.js'
import { type Inbound, inboundOf, type Outbound } from './inbound.js'

const LIMIT = 200_000
const closing: (() => unknown)[] = []

afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})

type Handle = (request: Inbound, response: Outbound) => void

/** Says what it was asked, in the words of whoever reads it. */
const echo: Handle = async (request, response) => {
  try {
    const body = await request.body(LIMIT)
    const { 'content-type': type, 'x-more': more, authorization } = request.headers
    const text = JSON.stringify({ url: request.url, type, more, authorization, body: body.toString('latin1') })
    response.writeHead(200, ['content-type', 'application/json', 'content-length', String(Buffer.byteLength(text))])
    response.end(text)
  } catch (error) {
    const { status, code } = asRefrainError(error)
    const close: Record<string, string> = request.complete ? {} : { connection: 'close' }
    response.writeHead(status, { ...close, 'content-length': String(code.length) })
    response.end(code)
  }
}

interface Started {
  readonly server: Server
  readonly front: Front | undefined
  readonly port: number
  /** Connections that were given to Node. */
  readonly left: () => number
}

interface StartOptions {
  readonly handle?: Handle
  readonly isFronted?: boolean
  readonly receiveMs?: number
  readonly idleMs?: number
}

async function start(options: StartOptions = {}): Promise<Started> {
  const { handle = echo, isFronted = true, receiveMs = 60_000, idleMs = 72_000 } = options
  let left = 0
  const server = createServer({ requestTimeout: receiveMs, connectionsCheckingInterval: 20 }, (request, response) => {
    if (request.method === 'POST' && request.url?.startsWith('/v1/')) handle(inboundOf(request), response)
    else response.writeHead(404, { 'content-length': '4' }).end('none')
  })
  server.keepAliveTimeout = 72_000
  server.on('clientError', refuseSocket)
  const isOurs = (url: string) => url.startsWith('/v1/')
  server.prependListener('connection', () => left++)
  const front = isFronted ? putInFront(server, { isOurs, handle, receiveMs, idleMs, clock }) : undefined
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  closing.push(() => {
    front?.destroy()
    server.closeAllConnections()
    server.close()
  })
  return { server, front, port: (server.address() as AddressInfo).port, left: () => left }
}

/** Whatever it breaks with. */
const closeOf = (socket: Socket) =>
  new Promise<void>((resolve) => socket.on('error', () => undefined).once('close', () => resolve()))

const tick = () => new Promise((resolve) => setImmediate(resolve))

/** All that comes back until the connection is closed or `answers` were read, without what differs from run to run. */
async function talk(port: number, pieces: readonly Buffer[], answers: number): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  let text = ''
  let isClosed = false
  const over = new Promise<void>((resolve) => {
    socket.on('data', (bytes) => {
      text += bytes.toString('latin1')
      if (heads(text) >= answers && isWhole(text)) resolve()
    })
    socket.on('error', () => undefined)
    socket.on('close', () => {
      isClosed = true
      resolve()
    })
  })
  for (const piece of pieces) {
    if (!isClosed) socket.write(piece)
    await tick()
  }
  await over
  socket.destroy()
  return plain(text)
}

const heads = (text: string) => text.split('HTTP/1.1 ').length - 1

/** Whether the last answer's body has come. */
function isWhole(text: string): boolean {
  const at = text.lastIndexOf('HTTP/1.1 ')
  const [head = '', body] = text.slice(at).split('\r\n\r\n')
  const length = /content-length: (\d+)/i.exec(head)?.[1]
  return body !== undefined && (length === undefined || body.length >= Number(length))
}

/** Heads as lists of what they say: order and case are free. */
function plain(text: string): string {
  return text
    .split(/(?=HTTP\/1\.1 )/)
    .map((answer) => {
      const [head = '', ...body] = answer.split('\r\n\r\n')
      const [status, ...lines] = head.split('\r\n')
      const told = lines.map((line) => line.toLowerCase()).filter((line) => !line.startsWith('date:'))
      return [status, ...told.sort(), '', body.join('\r\n\r\n')].join('\n')
    })
    .join('')
}

const bytes = (text: string) => Buffer.from(text, 'latin1')

function post(body: string, more = '', url = '/v1/chat'): string {
  return `POST ${url} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n${more}Content-Length: ${body.length}\r\n\r\n${body}`
}

/** Cuts a text at `cuts`. */
function cut(text: string, cuts: readonly number[]): Buffer[] {
  const at = [...new Set(cuts.map((each) => each % (text.length + 1)))].sort((a, b) => a - b)
  return [0, ...at].map((from, i) => bytes(text.slice(from, at[i] ?? text.length))).filter(({ length }) => length > 0)
}

const UNUSUAL = [
  'GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n',
  'POST /other HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi',
  'POST /v1/chat HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n',
  'POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nX-More: 1\r\nX-More: 2\r\n\r\nhi',
  'POST /v1/chat?a=b HTTP/1.1\r\nhost: a\r\nCONTENT-LENGTH:   2  \r\n\r\nhi',
]

const request = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.tuple(fc.string({ maxLength: 40 }), fc.boolean()).map(([b, m]) => post(b, m ? 'X-More: é\r\n' : '')),
  },
  { weight: 1, arbitrary: fc.constantFrom(...UNUSUAL) },
)

test('requests one after the other, cut anywhere, are answered as Node alone answers them', async () => {
  const fronted = await start()
  const bare = await start({ isFronted: false })
  const several = fc.tuple(fc.array(request, { minLength: 1, maxLength: 4 }), fc.array(fc.nat(), { maxLength: 5 }))
  await fc.assert(
    fc.asyncProperty(several, async ([requests, cuts]) => {
      const pieces = cut(requests.join(''), cuts)
      const [ours, nodes] = await Promise.all([fronted, bare].map(({ port }) => talk(port, pieces, requests.length)))
      expect(ours).toBe(nodes)
    }),
    { numRuns: 150 },
  )
  expect(fronted.left()).toBeGreaterThan(0)
})

/** Each is refused, or read, as Node does it: none is ours to read. */
const DOUBTFUL = {
  'two lengths': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!',
  'two lengths that agree': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi',
  'a length and chunks':
    'POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
  'a length that is no number': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 2x\r\n\r\nhi',
  'a negative length': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: -2\r\n\r\nhi',
  'a length with a sign': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\nhi',
  'a length beyond all numbers': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nhi',
  'a folded line': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nX-More: 1\r\n 2\r\nContent-Length: 2\r\n\r\nhi',
  'a blank before a colon': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length : 2\r\n\r\nhi',
  'a line without a colon': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nnothing\r\nContent-Length: 2\r\n\r\nhi',
  'a bare return': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nX-More: 1\r2\r\nContent-Length: 2\r\n\r\nhi',
  'a bare line feed': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nX-More: 1\nContent-Length: 2\r\n\r\nhi',
  'a zero byte': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nX-More: 1\x002\r\nContent-Length: 2\r\n\r\nhi',
  'no host': 'POST /v1/chat HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi',
  'two hosts': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 2\r\n\r\nhi',
  'HTTP/1.0': 'POST /v1/chat HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi',
  'HTTP/1.2': 'POST /v1/chat HTTP/1.2\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi',
  'HTTP/2': 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
  'a whole URL': 'POST http://a/v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi',
  'a blank in the path': 'POST /v1/chat x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi',
  'a name of every object': 'POST /v1/chat HTTP/1.1\r\nHost: a\r\n__proto__: x\r\nContent-Length: 2\r\n\r\nhi',
  'that it waits for a word':
    'POST /v1/chat HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi',
  'another protocol':
    'POST /v1/chat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi',
  'a head beyond all bounds': `POST /v1/chat HTTP/1.1\r\nHost: a\r\nX-More: ${'x'.repeat(20_000)}\r\nContent-Length: 2\r\n\r\nhi`,
  'a head of many small bytes': `POST /v1/chat HTTP/1.1\r\nHost: a\r\nX-More: ${'x'.repeat(10_000)}\r\nContent-Length: 2\r\n\r\nhi`,
}

test.each(Object.entries(DOUBTFUL))('%s: Node has the say', async (_, text) => {
  const fronted = await start()
  const bare = await start({ isFronted: false })
  // Behind it nothing is smuggled in, either.
  const pieces = [bytes(`${text}${post('{"b":2}')}`)]
  const count = /^HTTP|20\.0|PRI/.test(text) ? 1 : 2
  const [ours, nodes] = await Promise.all(
    [fronted, bare].map(({ port }) => Promise.race([talk(port, pieces, count), quiet()])),
  )
  expect(ours).toBe(nodes)
  expect(fronted.left()).toBe(1)
})

const quiet = () => new Promise<string>((resolve) => setTimeout(() => resolve('nothing more'), 300))

test('what nearly all clients send is not given to Node, with a length of its own each time', async () => {
  const { port, left } = await start()
  const bodies = ['', 'x', 'y'.repeat(9), 'z'.repeat(10), 'w'.repeat(150_000)]
  const text = await talk(
    port,
    bodies.map((body) => bytes(post(body))),
    bodies.length,
  )
  expect(heads(text)).toBe(bodies.length)
  for (const body of bodies) expect(text.includes(`"body":"${body}"}`)).toBe(true)
  expect(text.split('\nconnection: keep-alive\n').length - 1).toBe(bodies.length)
  expect(text.split('\nkeep-alive: timeout=72\n').length - 1).toBe(bodies.length)
  expect(left()).toBe(0)
})

test('a body that is too large is refused before it comes, and the connection with it', async () => {
  const { port } = await start()
  const text = await talk(
    port,
    [bytes(`POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: ${LIMIT + 1}\r\n\r\nx`)],
    2,
  )
  expect(text).toContain('HTTP/1.1 413')
  expect(text).toContain('connection: close')
  expect(heads(text)).toBe(1)
})

test('who wants the connection closed gets it closed', async () => {
  const { port } = await start()
  const text = await talk(port, [bytes(post('a', 'Connection: close\r\n') + post('b'))], 2)
  expect(heads(text)).toBe(1)
  expect(text).toContain('"body":"a"')
})

test('a body that does not arrive is answered with 408', async () => {
  const seen: unknown[] = []
  const handle: Handle = async (request, response) => {
    try {
      await request.body(LIMIT)
    } catch (error) {
      seen.push(error)
      response.destroy()
    }
  }
  const { port } = await start({ handle, receiveMs: 50 })
  const text = await talk(port, [bytes('POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc')], 1)
  expect(text).toContain('HTTP/1.1 408')
  expect(text).toContain('limits.receiveMs')
  expect(String(seen[0])).toContain('closed')
})

test('a connection that says nothing is closed, and so is one that idles', async () => {
  const { port } = await start({ receiveMs: 50, idleMs: 50 })
  expect(await talk(port, [], 9)).toContain('HTTP/1.1 408')
  const text = await talk(port, [bytes(post('a'))], 9)
  expect(heads(text)).toBe(1)
})

/** Of an answer that is begun and goes on as long as it is wanted. */
function begun() {
  let response: Outbound | undefined
  let isLost = false
  const handle: Handle = (_, out) => {
    response = out
    out.once('close', () => {
      isLost = true
    })
    out.writeHead(200, ['content-type', 'text/event-stream'])
    out.write('5\r\nhello\r\n')
  }
  return { handle, out: () => response as Outbound, isLost: () => isLost }
}

async function opened(port: number, text: string): Promise<{ socket: Socket; text: () => string }> {
  const socket = connect(port, '127.0.0.1')
  let all = ''
  socket.on('data', (chunk) => {
    all += chunk.toString('latin1')
  })
  socket.on('error', () => undefined)
  socket.write(bytes(text))
  await once(socket, 'data')
  return { socket, text: () => all }
}

test.each(['end', 'destroy'] as const)('a client that leaves (%s) is told', async (how) => {
  const answer = begun()
  const { port } = await start(answer)
  const { socket } = await opened(port, post('a'))
  socket[how]()
  while (!answer.isLost()) await tick()
  expect(answer.out().destroyed).toBe(true)
  answer.out().end('never')
})

test('answers without a length are chunks, and the next request waits for their end', async () => {
  const answer = begun()
  const { port } = await start(answer)
  const { socket, text } = await opened(port, post('a') + post('b'))
  await tick()
  expect(heads(text())).toBe(1)
  const first = answer.out()
  first.end('0\r\n\r\n')
  while (heads(text()) < 2) await tick()
  expect(text()).toContain('transfer-encoding: chunked')
  expect(text()).toContain('\r\n\r\n5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK')
  // What comes late for the first does not reach the second.
  first.write('late')
  await tick()
  expect(text()).not.toContain('late')
  socket.destroy()
})

test('a client that sends on and on while it is answered is cut off', async () => {
  const answer = begun()
  const { port } = await start(answer)
  const { socket } = await opened(port, post('a'))
  const closed = closeOf(socket)
  socket.write(Buffer.alloc(1 << 20, 'x'))
  await closed
  expect(answer.isLost()).toBe(true)
})

const REFUSED = `POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: ${8 << 20}\r\n\r\n`

test.each([
  ['of a request that was refused, the rest is no request', REFUSED],
  ['nor what comes behind the last one', post('a', 'Connection: close\r\n')],
])('%s', async (_, first) => {
  const urls: string[] = []
  const handle: Handle = (request, response) => {
    urls.push(request.url)
    return echo(request, response)
  }
  const { port, left } = await start({ handle })
  // Reads are of 64 KiB: what is smuggled in begins one.
  const front = Buffer.concat([bytes(first), Buffer.alloc(65_536 - first.length, ' ')])
  const smuggled = ['POST /v1/smuggled', 'GET /smuggled'].map((line) =>
    Buffer.concat([bytes(`${line} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx`), Buffer.alloc(65_536, ' ')]),
  )
  const socket = connect(port, '127.0.0.1').resume()
  const closed = closeOf(socket)
  socket.write(Buffer.concat([front, ...smuggled.map((each) => each.subarray(0, 65_536))]))
  await closed
  expect(urls).toEqual(['/v1/chat'])
  expect(left()).toBe(0)
})

test('a refusal that is not read keeps nothing of what goes on coming, and ends', async () => {
  const large = 'y'.repeat(16 << 20)
  let exchange: Inbound | undefined
  const handle: Handle = (request, response) => {
    exchange = request
    response.writeHead(413, ['content-length', String(large.length)])
    response.end(large)
  }
  const { port } = await start({ handle, receiveMs: 300 })
  const socket = connect(port, '127.0.0.1').pause()
  const closed = closeOf(socket)
  socket.write(bytes('POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999999\r\n\r\n'))
  await new Promise((resolve) => setTimeout(resolve, 100))
  setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc') as () => void
  gc()
  const before = process.memoryUsage().arrayBuffers
  const part = Buffer.alloc(1 << 20, 'x')
  for (let i = 0; i < 64; i++) socket.write(part)
  while (socket.writableLength > 0) await tick()
  gc()
  expect(exchange?.complete).toBe(false)
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(16 << 20)
  // It is cut off though nobody reads: a write finds that out.
  const poke = setInterval(() => socket.write('x'), 50)
  await closed
  clearInterval(poke)
})

test('a client that says nothing more while it reads gets the whole answer', async () => {
  const large = 'y'.repeat(8 << 20)
  const handle: Handle = (_, response) => {
    response.writeHead(200, ['content-length', String(large.length)])
    response.end(large)
  }
  const { port } = await start({ handle })
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
  socket.write(bytes(post('a')))
  await once(socket, 'readable')
  socket.end()
  let length = 0
  for await (const chunk of socket) length += (chunk as Buffer).length
  expect(length).toBeGreaterThan(large.length)
})

test('closing ends what idles at once, and what is answered with its end', async () => {
  const answer = begun()
  const { port, front, server } = await start(answer)
  const idle = connect(port, '127.0.0.1')
  await once(idle, 'connect')
  const busy = await opened(port, post('a'))
  const gone = once(idle, 'close')
  front?.close()
  server.close()
  idle.resume()
  await gone
  const closed = once(busy.socket, 'close')
  answer.out().end('0\r\n\r\n')
  await closed
  expect(busy.text().endsWith('0\r\n\r\n')).toBe(true)
})

test('a request that is not here in full is not waited for where the server goes', async () => {
  const { port, front } = await start()
  const socket = connect(port, '127.0.0.1')
  socket.write(bytes('POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc'))
  await new Promise((resolve) => setTimeout(resolve, 50))
  front?.refuse(new RefrainError('draining', 'the server is shutting down'))
  let text = ''
  for await (const chunk of socket) text += chunk.toString()
  expect(text).toContain('HTTP/1.1 503')
  expect(text).toContain('draining')
  expect(text).toContain('connection: close')
})

test('a header that would end its line is refused', async () => {
  let said: unknown
  const handle: Handle = (_, response) => {
    try {
      response.writeHead(200, ['x-more', 'a\r\nset-cookie: b'])
    } catch (error) {
      said = error
    }
    response.writeHead(200, ['content-length', '0'])
    response.end()
  }
  const { port } = await start({ handle })
  expect(await talk(port, [bytes(post('a'))], 1)).not.toContain('set-cookie')
  expect(String(said)).toContain('x-more')
})

test('a large answer to a slow reader comes whole, and its next request after it', async () => {
  const large = 'y'.repeat(8 << 20)
  let asked = 0
  const handle: Handle = (_, response) => {
    asked++
    response.writeHead(200, ['content-length', String(large.length)])
    response.end(large)
  }
  const { port } = await start({ handle })
  const socket = connect(port, '127.0.0.1')
  socket.write(bytes(post('a') + post('b')))
  await new Promise((resolve) => setTimeout(resolve, 100))
  expect(asked).toBe(1)
  let length = 0
  for await (const chunk of socket) {
    length += (chunk as Buffer).length
    if (length > 2 * large.length) break
  }
  expect(asked).toBe(2)
})
