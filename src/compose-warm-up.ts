// A router's own code, run before anybody waits for it: what runs for every request is slow until it was compiled, which
// takes thousands of requests. A fleet of two servers that answer nothing of use, in this process and over loopback, gets
// the requests of a few agents. Invariant: nothing of it is counted, logged or kept; whoever is real goes first.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { forwardServer } from './api/forward-server.js'
import { Connections } from './backend/remote/connections.js'
import type { RemoteOptions } from './backend/remote/contract.js'
import { LlamaSlots } from './backend/remote/llama-slots.js'
import { openRemote } from './backend/remote/open-remote.js'
import { SlotRecords } from './backend/remote/slot-records.js'
import { createKnowledge } from './compose-knowledge.js'
import { createPath } from './compose-path.js'
import type { Config } from './config.js'
import { systemClock as clock } from './core/clock.js'
import { apartSignals, type RouteSignals } from './core/signals.js'
import { createFleetTurns } from './explain/fleet-turns.js'
import { Fleet } from './router/fleet.js'
import type { SessionStore } from './router/session-store.js'
import { startMetrics } from './telemetry/metrics.js'

export interface WarmUpOptions {
  /** Real requests that are under way, and that have been so far: it waits while there are any. */
  inFlight(): number
  begun(): number
  /** The program stops. */
  isOver(): boolean
}

/** Turns of all sessions together; behind that more of them gain little. */
const TURNS = 2000
const SESSIONS = 12
const PATHS = 2
/** Turns of one session; then another begins. */
const LENGTH = 20
/** Whatever happens it is over by then. */
const LONGEST_MS = 30_000
const PAUSE_MS = 20
/** After a real request another one is expected for so long. */
const MOMENT_MS = 300
const MODEL = 'warm-up'
const HOST = '127.0.0.1'
/** Less than all bodies take, so that some have to go. */
const MEMO_BYTES = 256 * 1024

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
  const until = clock.now() + LONGEST_MS
  const isOver = () => options.isOver() || clock.now() > until
  // Of each twice: code that has only ever seen one router is compiled for that one, and of no use to the program's.
  const clients: Connections[] = []
  for (let i = 0; i < PATHS; i++) clients.push(await opened(config, isOver, closing))
  const going = { isOver, isBusy: busyness(options) }
  await Promise.all(Array.from({ length: SESSIONS }, (_, i) => hold(clients[i % PATHS] as Connections, i, going)))
}

/** A router with its backends, and connections to it. */
async function opened(config: Config, isOver: () => boolean, closing: (() => unknown)[]): Promise<Connections> {
  const fleet = new Fleet(config.fleet, { open: (entry) => openRemote(entry, config.fleet), clock, isQuiet: true })
  closing.push(() => fleet.stop())
  for (let i = 0; i < 2; i++) {
    const backend = createServer(answer)
    closing.push(() => backend.close())
    fleet.add(remoteOptions(await listening(backend)), MODEL)
  }
  fleet.start()
  while (fleet.members().some(({ state }) => state !== 'up') && !isOver()) await pause()
  const signals = apartSignals()
  const gauges = { backends: () => [], slots: () => ({}) }
  const metrics = startMetrics(() => ({ running: 0, waiting: 0 }), { fleet: gauges }, signals)
  closing.push(() => metrics.close())
  const { server, front } = forwarding(config, fleet, signals)
  closing.push(() => server.close())
  closing.push(() => front.close())
  const client = new Connections({ url: new URL(await listening(server)), connectMs: config.fleet.connectMs })
  closing.push(() => client.close())
  return client
}

/** What the program puts together, without what outlives it. */
function forwarding(config: Config, fleet: Fleet, signals: RouteSignals): ReturnType<typeof forwardServer> {
  const { queueMs } = config.limits
  const knowledge = createKnowledge(config, { remotes: () => fleet.remotes(), isUp: () => true, clock })
  const { service } = createPath(
    { ...config, tenants: [] },
    {
      fleet,
      clock,
      store: FORGETFUL,
      precise: knowledge.index,
      peers: undefined,
      quotas: undefined,
      seats: new LlamaSlots(
        { waitMs: queueMs, saveAfterMs: queueMs },
        { remotes: () => fleet.remotes(), records: new SlotRecords(undefined, 1), clock },
      ),
      ears: config.explain.turns > 0 ? createFleetTurns(config.explain, signals) : undefined,
      tokens: knowledge.tokens,
      signals,
    },
  )
  return forwardServer(
    {
      fleet: service,
      quick: undefined,
      limits: config.limits,
      access: { tenants: [], host: HOST },
      clock,
      keepaliveMs: config.server.keepaliveMs,
      sessionSignals: config.sessions.signals,
      forceUsage: config.server.forceUsage,
      memoBytes: MEMO_BYTES,
    },
    {
      active: new Set(),
      state: { draining: false },
      isOurs: () => false,
      rest: (_, response) => response.writeHead(404).end(),
      signals,
    },
  )
}

