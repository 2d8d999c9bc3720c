// What the owner alone does for several router processes: it follows a backend's events, of which all processes know, and
// gives seats in a llama-server's slots, of which no two sessions get the same at once.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { Agent, createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { publishBlocks } from './backend/kv-events/publisher.js'
import { BLOCK_TOKENS, type BlockHash, type Root } from './core/block.js'
import { blockPlaced } from './core/signals.js'
import { childrenOf, until } from './testing/processes.js'
import { isBuilt, type Served, serve } from './testing/served.js'
import { saying, startStub } from './testing/stub-upstream.js'

// Each process takes its time to start where others use the machine.
vi.setConfig({ testTimeout: 120_000 })

let folder = ''
const closing: (() => Promise<unknown>)[] = []

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'refrain-cluster-caches-'))
})
afterAll(async () => {
  for (const close of closing.splice(0).reverse()) await close()
  rmSync(folder, { recursive: true, force: true })
})

async function open(backends: readonly object[]): Promise<Served> {
  const file = join(folder, 'config.yaml')
  writeFileSync(file, JSON.stringify({ backends, fleet: { tokenizeMs: 5000, warmUp: false } }))
  const served = await serve(['--config', file, '--data-dir', join(folder, 'data'), '--processes', '2'])
  closing.push(() => served.end('SIGKILL'))
  return served
}

interface Called {
  readonly status: number
  readonly route: string
  readonly text: string
}

/** On a connection of its own: processes get them one after the other. */
function call({ url }: { url: string }, method: string, path: string, body?: object, session?: string) {
  return new Promise<Called>((resolve, reject) => {
    const headers = {
      ...(body && { 'content-type': 'application/json' }),
      ...(session !== undefined && { 'x-session-id': session }),
    }
    const sent = request(url + path, { method, headers, agent: new Agent({ keepAlive: false }) }, (response) => {
      let text = ''
      response.on('data', (bytes) => {
        text += bytes
      })
      response.on('end', () => {
        const route = String(response.headers['x-refrain-route'] ?? '')
        resolve({ status: response.statusCode ?? 0, route, text })
      })
      response.on('error', reject)
    })
    sent.on('error', reject)
    sent.end(body && JSON.stringify(body))
  })
}

/** A server that publishes what it holds: how many blocks of `messages`, and how it is asked. */
async function publishing() {
  const published = await publishBlocks({
    ...{ publish: 'tcp://127.0.0.1:*', replay: 'tcp://127.0.0.1:*', topic: '' },
    ...{ bufferSteps: 100, bufferBytes: 2 ** 20 },
  })
  closing.push(() => published.close())
  const messages = [
    { role: 'system', content: 'You are brief. '.repeat(20) },
    { role: 'user', content: 'What is the time?' },
  ]
  // A token for each character, as its engine would have it.
  const idsOf = (some: typeof messages, isOpen: boolean) =>
    Int32Array.from(
      `${some.map(({ role, content }) => `<${role}>${content}</${role}>`).join('')}${isOpen ? '<assistant>' : ''}`,
      (char) => char.charCodeAt(0),
    )
  const ids = idsOf(messages, true)
  const blocks = Math.floor(ids.length / BLOCK_TOKENS)
  const root = 'f'.repeat(32) as Root
  let parent: BlockHash | Root = root
  for (let i = 0; i < blocks; i++) {
    const hash = `${i}7`.padStart(32, '0') as BlockHash
    const tokens = ids.slice(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS)
    blockPlaced.publish({ what: 'stored', tier: 'memory', hash, root, parent, tokens })
    parent = hash
  }
  const stub = await startStub()
  closing.push(() => stub.kill())
  const speak = saying(['Noon.'])
  stub.answer = (asked, response, socket) => {
    if (asked.path !== '/tokenize') return speak(asked, response, socket)
    const { messages: some, add_generation_prompt: isOpen } = asked.body as never
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify({ tokens: [...idsOf(some, isOpen)] }))
  }
  const { endpoints } = published
  const backend = { url: stub.url, events: { endpoint: endpoints.publish, replay: endpoints.replay } }
  return { backend, messages, blocks }
}

