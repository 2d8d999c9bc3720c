// A server as a backend's stands elsewhere, told by a test what to do with each request: answer, hang, break off, send
// garbage. Listens on 127.0.0.1 alone.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'

export interface StubRequest {
  readonly path: string
  readonly headers: IncomingMessage['headers']
  readonly text: string
  readonly body: Record<string, unknown>
}

export type StubAnswer = (request: StubRequest, response: ServerResponse, socket: Socket) => void

export interface StubUpstream {
  readonly url: string
  /** Requests to paths that generate, in order. */
  readonly requests: StubRequest[]
  /** Requests whose client left before the answer's end. */
  aborted: number
  /** Connections to it. */
  open(): number
  /** What the next requests get. */
  answer: StubAnswer
  /** Cuts every connection and listens no more, as a killed process. */
  kill(): Promise<void>
  /** Listens again on the same port. */
  revive(): Promise<void>
}

export interface StubOptions {
  /** `owned_by` of its model. */
  readonly owner?: string
  readonly models?: readonly string[]
  /** Slots of a llama-server. */
  readonly slots?: number
  /** Paths that it has no route for. */
  readonly lacks?: readonly string[]
}

/** One chat chunk as an event. */
export function chunk(delta: object, finish: string | null = null): string {
  const choices = [{ index: 0, delta, finish_reason: finish }]
  return `data: ${JSON.stringify({ id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'm', choices })}\n\n`
}

export const ROLE = chunk({ role: 'assistant', content: '' })

export function usageChunk(promptTokens: number, cachedTokens: number | undefined, completionTokens = 2): string {
  const usage = {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    ...(cachedTokens !== undefined && { prompt_tokens_details: { cached_tokens: cachedTokens } }),
  }
  return `data: ${JSON.stringify({ id: 'chatcmpl-1', object: 'chat.completion.chunk', choices: [], usage })}\n\n`
}

export function beginStream(response: ServerResponse): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  response.flushHeaders()
}

/** Says `words`, a chunk each, then usage where it was asked for. */
export function saying(words: readonly string[], cachedTokens = 0): StubAnswer {
  return ({ body }, response) => {
    if (body['stream'] !== true) {
      const usage = {
        prompt_tokens: 10,
        completion_tokens: words.length,
        total_tokens: 10 + words.length,
        prompt_tokens_details: { cached_tokens: cachedTokens },
      }
      const message = { role: 'assistant', content: words.join('') }
      response.writeHead(200, { 'content-type': 'application/json' })
      response.end(
        JSON.stringify({
          id: 'chatcmpl-1',
          object: 'chat.completion',
          choices: [{ index: 0, message, finish_reason: 'stop' }],
          usage,
        }),
      )
      return
    }
    beginStream(response)
    response.write(ROLE)
    for (const content of words) response.write(chunk({ content }))
    response.write(chunk({}, 'stop'))
    const wanted = (body['stream_options'] as { include_usage?: boolean } | undefined)?.include_usage
    if (wanted === true) response.write(usageChunk(10, cachedTokens, words.length))
    response.end('data: [DONE]\n\n')
  }
}

export async function startStub(options: StubOptions = {}): Promise<StubUpstream> {
  const sockets = new Set<Socket>()
  const stub = { requests: [] as StubRequest[], aborted: 0, answer: saying(['hi']) }
  const listener = (request: IncomingMessage, response: ServerResponse) => serve(request, response, stub, options)
  let server = listening(listener, sockets)
  const port = await portOf(server, 0)
  return Object.assign(stub, {
    url: `http://127.0.0.1:${port}`,
    open: () => sockets.size,
    async kill() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      for (const socket of sockets) socket.resetAndDestroy()
      await closed
    },
    async revive() {
      server = listening(listener, sockets)
      await portOf(server, port)
    },
  })
}

function listening(
  listener: (request: IncomingMessage, response: ServerResponse) => void,
  sockets: Set<Socket>,
): Server {
  const server = createServer({ keepAliveTimeout: 60_000 }, listener)
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  return server
}

async function portOf(server: Server, port: number): Promise<number> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, '127.0.0.1', () => resolve())
  })
  return (server.address() as AddressInfo).port
}

type Stub = Pick<StubUpstream, 'requests' | 'aborted' | 'answer'>

function serve(request: IncomingMessage, response: ServerResponse, stub: Stub, options: StubOptions): void {
  const path = (request.url ?? '').split('?')[0] ?? ''
  const parts: Buffer[] = []
  request.on('data', (part) => parts.push(part))
  request.on('end', () => {
    const text = Buffer.concat(parts).toString('utf8')
    if (request.method === 'GET') return describe(path, response, options)
    if (options.lacks?.includes(path)) return json(response, 404, { detail: 'Not Found' })
    // The question whether there is a route.
    if (text === '{}') return json(response, 400, { error: { message: 'empty', type: 'BadRequestError', code: 400 } })
    response.once('close', () => {
      if (!response.writableFinished) stub.aborted++
    })
    const seen = { path: request.url ?? '', headers: request.headers, text, body: parsed(text) }
    stub.requests.push(seen)
    stub.answer(seen, response, request.socket)
  })
  request.on('error', () => response.destroy())
}

function describe(path: string, response: ServerResponse, options: StubOptions): void {
  const { owner = 'vllm', models = ['m'], slots } = options
  if (path === '/v1/models') {
    const data = models.map((id) => ({ id, object: 'model', created: 1, owned_by: owner, max_model_len: 4096 }))
    json(response, 200, { object: 'list', data })
  } else if (path === '/health') json(response, 200, {})
  else if (path === '/props' && slots !== undefined) json(response, 200, { total_slots: slots })
  else json(response, 404, { detail: 'Not Found' })
}

function json(response: ServerResponse, status: number, value: object): void {
  response.writeHead(status, { 'content-type': 'application/json' })
  response.end(JSON.stringify(value))
}

function parsed(text: string): Record<string, unknown> {
  try {
    return JSON.parse(text)
  } catch {
    // Uploads are no JSON.
    return {}
  }
}
