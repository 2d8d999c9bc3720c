// Question: what does Refrain add to a request in front of and behind the engine: HTTP, decoding, template, tokens, hashes?
// Method: the scripted backend (no model, answers at once) with a 256k window in a process of its own, beside a bare
// node:http server in the same process that reads the same body and sends the same bytes. One client, one connection to
// each, by rounds in turn, every body new at its end; whole answers, and streams to their last byte. Overhead is the
// difference of the medians; beside it stands the servers' own CPU time a request, which other work on the machine blurs
// less. Goal: 1 ms at 2 KB, 2 ms at 40 KB, whole answers. Ceiling: 0.
// Run: npm run bench -- overhead [requests]

import { type ChildProcess, fork } from 'node:child_process'
import { Agent, createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import { scriptedProgram } from '../src/testing/scripted-program.js'

const ANSWER = 'An answer of some thirty tokens, as an agent gets it when it calls a tool. '.repeat(2)
const WARM_UP = 1000
const ROUND = 50
const SIZES = { '2 KB': 2_000, '40 KB': 40_000 }

interface Urls {
  readonly refrain: string
  readonly bare: string
}

/** Runs in the child: both servers, until the parent goes. */
async function serve(): Promise<void> {
  const program = await scriptedProgram({ 'backend.options': { answer: ANSWER } })
  const refrain = await program.start()
  // What the bare server answers: the last bytes that Refrain sent for the same kind of request.
  const samples = new Map<string, Buffer>()
  const bare = createServer((incoming, outgoing) => {
    const chunks: Buffer[] = []
    incoming.on('data', (chunk) => chunks.push(chunk))
    incoming.on('end', () => {
      if (incoming.url === '/sample/json' || incoming.url === '/sample/stream') {
        samples.set(incoming.url.slice(8), Buffer.concat(chunks))
        outgoing.end()
        return
      }
      const answer = samples.get(incoming.url === '/stream' ? 'stream' : 'json')
      outgoing.writeHead(200, { 'content-type': 'application/json' }).end(answer)
    })
  })
  bare.listen(0, '127.0.0.1', () => {
    const urls: Urls = { refrain, bare: `http://127.0.0.1:${(bare.address() as AddressInfo).port}` }
    process.send?.(urls)
  })
  process.on('message', () => process.send?.(process.cpuUsage()))
  process.on('disconnect', () => process.exit(0))
}

const agent = new Agent({ keepAlive: true, maxSockets: 1 })

function post(url: string, body: string): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }
    const outgoing = request(url, { method: 'POST', agent, headers }, (incoming) => {
      const chunks: Buffer[] = []
      incoming.on('data', (chunk) => chunks.push(chunk))
      incoming.on('end', () => resolve(Buffer.concat(chunks)))
    })
    outgoing.on('error', reject)
    outgoing.end(body)
  })
}

/** A conversation of about `bytes` bytes whose last message is `turn`. */
function bodyOf(bytes: number, turn: number, stream: boolean): string {
  const text = 'The agent reads a file, thinks, calls a tool and reads what came of it. '
  const messages = [{ role: 'system', content: 'You are a careful agent.' }]
  for (let i = 0; JSON.stringify(messages).length < bytes - 150; i++) {
    messages.push({
      role: i % 2 === 0 ? 'user' : 'assistant',
      content: text.repeat(Math.min(20, Math.ceil(bytes / 2000))),
    })
  }
  messages.push({ role: 'user', content: `Turn ${turn}: go on.` })
  return JSON.stringify({ model: 'smollm2-135m-instruct', messages, max_tokens: 100, temperature: 0, stream })
}

function percentile(times: readonly number[], share: number): number {
  const sorted = [...times].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}

/** CPU milliseconds that the child has used. */
function cpuOf(child: ChildProcess): Promise<number> {
  return new Promise((resolve) => {
    child.once('message', (usage) => {
      const { user, system } = usage as NodeJS.CpuUsage
      resolve((user + system) / 1000)
    })
    child.send('cpu')
  })
}

async function measure(child: ChildProcess, urls: Urls, { bytes, stream, count }: Case) {
  const path = stream ? '/stream' : '/json'
  const sample = await post(`${urls.refrain}/v1/chat/completions`, bodyOf(bytes, -1, stream))
  await post(`${urls.bare}/sample${path}`, sample.toString())
  const sides = { refrain: `${urls.refrain}/v1/chat/completions`, bare: urls.bare + path }
  const times = { refrain: [] as number[], bare: [] as number[] }
  const cpu = { refrain: 0, bare: 0 }
  for (let turn = -WARM_UP; turn < count; turn += ROUND) {
    for (const side of ['refrain', 'bare'] as const) {
      const cpuBefore = await cpuOf(child)
      for (let i = turn; i < turn + ROUND; i++) {
        const body = bodyOf(bytes, i, stream)
        const started = performance.now()
        const answer = await post(sides[side], body)
        if (turn >= 0) times[side].push(performance.now() - started)
        if (answer.length < ANSWER.length) throw new Error(`${side} answered ${answer}`)
      }
      if (turn >= 0) cpu[side] += (await cpuOf(child)) - cpuBefore
    }
  }
  const both = (of: (side: 'refrain' | 'bare') => number) => {
    const row = { refrain: of('refrain'), bare: of('bare') }
    return { ...row, overhead: row.refrain - row.bare }
  }
  return {
    p50: both((side) => percentile(times[side], 0.5)),
    p99: both((side) => percentile(times[side], 0.99)),
    cpu: both((side) => cpu[side] / times[side].length),
  }
}

interface Case {
  readonly bytes: number
  readonly stream: boolean
  readonly count: number
}

async function main(count: number): Promise<void> {
  const child: ChildProcess = fork(fileURLToPath(import.meta.url), ['--serve'], { stdio: ['ignore', 2, 2, 'ipc'] })
  const urls = await new Promise<Urls>((resolve, reject) => {
    child.once('message', (message) => resolve(message as Urls))
    child.once('exit', (code) => reject(new Error(`the servers ended with ${code}`)))
  })
  const results: Record<string, Awaited<ReturnType<typeof measure>>> = {}
  for (const [name, bytes] of Object.entries(SIZES)) {
    for (const stream of [false, true]) {
      const label = `${name} ${stream ? 'stream' : 'whole'}`
      const result = await measure(child, urls, { bytes, stream, count })
      results[label] = result
      const shown = (['p50', 'cpu'] as const).map((what) => {
        const { refrain, bare, overhead } = result[what]
        return `${what} ${refrain.toFixed(2)} - ${bare.toFixed(2)} = ${overhead.toFixed(2)} ms`
      })
      process.stderr.write(`${label.padEnd(14)} ${shown.join(', ')}\n`)
    }
  }
  agent.destroy()
  child.disconnect()
  process.stdout.write(
    `${JSON.stringify({ bench: 'overhead', requests: count, goalMs: { '2 KB whole': 1, '40 KB whole': 2 }, results })}\n`,
  )
}

if (process.argv[2] === '--serve') await serve()
else await main(Number(process.argv[2] ?? 1500))