/** A llama-server with two slots, and the model `l`. */
async function slotted() {
  const seen: { slot: number; text: string }[] = []
  const busy = new Set<number>()
  const counts = { clashes: 0 }
  const server = createServer((asked, response) => {
    let text = ''
    asked.on('data', (bytes) => {
      text += bytes
    })
    asked.on('end', () => {
      const say = (value: object, status = 200) => {
        response.writeHead(status, { 'content-type': 'application/json' })
        response.end(JSON.stringify(value))
      }
      const url = asked.url ?? ''
      if (url === '/health') return say({ status: 'ok' })
      if (url === '/props') return say({ total_slots: 2, model_path: 'm.gguf', build_info: 'b1' })
      if (url === '/v1/models') return say({ object: 'list', data: [{ id: 'l', owned_by: 'llamacpp' }] })
      if (url.startsWith('/slots/')) return say({ n_saved: 100, n_restored: 100 })
      if (url !== '/v1/chat/completions' || text === '{}') return say({ error: { message: 'no' } }, 404)
      const { id_slot: slot, messages } = JSON.parse(text) as { id_slot: number; messages: { content: string }[] }
      if (busy.has(slot)) counts.clashes++
      busy.add(slot)
      seen.push({ slot, text: messages[0]?.content ?? '' })
      setTimeout(() => {
        busy.delete(slot)
        say({
          choices: [{ index: 0, message: { role: 'assistant', content: 'a' }, finish_reason: 'stop' }],
          usage: { prompt_tokens: 100, completion_tokens: 1, total_tokens: 101 },
        })
      }, 10)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  closing.push(async () => server.closeAllConnections())
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return { backend: { url, kind: 'llama-cpp' }, seen, counts }
}

// One start for both.
describe.skipIf(!isBuilt)('the owner of two processes (needs npm run build)', () => {
  let served: Served
  let published: Awaited<ReturnType<typeof publishing>>
  let slots: Awaited<ReturnType<typeof slotted>>

  beforeAll(async () => {
    published = await publishing()
    slots = await slotted()
    served = await open([published.backend, slots.backend])
    const isUp = async () => (await call(served, 'GET', '/ready')).text.includes('"notes":[]')
    for (let i = 0; i < 4; i++) await until(isUp)
  }, 120_000)

  test('gives seats: one session, one slot, whichever process asks', async () => {
    const converse = async (name: string) => {
      const messages = [{ role: 'user', content: name }]
      for (let turn = 0; turn < 6; turn++) {
        const { status } = await call(served, 'POST', '/v1/chat/completions', { model: 'l', messages }, name)
        expect(status).toBe(200)
        messages.push({ role: 'assistant', content: 'a' }, { role: 'user', content: `${turn}` })
      }
    }
    await Promise.all(['one', 'two'].map(converse))
    const slotsOf = (name: string) => new Set(slots.seen.filter(({ text }) => text === name).map(({ slot }) => slot))
    expect([...slotsOf('one'), ...slotsOf('two')].sort()).toEqual([0, 1])
    expect(slots.counts.clashes).toBe(0)
    // More sessions than slots: they take turns, and nobody sits on another's.
    await Promise.all(['three', 'four', 'five', 'six'].map(converse))
    expect(slots.counts.clashes).toBe(0)
    const { text } = await call(served, 'GET', '/metrics')
    expect(Number(/refrain_llama_slot_moves_total\{what="saved"\} (\d+)/.exec(text)?.[1])).toBeGreaterThan(0)
  })

  test('follows events, and every process foretells by them, one that came anew too', async () => {
    const { messages, blocks } = published
    const foretold = async () => {
      const { route } = await call(served, 'POST', '/v1/chat/completions', { model: 'm', messages })
      return Number(/hit=(\d+)/.exec(route)?.[1])
    }
    const knowledge = async () => (await call(served, 'GET', '/v1/backends')).text.includes('"knowledge":"precise"')
    for (let i = 0; i < 4; i++) await until(knowledge)
    for (let i = 0; i < 4; i++) await until(async () => (await foretold()) === blocks * BLOCK_TOKENS)
    // Told once, by the owner.
    const { text } = await call(served, 'GET', '/metrics')
    expect(text).toMatch(new RegExp(`refrain_kv_event_blocks_total\\{[^}]*what="stored"\\} ${blocks}\\n`))
    const [victim] = childrenOf(served.pid) as [number]
    process.kill(victim, 'SIGKILL')
    await until(() => served.log().includes('is back'))
    for (let i = 0; i < 4; i++) await until(knowledge)
  })
})
