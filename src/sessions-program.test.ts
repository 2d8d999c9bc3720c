// Logged sessions in the whole program as its user runs it, with a toy model: a fork into eight computes the shared prefix once,
// every turn is what it was after a restart and after a kill, and what is erased is in no file: no word, no token run.

import { existsSync } from 'node:fs'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { isBuilt, type Served, serve } from './testing/served.js'
import { writeToyModel } from './testing/toy-model.js'

let folder: string
const running: Served[] = []
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-sessions-'))
})
afterEach(async () => {
  for (const served of running.splice(0)) await served.end('SIGKILL')
  await rm(folder, { recursive: true, force: true })
})

async function start(): Promise<Served> {
  const file = join(folder, 'config.yaml')
  await writeFile(file, 'cache:\n  restore: always\n')
  const model = join(folder, 'toy.gguf')
  if (!existsSync(model)) await writeToyModel(model, { architecture: 'llama', quantization: 'Q4_1' })
  const served = await serve(['--config', file, '--data-dir', join(folder, 'data'), '--model', model])
  running.push(served)
  return served
}

// biome-ignore lint/suspicious/noExplicitAny: an answer's shape is what the test is about to assert
type Answer = { status: number; json: any; cache: string }

async function ask({ url }: Served, method: string, path: string, body?: object): Promise<Answer> {
  const response = await fetch(url + path, {
    method,
    ...(body && { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
  })
  return { status: response.status, json: await response.json(), cache: response.headers.get('x-refrain-cache') ?? '' }
}

const chat = (served: Served, session: string, content: string) =>
  ask(served, 'POST', '/v1/chat/completions', {
    session,
    ...{ messages: [{ role: 'user', content }], max_tokens: 24, temperature: 0, ignore_eos: true },
  })
const words = (seed: number, count: number) =>
  Array.from({ length: count }, (_, i) => `w${(seed * 31 + i * i * 7) % 97}`).join(' ')
const reused = (cache: string) =>
  [...cache.matchAll(/(working|memory|disk)=(\d+)/g)].reduce((sum, [, , tokens]) => sum + Number(tokens), 0)

async function replay(served: Served, id: string): Promise<unknown[]> {
  const { turns } = (await ask(served, 'GET', `/v1/sessions/${id}`)).json
  const views = []
  for (let turn = 1; turn <= turns; turn++)
    views.push((await ask(served, 'GET', `/v1/sessions/${id}/context?at=${turn}`)).json)
  return views
}

/** Names of files below the data folder with these bytes. */
async function holds(what: Buffer): Promise<string[]> {
  const all = await readdir(join(folder, 'data'), { recursive: true, withFileTypes: true })
  const found: string[] = []
  for (const each of all.filter((entry) => entry.isFile())) {
    const bytes = await readFile(join(each.parentPath, each.name)).catch(() => Buffer.alloc(0))
    if (bytes.includes(what)) found.push(each.name)
  }
  return found
}

describe.skipIf(!isBuilt)('the program with a toy model (needs npm run build)', () => {
  test('eight forks prefill the full blocks of one; after a restart and a kill every turn is what it was', async () => {
    const first = await start()
    const { id } = (await ask(first, 'POST', '/v1/sessions', { system: words(1, 150) })).json
    expect((await chat(first, id, words(2, 60))).status).toBe(200)
    const forks = (await ask(first, 'POST', `/v1/sessions/${id}/fork`, { n: 8 })).json.data as { id: string }[]
    const answers = await Promise.all(forks.map((fork, i) => chat(first, fork.id, `And ${i}?`)))
    for (const { status, json, cache } of answers) {
      expect(status).toBe(200)
      // All that was there before the fork but for its last, partial block.
      const shared = Math.floor((json.usage.prompt_tokens - 40) / 64) * 64
      expect(reused(cache)).toBeGreaterThanOrEqual(shared - 64)
    }
    const ids = [id, ...forks.map((fork) => fork.id)]
    const before = await Promise.all(ids.map((each) => replay(first, each)))
    expect(before.flat().every((view) => (view as { matches: boolean }).matches)).toBe(true)
    await first.end('SIGTERM')
    const second = await start()
    expect(await Promise.all(ids.map((each) => replay(second, each)))).toEqual(before)
    const resumed = (await ask(second, 'POST', `/v1/sessions/${id}/resume`)).json
    expect(resumed.computed_tokens).toBeLessThan(128)
    expect((await chat(second, id, 'More')).status).toBe(200)
    await second.end('SIGKILL')
    const third = await start()
    const again = await replay(third, id)
    expect(again.slice(0, before[0]?.length)).toEqual(before[0])
    expect(again).toHaveLength((before[0]?.length ?? 0) + 1)
  }, 120_000)

  test('what is erased is in no file: no word and no token run of it', async () => {
    const served = await start()
    const secret = words(7, 300)
    const { id } = (await ask(served, 'POST', '/v1/sessions', { system: 'Guard this.' })).json
    for (const each of ['x', 'y']) expect((await chat(served, id, `${each} ${secret}`)).status).toBe(200)
    const { tokens } = (await ask(served, 'POST', '/v1/tokenize', { content: secret, add_special: false })).json
    const run = Buffer.from(Int32Array.from((tokens as number[]).slice(100, 108)).buffer)
    // Written behind the answer's back, in time.
    await expect.poll(() => holds(run), { timeout: 20_000, interval: 250 }).not.toEqual([])
    expect((await ask(served, 'DELETE', `/v1/sessions/${id}`)).json).toMatchObject({ deleted: true })
    await expect.poll(() => holds(run), { timeout: 20_000, interval: 250 }).toEqual([])
    for (const text of [secret.slice(0, 60), 'Guard this.']) expect(await holds(Buffer.from(text))).toEqual([])
    expect((await ask(served, 'GET', `/v1/sessions/${id}/turns`)).status).toBe(404)
    const other = (await ask(served, 'POST', '/v1/sessions', { system: 'Guard this.' })).json.id
    const fresh = await chat(served, other, `x ${secret}`)
    expect(reused(fresh.cache)).toBe(0)
    expect((await ask(served, 'DELETE', '/v1/tenants/default')).status).toBe(200)
    await served.end('SIGTERM')
    expect([...(await holds(run)), ...(await holds(Buffer.from(secret.slice(0, 60))))]).toEqual([])
  }, 120_000)

  test('what rests on a revoked source is in no prompt and in no block of any tier', async () => {
    const served = await start()
    const secret = words(9, 200)
    const { id } = (await ask(served, 'POST', '/v1/sessions', { system: words(1, 80) })).json
    expect((await chat(served, id, words(3, 80))).status).toBe(200)
    const tainted = { type: 'user', content: secret, sources: ['web'] }
    await ask(served, 'POST', `/v1/sessions/${id}/events`, { events: [tainted] })
    expect((await chat(served, id, 'And?')).status).toBe(200)
    const [fork] = (await ask(served, 'POST', `/v1/sessions/${id}/fork`, {})).json.data
    expect((await chat(served, fork.id, 'Fork')).status).toBe(200)
    const { tokens } = (await ask(served, 'POST', '/v1/tokenize', { content: secret, add_special: false })).json
    const run = Buffer.from(Int32Array.from((tokens as number[]).slice(64, 72)).buffer)
    await expect.poll(() => holds(run), { timeout: 20_000, interval: 250 }).not.toEqual([])
    const { sessions } = (await ask(served, 'PUT', '/v1/sources/web', { state: 'revoked' })).json
    expect(sessions.map((each: { session: string }) => each.session).sort()).toEqual([id, fork.id].sort())
    await expect.poll(() => holds(run), { timeout: 20_000, interval: 250 }).toEqual([])
    for (const each of [id, fork.id]) {
      expect((await chat(served, each, 'Go on')).status).toBe(200)
      const { prompt, messages } = (await ask(served, 'GET', `/v1/sessions/${each}/context`)).json
      expect(prompt).not.toContain(secret.slice(0, 30))
      expect(JSON.stringify(messages)).not.toContain(secret.slice(0, 30))
    }
    await served.end('SIGTERM')
    expect(await holds(run)).toEqual([])
  }, 120_000)
})
