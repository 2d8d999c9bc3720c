// A router's own code, run before anybody waits for it: what runs for every request is slow until it was compiled, which
// takes thousands of requests. A fleet of two servers that answer nothing of use, in this process and over loopback, gets
// the requests of a few agents. Invariant: nothing of it is counted, logged or kept; whoever is real goes first.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { forwardRoute } from './api/forward-route.js'
import { putInFront } from './api/front.js'
import { IDLE_MS } from './api/front-exchange.js'
import { createGate } from './api/gate.js'
import { draining } from './api/server.js'
import { ChatEvents } from './backend/remote/chat-events.js'
import { Connections } from './backend/remote/connections.js'
import type { Remote, RemoteOptions } from './backend/remote/contract.js'
import { exchange } from './backend/remote/exchange.js'
import { kindOf, openRemote } from './backend/remote/open-remote.js'
import type { Config } from './config.js'
import { systemClock as clock } from './core/clock.js'
import { FleetMember } from './router/fleet-member.js'
import { createFleetRouter } from './router/fleet-router.js'
import { createWaitingRoom } from './router/waiting-room.js'
import { createFleetService } from './serve-fleet.js'

export interface WarmUpOptions {
  /** Whether real requests are under way: it waits until they are over. */
  isBusy(): boolean
  /** The program stops. */
  isOver(): boolean
}

/** Turns of all sessions together; behind that more of them gain little. */
const TURNS = 640
const SESSIONS = 8
/** Turns of one session; then another begins. */
const LENGTH = 20
/** Whatever happens it is over by then. */
const LONGEST_MS = 30_000
const PAUSE_MS = 20
const MODEL = 'warm-up'
const HOST = '127.0.0.1'
const MEMO_BYTES = 8 * 1024 * 1024

/** Resolves when it is over. A fault of it is nobody's: it is given up. */
export async function warmUp(config: Config, options: WarmUpOptions): Promise<void> {
  const closing: (() => unknown)[] = []
  try {
    await run(config, options, closing)
  } finally {
    for (const close of closing.reverse()) await close()
  }
}

async function run(config: Config, options: WarmUpOptions, closing: (() => unknown)[]): Promise<void> {
  const members: FleetMember[] = []
  for (let i = 0; i < 2; i++) {
    const server = createServer(answer)
    closing.push(() => server.close())
    const remote = openRemote(remoteOptions(await listening(server)), config.fleet)
    const member = new FleetMember(remote, MODEL, { health: config.fleet, clock, fleet: { isQuiet: true } })
    closing.push(() => member.close())
    await member.begin()
    members.push(member)
  }
  const server = createServer()
  const handle = forwarding(config, members)
  const { receiveMs } = config.limits
  const front = putInFront(server, { isOurs: () => true, handle, receiveMs, idleMs: IDLE_MS, clock })
  closing.push(() => server.close())
  closing.push(() => front.close())
  const url = new URL(await listening(server))
  const client = new Connections({ url, connectMs: config.fleet.connectMs })
  closing.push(() => client.close())
  const until = clock.now() + LONGEST_MS
  const isOver = () => options.isOver() || clock.now() > until
  await Promise.all(Array.from({ length: SESSIONS }, (_, i) => hold(client, i, { ...options, isOver })))
}

/** The path of a request as compose-fleet.ts puts it together, without what outlives it. */
function forwarding(config: Config, members: readonly FleetMember[]) {
  const remotes: readonly Remote[] = members.map(({ remote }) => remote)
  const router = createFleetRouter(config.router, { members: () => members, clock })
  const { queuedRequests, queueMs, sideRequestMs } = config.limits
  const fleet = createFleetService({
    router,
    room: createWaitingRoom({ router, queuedRequests, queueMs, sideRequestMs, clock }),
    remotes: () => remotes,
    kindOf: (remote) => kindOf(remote.facts?.kind ?? 'openai'),
    exchange(request) {
      const member = members.find(({ remote }) => remote === request.remote) as FleetMember
      return member.exchange((watch) => exchange(request, config.fleet, watch))
    },
    chatReader: (promptTokens) => new ChatEvents(promptTokens),
    aliases: {},
    tenants: [],
    attempts: 1,
    isQuiet: true,
    clock,
  })
  return forwardRoute({
    fleet,
    gate: createGate({ tenants: [], host: HOST }),
    limits: config.limits,
    clock,
    keepaliveMs: config.server.keepaliveMs,
    sessionSignals: config.sessions.signals,
    forceUsage: false,
    memoBytes: MEMO_BYTES,
    active: new Set(),
    state: { draining: false },
    draining,
    isQuiet: true,
  })
}

