// A real llama-server behind the fleet: two sessions on one slot, and a server that is killed and started again, cost no
// prefill of what was there. Skipped where ../shared/tools/get-llama-server has built none or no model was pulled.

import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import type { Program } from './compose.js'
import { composeFleet } from './compose-fleet.js'
import { makeConfig } from './config.js'

const caches = process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache')

function binFolder(): string | undefined {
  const peers = join(caches, 'refrain-peers')
  const names = existsSync(peers) ? readdirSync(peers).filter((name) => name.startsWith('llama-')) : []
  return names.map((name) => join(peers, name, 'bin')).find((bin) => existsSync(join(bin, 'llama-server')))
}

function modelFile(): string | undefined {
  const folder = join(caches, 'refrain', 'models')
  const files = existsSync(folder) ? readdirSync(folder, { recursive: true, encoding: 'utf8' }) : []
  const found = files.find((file) => /smollm2-135m.*\.gguf$/i.test(file))
  return found === undefined ? undefined : join(folder, found)
}

const bin = binFolder()
const model = modelFile()

let child: ChildProcess | undefined
let program: Program | undefined
/** How it came to its end. */
let ended: string | undefined
const folder = mkdtempSync(join(tmpdir(), 'refrain-llama-'))

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  await new Promise((resolve) => server.close(resolve))
  return port
}

async function startLlama(port: number): Promise<void> {
  const slots = join(folder, 'slots')
  mkdirSync(slots, { recursive: true })
  const args = [
    '-m',
    model!,
    '--port',
    String(port),
    '-np',
    '1',
    '-c',
    '2048',
    '-t',
    '1',
    '--no-warmup',
    '--slot-save-path',
    slots,
  ]
  child = spawn(join(bin!, 'llama-server'), args, { stdio: 'ignore', env: { ...process.env, LD_LIBRARY_PATH: bin! } })
  child.once('exit', (_, signal) => {
    ended = signal ?? 'exit'
  })
  ended = undefined
  const answers = async () => (await fetch(`http://127.0.0.1:${port}/health`).catch(() => undefined))?.ok === true
  await until(async () => ended !== undefined || answers())
}

async function stopLlama(): Promise<void> {
  if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
  const gone = new Promise((resolve) => child?.once('exit', resolve))
  if (child.kill('SIGKILL')) await gone
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 600; tries++) {
    if (await holds()) return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error('it never came true')
}

afterEach(async () => {
  await program?.stop(0)
  await stopLlama()
  rmSync(folder, { recursive: true, force: true })
})

test.skipIf(bin === undefined || model === undefined)(
  'sessions outlive their slot and their server (needs llama-server and smollm2-135m-instruct)',
  { timeout: 60_000 },
  async ({ skip }) => {
    const port = await freePort()
    await startLlama(port)
    skip(ended === 'SIGILL', 'this llama-server was built for another processor')
    const backends = [{ url: `http://127.0.0.1:${port}` }]
    const flags = { 'server.port': 0, dataDir: join(folder, 'data'), backends, 'fleet.slotSaveMs': 50 }
    program = await composeFleet(makeConfig({ flags }))
    const url = await program.start()
    const isReady = async () => (await fetch(`${url}/ready`)).ok
    await until(isReady)
    const talks = new Map<string, object[]>()
    const turn = async (session: string) => {
      const messages = talks.get(session) ?? [
        { role: 'system', content: `You are ${session}. ${session} knows. `.repeat(20) },
      ]
      messages.push({ role: 'user', content: `Say a word about number ${messages.length}.` })
      const response = await fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'x-refrain-session': session },
        body: JSON.stringify({ messages, max_tokens: 8, temperature: 0 }),
      })
      const { choices, usage } = (await response.json()) as {
        choices: [{ message: object }]
        usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } }
      }
      talks.set(session, [...messages, choices[0].message])
      return { prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details.cached_tokens }
    }
    const first = { alice: await turn('alice'), bob: await turn('bob') }
    const alice = await turn('alice')
    expect(alice.cached).toBeGreaterThanOrEqual(first.alice.prompt - 8)
    const bob = await turn('bob')
    expect(bob.cached).toBeGreaterThanOrEqual(first.bob.prompt - 8)
    // Bob rests, and his slot is saved.
    await new Promise((resolve) => setTimeout(resolve, 500))
    await stopLlama()
    await until(async () => !(await isReady()))
    await startLlama(port)
    await until(isReady)
    expect((await turn('alice')).cached).toBeGreaterThanOrEqual(alice.prompt - 8)
    expect((await turn('bob')).cached).toBeGreaterThanOrEqual(bob.prompt - 8)
  },
)