const FORGETFUL: SessionStore = { records: () => [], put: () => undefined, remove: () => undefined }

const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE_MS))

function busyness({ inFlight, begun }: WarmUpOptions): () => boolean {
  let seen = begun()
  let at = Number.NEGATIVE_INFINITY
  return () => {
    const now = clock.now()
    if (inFlight() > 0 || begun() !== seen) at = now
    seen = begun()
    return now - at < MOMENT_MS
  }
}

interface Going {
  isBusy(): boolean
  isOver(): boolean
}

/** One agent after the other, each with a prompt that grows. */
async function hold(client: Connections, number: number, { isBusy, isOver }: Going): Promise<void> {
  let messages = ''
  for (let turn = 0; turn < TURNS / SESSIONS; turn++) {
    while (isBusy() && !isOver()) await pause()
    if (isOver()) return
    if (turn % LENGTH === 0) messages = begun(number)
    await asked(client, bodyOf(messages, number, turn % 2 === 1), number)
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

/** Clients set what they like: code that knows one set of members is compiled anew for the next. */
const MEMBERS = [
  '"temperature":0',
  '"temperature":1,"top_p":0.9',
  '"seed":1,"user":"a"',
  '"parallel_tool_calls":true,"tool_choice":"auto"',
  '"n":1,"stop":["x"]',
  '"reasoning_effort":"low","metadata":{"a":"b"}',
]

function bodyOf(messages: string, number: number, stream: boolean): Buffer {
  const options = stream ? ',"stream_options":{"include_usage":true}' : ''
  const members = MEMBERS[(number >> 1) % MEMBERS.length]
  const front = `{"model":"${MODEL}","stream":${stream}${options},"max_tokens":16,${members},"tools":${TOOLS}`
  return Buffer.from(`${front},"messages":[${messages}]}`)
}

const HEADERS: readonly [string, string][] = [
  ['accept', '*/*'],
  ['user-agent', 'warm-up'],
  ['accept-encoding', 'gzip, deflate'],
  ['x-stainless-lang', 'js'],
  ['accept-language', '*'],
]

/** Whatever is answered. */
function asked(client: Connections, body: Buffer, number: number): Promise<void> {
  return new Promise((resolve) => {
    const headers: Record<string, string> = { 'content-type': 'application/json', authorization: 'Bearer none' }
    // Every client has its own set of headers, and names its session or not.
    for (const [i, [name, value]] of HEADERS.entries()) if (((number >> 1) + i) % 3 > 0) headers[name] = value
    if (number % 4 > 1) headers['x-session-id'] = String(number)
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
/** As servers tell it: with what was cached and without, and with counts of their own. */
const USAGES = [
  '"usage":{"prompt_tokens":8000,"total_tokens":8016,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":7000}}',
  '"usage":{"prompt_tokens":8000,"total_tokens":8016,"completion_tokens":16,"prompt_tokens_details":null}',
  '"usage":{"prompt_tokens":8000,"completion_tokens":16,"total_tokens":8016}',
  '"usage":{"completion_tokens":16,"prompt_tokens":8000,"total_tokens":8016,"prompt_tokens_details":{"cached_tokens":7000,"audio_tokens":0}}',
  '"usage":{"prompt_tokens":8000,"completion_tokens":16,"reasoning_tokens":0,"prompt_tokens_details":{"cached_tokens":7999}}',
]
let answered = 0
const usage = () => USAGES[answered++ % USAGES.length] as string
/** And with headers of their own. */
const SAID = ['server', 'x-upstream', 'openai-processing-ms', 'via', 'access-control-allow-origin']
const said = () => ({ [SAID[answered % SAID.length] as string]: '1' })
const whole = () =>
  `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],${usage()}}`
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
    else {
      const body = whole()
      const headers = { ...said(), 'content-type': 'application/json', 'content-length': body.length }
      response.writeHead(200, headers).end(body)
    }
  })
}

/** Events one by one, as they come of a server that decodes. */
async function streamed(response: ServerResponse): Promise<void> {
  response.writeHead(200, { ...said(), 'content-type': 'text/event-stream' })
  response.flushHeaders()
  for (let i = 0; i < 8; i++) {
    response.write(chunk(delta(i === 0 ? '"role":"assistant","content":"a "' : '"content":"b "')))
    await new Promise((resolve) => setImmediate(resolve))
  }
  response.write(chunk(delta('', '"stop"')))
  response.write(chunk('', `,${usage()}`))
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
