// Question: what does Refrain add to a request in front of and behind the engine: HTTP, decoding, template, tokens, hashes?
// Method: the scripted backend (no model, answers at once) with a 256k window in a process of its own, beside a bare
// node:http server in the same process that reads the same body and sends the same bytes. One client, one connection to
// each, requests in turn, every body new at its end; whole answers, and streams to their last byte. Overhead is the
// difference of the medians. Goal: 1 ms at 2 KB, 2 ms at 40 KB, whole answers. Ceiling: 0.
// Run: npm run bench -- overhead [requests]

import { type ChildProcess, fork } from 'node:child_process'
import { Agent, createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import { scriptedProgram } from '../src/testing/scripted-program.js'

const ANSWER = 'An answer of some thirty tokens, as an agent gets it when it calls a tool. '.repeat(2)
const WARM_UP = 300
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

async function measure(urls: Urls, bytes: number, stream: boolean, count: number) {
  const path = stream ? '/stream' : '/json'
  const sample = await post(`${urls.refrain}/v1/chat/completions`, bodyOf(bytes, -1, stream))
  await post(`${urls.bare}/sample${path}`, sample.toString())
  const times = { refrain: [] as number[], bare: [] as number[] }
  for (let turn = 0; turn < WARM_UP + count; turn++) {
    const body = bodyOf(bytes, turn, stream)
    for (const side of ['refrain', 'bare'] as const) {
      const url = side === 'bare' ? urls.bare + path : `${urls.refrain}/v1/chat/completions`
      const started = performance.now()
      const answer = await post(url, body)
      if (turn >= WARM_UP) times[side].push(performance.now() - started)
      if (answer.length < ANSWER.length) throw new Error(`${side} answered ${answer}`)
    }
  }
  const row = (share: number) => ({ refrain: percentile(times.refrain, share), bare: percentile(times.bare, share) })
  const p50 = row(0.5)
  const p99 = row(0.99)
  return { p50: { ...p50, overhead: p50.refrain - p50.bare }, p99: { ...p99, overhead: p99.refrain - p99.bare } }
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
      const result = await measure(urls, bytes, stream, count)
      results[label] = result
      const shown = Object.entries(result.p50).map(([side, ms]) => `${side} ${ms.toFixed(2)} ms`)
      process.stderr.write(
        `${label.padEnd(14)} p50: ${shown.join(', ')}; p99 overhead ${result.p99.overhead.toFixed(2)} ms\n`,
      )
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