/** One agent after the other, each with a prompt that grows. */
async function hold(client: Connections, number: number, { isBusy, isOver }: WarmUpOptions): Promise<void> {
  let messages = ''
  for (let turn = 0; turn < TURNS / SESSIONS; turn++) {
    while (isBusy() && !isOver()) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
    if (isOver()) return
    if (turn % LENGTH === 0) messages = begun(number)
    await asked(client, bodyOf(messages, turn % 2 === 1))
    messages += grown(turn)
  }
}

const TEXT = 'The quick brown fox jumps over the lazy dog. "And so on", it says.\n'.repeat(64)
const text = (length: number, from = 0) => JSON.stringify(TEXT.slice(from, from + length))

function begun(number: number): string {
  const user = `{"role":"user","content":${text(256 + number)}}`
  return `{"role":"system","content":${JSON.stringify(TEXT.repeat(4))}},${user}`
}

function grown(turn: number): string {
  const call = `{"id":"call_${turn}","type":"function","function":{"name":"read","arguments":"{\\"path\\":\\"a\\"}"}}`
  const assistant = `{"role":"assistant","content":${text(100, turn)},"tool_calls":[${call}]}`
  return `,${assistant},{"role":"tool","tool_call_id":"call_${turn}","content":${text(1200, turn)}}`
}

const TOOLS = `[{"type":"function","function":{"name":"read","description":${text(400)},"parameters":{"type":"object"}}}]`

function bodyOf(messages: string, stream: boolean): Buffer {
  const options = stream ? ',"stream_options":{"include_usage":true}' : ''
  const front = `{"model":"${MODEL}","stream":${stream}${options},"max_tokens":16,"tools":${TOOLS}`
  return Buffer.from(`${front},"messages":[${messages}]}`)
}

/** Whatever is answered. */
function asked(client: Connections, body: Buffer): Promise<void> {
  return new Promise((resolve) => {
    const headers = { 'content-type': 'application/json', accept: '*/*', authorization: 'Bearer none' }
    const done = () => resolve()
    const nothing = () => undefined
    client.send(
      { method: 'POST', path: '/v1/chat/completions', headers, body },
      { head: nothing, data: nothing, end: done, fail: done },
    )
  })
}

// --- the servers -----------------------------------------------------------------------------------------------------

function remoteOptions(url: string): RemoteOptions {
  const none = { headers: {}, models: {}, forwardAuthorization: false, shared: true, priority: false }
  return { ...none, url, kind: 'vllm' }
}

const MODELS = JSON.stringify({ object: 'list', data: [{ id: MODEL, object: 'model', owned_by: 'vllm' }] })
const USAGE = '"usage":{"prompt_tokens":8000,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":7000}}'
const WHOLE = `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],${USAGE}}`
const chunk = (choices: string, more = '') =>
  `data: {"id":"c","object":"chat.completion.chunk","choices":[${choices}]${more}}\n\n`
const delta = (content: string, finish = 'null') => `{"index":0,"delta":{${content}},"finish_reason":${finish}}`

function answer(request: IncomingMessage, response: ServerResponse): void {
  let isStream = false
  request.on('data', (bytes: Buffer) => {
    isStream ||= bytes.includes('"stream":true')
  })
  request.on('end', () => {
    if (request.url === '/v1/models') response.end(MODELS)
    else if (request.url !== '/v1/chat/completions') response.writeHead(request.url === '/health' ? 200 : 404).end()
    else if (isStream) void streamed(response)
    else response.writeHead(200, { 'content-type': 'application/json', 'content-length': WHOLE.length }).end(WHOLE)
  })
}

/** Events one by one, as they come of a server that decodes. */
async function streamed(response: ServerResponse): Promise<void> {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  response.flushHeaders()
  for (let i = 0; i < 8; i++) {
    response.write(chunk(delta(i === 0 ? '"role":"assistant","content":"a "' : '"content":"b "')))
    await new Promise((resolve) => setImmediate(resolve))
  }
  response.write(chunk(delta('', '"stop"')))
  response.write(chunk('', `,${USAGE}`))
  response.end('data: [DONE]\n\n')
}

async function listening(server: Server): Promise<string> {
  server.unref()
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, HOST, () => resolve())
  })
  return `http://${HOST}:${(server.address() as AddressInfo).port}`
}
