// A fleet that follows what its members' caches do: a stub that publishes as vLLM does and tokenizes when asked; the built
// program, whose worker tells its blocks; and the real model behind the fleet, where what is foretold is what is reported.

import { copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type Follower, followMember } from './backend/kv-events/follower.js'
import { type BlockPublisher, publishBlocks } from './backend/kv-events/publisher.js'
import { BLOCK_TOKENS, type BlockHash, type Root } from './core/block.js'
import { blockPlaced, kvHeard } from './core/signals.js'
import { fleetHouse } from './testing/fleet-house.js'
import { HeldIndex } from './testing/held-index.js'
import { openImported, pulledSmolLm2 } from './testing/imported-model.js'
import { isBuilt, post, type Served, serve } from './testing/served.js'
import { sharesImports } from './testing/shared-imports.js'
import { type StubRequest, saying } from './testing/stub-upstream.js'
import { writeToyModel } from './testing/toy-model.js'

let folder: string
const closing: (() => unknown)[] = []

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-followed-'))
})
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
  await rm(folder, { recursive: true, force: true })
})

async function until(what: () => boolean | Promise<boolean>): Promise<void> {
  const end = Date.now() + 20_000
  while (!(await what())) {
    if (Date.now() > end) throw new Error('it did not come about')
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

/** A free port of this machine. */
async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  await new Promise((resolve) => server.close(resolve))
  return port
}

/** A busy machine may take longer for tokens than a request is held up for them. */
const PATIENT = { 'fleet.tokenizeMs': 20_000 }
const eventsAt = ({ endpoints }: BlockPublisher) => ({ endpoint: endpoints.publish, replay: endpoints.replay })
const hitIn = (response: Response) => Number(/hit=(\d+)/.exec(response.headers.get('x-refrain-route') ?? '')?.[1])

describe('a member that publishes', () => {
  /** A token for each character, as its engine would have it. */
  const rendered = (messages: readonly { role: string; content: string }[], isOpen: boolean) =>
    `${messages.map(({ role, content }) => `<${role}>${content}</${role}>`).join('')}${isOpen ? '<assistant>' : ''}`
  const idsOf = (text: string) => Int32Array.from(text, (char) => char.charCodeAt(0))

  /** What an engine says when it stored the blocks of `ids`. */
  function store(ids: Int32Array): void {
    const root = 'f'.repeat(32) as Root
    let parent: BlockHash | Root = root
    for (let i = 0; (i + 1) * BLOCK_TOKENS <= ids.length; i++) {
      const tokens = ids.slice(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS)
      const hash = `${i}${tokens.reduce((sum, id) => (sum * 31 + id) % 1e9, 7)}`.padStart(32, '0') as BlockHash
      blockPlaced.publish({ what: 'stored', tier: 'memory', hash, root, parent, tokens })
      parent = hash
    }
  }

  test('is asked for tokens of what is new, and its events foretell the hit', async () => {
    const published = await publishBlocks({
      ...{ publish: 'tcp://127.0.0.1:*', replay: 'tcp://127.0.0.1:*', topic: '' },
      ...{ bufferSteps: 100, bufferBytes: 2 ** 20 },
    })
    closing.push(() => published.close())
    const messages = [
      { role: 'system', content: 'You are brief. '.repeat(20) },
      { role: 'user', content: 'What is the time?' },
    ]
    const before = idsOf(rendered(messages, true))
    store(before)
    const house = await fleetHouse({ entries: [{ events: eventsAt(published) }, {}], config: PATIENT })
    closing.push(() => house.close())
    const tokenized: StubRequest[] = []
    for (const stub of house.stubs) {
      const speak = saying(['Noon.'])
      stub.answer = (request, response, socket) => {
        if (request.path !== '/tokenize') return speak(request, response, socket)
        tokenized.push(request)
        const { messages: asked, add_generation_prompt: isOpen } = request.body as never
        response.writeHead(200, { 'content-type': 'application/json' })
        response.end(JSON.stringify({ tokens: [...idsOf(rendered(asked, isOpen))] }))
      }
    }
    const foretold = Math.floor(before.length / BLOCK_TOKENS) * BLOCK_TOKENS
    await until(async () => hitIn(await house.chat({ messages })) === foretold)
    const next = [
      ...messages,
      { role: 'assistant', content: 'Noon.' },
      { role: 'user', content: 'Thank you. '.repeat(9) },
    ]
    tokenized.length = 0
    expect(hitIn(await house.chat({ messages: next }))).toBe(foretold)
    expect(tokenized.every(({ text }) => !text.includes('You are brief'))).toBe(true)
    const state = (await (await fetch(`${house.url}/v1/backends`)).json()) as { data: { knowledge: string }[] }
    expect(state.data.map(({ knowledge }) => knowledge)).toEqual(['precise', 'learned'])
  })
})

async function started(model: string, config: object): Promise<Served> {
  const file = join(folder, 'config.yaml')
  await writeFile(file, JSON.stringify(config))
  const served = await serve(['--config', file, '--data-dir', join(folder, 'data'), '--model', model])
  closing.push(() => served.end('SIGKILL'))
  return served
}

describe.skipIf(!isBuilt)('the built program that publishes (needs npm run build)', () => {
  test('is followed through commits, evictions, clears and its end', async () => {
    const model = join(folder, 'toy.gguf')
    await writeToyModel(model, { architecture: 'llama', quantization: 'Q4_1' })
    const [publish, replay] = [`tcp://127.0.0.1:${await freePort()}`, `tcp://127.0.0.1:${await freePort()}`]
    const config = { events: { publish, replay, topic: 'kv@' }, cache: { memoryBytes: '256 KiB', diskBytes: 0 } }
    const index = new HeldIndex()
    const options = { endpoint: publish, replay, topic: 'kv@', bind: false, ranks: 1, aliases: 10_000 }
    const follower: Follower = await followMember({ member: 'm', events: options }, { sink: index })
    closing.push(() => follower.close())
    const held = async (served: Served): Promise<number> => {
      const answer = (await (await fetch(`${served.url}/v1/cache`)).json()) as {
        data: { tiers: { tier: string; blocks?: number }[] }[]
      }
      return answer.data[0]?.tiers.find(({ tier }) => tier === 'memory')?.blocks ?? -1
    }
    const text = (seed: number) => Array.from({ length: 200 }, (_, i) => `w${(seed * 31 + i * i * 7) % 97}`).join(' ')
    const ask = (served: Served, seed: number, more = {}) =>
      post(served.url, '/v1/completions', { prompt: text(seed), max_tokens: 4, ...more })

    const first = await started(model, config)
    await ask(first, 1, { cache_salt: 'team' })
    await until(async () => index.held('m', 'host').length === (await held(first)))
    expect(index.held('m', 'host').length).toBeGreaterThan(2)
    expect(follower.state.complete).toBe(true)
    const before = index.held('m', 'host')
    for (let seed = 2; seed < 12; seed++) await ask(first, seed)
    await until(async () => index.held('m', 'host').length === (await held(first)))
    expect(index.held('m', 'host')).not.toEqual(expect.arrayContaining(before))
    await fetch(`${first.url}/v1/cache`, { method: 'DELETE' })
    await until(() => index.held('m', 'host').length === 0)
    await ask(first, 1)
    await until(() => index.held('m', 'host').length > 0)
    expect(await first.end('SIGTERM')).toBe(0)

    const second = await started(model, config)
    await until(() => follower.state.connected && follower.state.complete && index.held('m', 'host').length === 0)
    await ask(second, 7)
    await until(async () => index.held('m', 'host').length === (await held(second)))
    expect(index.complaints).toEqual([])
  }, 60_000)

  test.skipIf(pulledSmolLm2() === undefined)(
    'behind a fleet reports the hits that were foretold (needs `refrain pull smollm2-135m-instruct`)',
    async () => {
      const model = pulledSmolLm2() as string
      const imported = await openImported(model, await sharesImports(join(folder, 'data')))
      await imported.runner.close()
      const tokenizer = join(folder, 'tokenizer')
      await mkdir(tokenizer)
      await copyFile(join(imported.directory, 'tokenizer.json'), join(tokenizer, 'tokenizer.json'))
      const manifest = JSON.parse(await readFile(join(imported.directory, 'manifest.json'), 'utf8'))
      const named = { chat_template: manifest.template, bos_token: '<|im_start|>', eos_token: '<|im_end|>' }
      await writeFile(join(tokenizer, 'tokenizer_config.json'), JSON.stringify(named))
      const [publish, replay] = [`tcp://127.0.0.1:${await freePort()}`, `tcp://127.0.0.1:${await freePort()}`]
      const served = await started('smollm2-135m-instruct', { events: { publish, replay } })
      const entry = { url: served.url, kind: 'refrain', tokenizer, events: { endpoint: publish, replay } }
      const house = await fleetHouse({ stubs: [], config: { backends: [entry], ...PATIENT } })
      closing.push(() => house.close())
      let stored = 0
      closing.push(
        kvHeard.subscribe((heard) => {
          stored += heard.stored
        }),
      )
      const said: number[] = []
      const foretold: number[] = []
      const messages = [{ role: 'system', content: `You are brief. ${'Answer in one sentence. '.repeat(30)}` }]
      for (let turn = 0; turn < 3; turn++) {
        messages.push({ role: 'user', content: `Tell me fact number ${turn} about the sea. ${'Please. '.repeat(20)}` })
        const response = await house.chat({ model: 'smollm2-135m-instruct', messages, max_tokens: 24, temperature: 0 })
        const { choices, usage } = (await response.json()) as {
          choices: { message: { content: string } }[]
          usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } }
        }
        messages.push({ role: 'assistant', content: choices[0]?.message.content as string })
        said.push(usage.prompt_tokens_details.cached_tokens)
        foretold.push(hitIn(response))
        // The events travel while a client thinks.
        await until(() => stored >= Math.floor(usage.prompt_tokens / BLOCK_TOKENS))
      }
      // Its slot holds the last part of a block too, which no event tells of.
      const blocks = said.map((tokens) => Math.floor(tokens / BLOCK_TOKENS) * BLOCK_TOKENS)
      expect(foretold.slice(1)).toEqual(blocks.slice(1))
      expect(blocks.at(-1)).toBeGreaterThan(250)
    },
    120_000,
  )
})
