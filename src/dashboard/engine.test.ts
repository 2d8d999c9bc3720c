// The page's questions to the built program with a toy model: the tree crosses from the engine's thread, tells its three
// tiers apart, and a tenant gets no one else's prefixes, those of earlier processes on disk included.

import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { isBuilt, type Served, serve } from '../testing/served.js'
import { writeToyModel } from '../testing/toy-model.js'
import type { TreeNode } from './contract.js'

const text = (seed: number, words: number) =>
  Array.from({ length: words }, (_, i) => `w${(seed * 31 + i * i * 7) % 97}`).join(' ')

describe.skipIf(!isBuilt)('the page and an engine (needs npm run build)', () => {
  let folder: string
  let served: Served
  /** Each request is a session of its own. */
  let asked = 0

  async function start(): Promise<void> {
    served = await serve([
      ...['--config', join(folder, 'config.yaml'), '--data-dir', join(folder, 'data')],
      ...['--model', join(folder, 'toy.gguf')],
    ])
  }

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'refrain-dashboard-'))
    await writeToyModel(join(folder, 'toy.gguf'), { architecture: 'llama', quantization: 'Q4_1' })
    const tenants = ['anna', 'bert', 'ops'].map((name) => ({ name, key: `key-of-${name}`, admin: name === 'ops' }))
    await writeFile(join(folder, 'config.yaml'), JSON.stringify({ tenants, cache: { restore: 'always' } }))
    await start()
  })
  afterAll(async () => {
    await served?.end('SIGKILL')
    await rm(folder, { recursive: true, force: true })
  })

  // biome-ignore lint/suspicious/noExplicitAny: an answer's shape is what the test is about to assert
  async function ask(path: string, who: string, body?: object): Promise<any> {
    const headers = {
      authorization: `Bearer key-of-${who}`,
      'content-type': 'application/json',
      'x-refrain-session': `s${++asked}`,
    }
    const response = await fetch(served.url + path, {
      headers,
      ...(body && { method: 'POST', body: JSON.stringify(body) }),
    })
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`)
    return response.json()
  }
  const complete = (who: string, prompt: string, more: object = {}) =>
    ask('/v1/completions', who, { prompt, max_tokens: 1, ...more })
  const tiersIn = (nodes: TreeNode[]) => [...new Set(nodes.flatMap(({ tiers }) => tiers.map(({ tier }) => tier)))]

  test('a tree of what is shared, by tier and by tenant, over a restart', async () => {
    await complete('anna', `${text(1, 120)} ${text(2, 60)}`)
    await complete('anna', `${text(1, 120)} ${text(3, 60)}`)
    await complete('anna', text(4, 100), { cache_salt: 'apart' })
    await complete('bert', text(1, 120))
    const own = await ask('/v1/dashboard/tree', 'anna')
    const [trunk] = own.nodes as TreeNode[]
    expect(trunk).toMatchObject({ from: 0, uses: 2, sessions: 2 })
    expect(own.nodes.filter(({ parent }: TreeNode) => parent === trunk?.id)).toHaveLength(2)
    // The salted prompt is anna's too.
    expect(own.nodes.filter(({ parent }: TreeNode) => parent === undefined)).toHaveLength(2)
    expect(tiersIn(own.nodes)).toContain('working')
    const theirs = await ask('/v1/dashboard/tree', 'bert')
    expect(theirs.nodes).toHaveLength(1)
    const all = await ask('/v1/dashboard/tree', 'ops')
    expect(all.tokens).toBe(own.tokens + theirs.tokens)
    const feed = await ask('/v1/dashboard/feed', 'ops')
    expect(feed.backends).toMatchObject([{ id: 'embedded', state: 'up', models: ['toy'] }])

    expect(await served.end('SIGTERM')).toBe(0)
    await start()
    const later = await ask('/v1/dashboard/tree', 'anna')
    expect(tiersIn(later.nodes)).toEqual(['disk'])
    expect(later.tokens).toBe(own.tokens)
    expect((await ask('/v1/dashboard/tree', 'bert')).tokens).toBe(theirs.tokens)
    await complete('bert', text(1, 120))
    await expect
      .poll(async () => tiersIn((await ask('/v1/dashboard/tree', 'bert')).nodes), { timeout: 10_000 })
      .toContain('working')
    const full = await ask('/v1/dashboard/feed', 'ops')
    await expect.poll(async () => (await ask('/v1/dashboard/feed', 'ops')).cache?.tiers.length).toBe(3)
    expect(full.server).toMatchObject({ kind: 'engine', has_tree: true })
  })
})
