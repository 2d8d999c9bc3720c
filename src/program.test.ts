// The whole program as its user runs it: the built server with a toy model, restarted, killed in mid-write, shared by
// tenants; and with the real model where its weights were pulled. Output with the cache equals output without it.

import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { pulledSmolLm2 } from './testing/imported-model.js'
import { isBuilt, post, type Served, serve } from './testing/served.js'
import { sharesImports } from './testing/shared-imports.js'
import { writeToyModel } from './testing/toy-model.js'

let folder: string
const running: Served[] = []

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-program-'))
})

afterEach(async () => {
  for (const served of running.splice(0)) await served.end('SIGKILL')
  await rm(folder, { recursive: true, force: true })
})

async function start(model: string, config = ''): Promise<Served> {
  const file = join(folder, 'config.yaml')
  await writeFile(file, config || 'cache:\n  restore: always\n')
  const served = await serve(['--config', file, '--data-dir', join(folder, 'data'), '--model', model])
  running.push(served)
  return served
}

async function toy(): Promise<string> {
  const path = join(folder, 'toy.gguf')
  await writeToyModel(path, { architecture: 'llama', quantization: 'Q4_1' })
  return path
}

const text = (seed: number, words: number) =>
  Array.from({ length: words }, (_, i) => `w${(seed * 31 + i * i * 7) % 97}`).join(' ')
const ask = (served: Served, prompt: string, more = {}, options = {}) =>
  post(served.url, '/v1/completions', { prompt, max_tokens: 24, ignore_eos: true, ...more }, options)

describe.skipIf(!isBuilt)('the program with a toy model (needs npm run build)', () => {
  test('says the same with the cache off, on, from memory, after a restart and after kill -9 in mid-write; a second process is kept out of the data folder', async () => {
    const model = await toy()
    const prompts = [text(1, 150), `${text(1, 150)} ${text(2, 60)}`, text(3, 40), `${text(1, 90)} ${text(4, 90)}`]
    const off = await start(model, 'cache:\n  enabled: false\n')
    const expected: string[] = []
    for (const prompt of prompts) expected.push((await ask(off, prompt)).text)
    expect((await ask(off, prompts[0] as string)).tiers).toMatchObject({ working: 0, memory: 0, disk: 0 })
    expect(await off.end('SIGTERM')).toBe(0)

    const all = async (served: Served) => {
      const answers = []
      for (const prompt of prompts) answers.push(await ask(served, prompt))
      expect(answers.map((answer) => answer.text)).toEqual(expected)
      return answers
    }
    const first = await start(model)
    await expect(start(model)).rejects.toThrow(new RegExp(`code 2.*${first.pid}`, 's'))
    await all(first)
    const warm = await all(first)
    for (const { tiers } of warm) expect(tiers['computed']).toBeLessThanOrEqual(65)
    expect(await first.end('SIGTERM')).toBe(0)

    const second = await start(model)
    const restored = await all(second)
    expect(restored[0]?.tiers).toMatchObject({ working: 0, memory: 0 })
    expect(restored[0]?.tiers['disk']).toBeGreaterThanOrEqual(256)
    // Killed while a hundred blocks are on their way to the disk.
    const fresh = Array.from({ length: 6 }, (_, i) => ask(second, text(50 + i, 300)).catch(() => undefined))
    await Promise.race(fresh)
    await second.end('SIGKILL')
    await Promise.all(fresh)

    const third = await start(model)
    await all(third)
    await Promise.all(Array.from({ length: 6 }, (_, i) => ask(third, text(50 + i, 300))))
    expect(third.log()).not.toContain('"level":50')
  }, 120_000)

  test('two tenants never share a hit, the same tenant does; n choices, a client that leaves, and eight sessions at once leave nothing behind', async () => {
    const config = [
      'tenants:',
      '  - { name: a, key: key-of-tenant-a, admin: true }',
      '  - { name: b, key: key-of-tenant-b }',
      'cache: { restore: always }',
    ].join('\n')
    const served = await start(await toy(), config)
    const nothing = { working: 0, memory: 0, disk: 0 }
    const as = async (key: string) => (await ask(served, text(1, 120), { max_tokens: 4 }, { key })).tiers
    expect(await as('key-of-tenant-a')).toMatchObject(nothing)
    expect(await as('key-of-tenant-b')).toMatchObject(nothing)
    expect((await as('key-of-tenant-a'))['working']).toBeGreaterThan(0)

    const key = 'key-of-tenant-a'
    const one = await ask(served, text(1, 60), {}, { key })
    const three = await ask(served, text(1, 60), { n: 3 }, { key })
    expect(three.text).toBe([one.text, one.text, one.text].join('\0'))
    const abort = new AbortController()
    const left = ask(served, text(9, 400), { max_tokens: 500 }, { key }).catch(() => 'left')
    const gone = ask(served, text(8, 500), { max_tokens: 800 }, { key, signal: abort.signal })
    setTimeout(() => abort.abort(), 60)
    await expect(gone).rejects.toThrow()
    await Promise.all([left, ...Array.from({ length: 8 }, (_, i) => ask(served, text(20 + i, 100), {}, { key }))])
    const read = async (path: string) =>
      (await fetch(served.url + path, { headers: { authorization: `Bearer ${key}` } })).json()
    await expect.poll(() => read('/ready')).toMatchObject({ running: 0, waiting: 0 })
    const status = (await read('/v1/cache')) as { data: { tiers: { tier: string; used_slots?: number }[] }[] }
    expect(status.data[0]?.tiers.find(({ tier }) => tier === 'working')?.used_slots).toBe(0)
  }, 60_000)
})

const weights = pulledSmolLm2()
const referencePath = fileURLToPath(new URL('../../shared/fixtures/smollm2-reference/reference.json', import.meta.url))
const hasReal = isBuilt && weights !== undefined && existsSync(referencePath)

describe.skipIf(!hasReal)('the program with SmolLM2 (needs its weights pulled, and ../shared)', () => {
  test('answers as the reference does, cold, warm from memory and after a restart', async () => {
    const { chats } = JSON.parse(readFileSync(referencePath, 'utf8')) as {
      chats: { messages: object[]; token_ids: number[]; greedy_ids: number[] }[]
    }
    const all = async (served: Served) => {
      for (const { messages, token_ids: ids, greedy_ids: greedy } of chats) {
        const body = { messages, max_tokens: greedy.length, ignore_eos: true }
        const answer = await post(served.url, '/v1/chat/completions', body)
        expect(answer.usage).toMatchObject({ prompt_tokens: ids.length, completion_tokens: greedy.length })
        const decoded = await fetch(`${served.url}/v1/detokenize`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify({ tokens: greedy }),
        })
        const { content } = (await decoded.json()) as { content: string }
        expect(answer.text).toBe(content.replace(/<\|\w+\|>/g, ''))
      }
    }
    const model = weights as string
    await sharesImports(join(folder, 'data'))
    const first = await start(model)
    await all(first)
    await all(first)
    await first.end('SIGTERM')
    const second = await start(model)
    await all(second)
  }, 180_000)
})
