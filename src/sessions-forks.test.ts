// Forks of logged sessions: what they have in common is prefilled once, however many go on at once from a cold cache; forks of
// forks replay to the byte. Counted by the scripted engine's ideal cache, over HTTP.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { Refrain, type Session } from './client/index.js'
import type { Program } from './compose.js'
import { scriptedProgram } from './testing/scripted-program.js'

const BLOCK = 64
let program: Program
let url: string
let refrain: Refrain

beforeAll(async () => {
  program = await scriptedProgram(
    { 'backend.options': { template: 'chatml', toolCalls: 'hermes' }, 'sessions.log.store': 'memory' },
    { script: ({ request }) => `I am ${request.session?.slice(-6)}.` },
  )
  url = await program.start()
  refrain = new Refrain({ baseUrl: url })
})
afterAll(() => program.stop(0))

/** Full blocks that a turn newly computed. */
async function blocksOf(session: Session | undefined, content: string): Promise<number> {
  const reply = await session?.chat(content, { temperature: 0 })
  return (reply?.usage.prompt_tokens_details.cache_write_tokens ?? Number.NaN) / BLOCK
}

const sum = (all: readonly number[]) => all.reduce((total, each) => total + each, 0)

test('eight at once prefill the full blocks of one', async () => {
  const session = await refrain.sessions.create({ system: 'A rule of the house. '.repeat(200) })
  for (const each of ['a', 'b', 'c']) await session.chat(`${each} `.repeat(300))
  // Ends in the middle of a block, so that what each says falls into a block of its own that nobody fills.
  const forks = await session.fork({ n: 9 })
  const clear = () => fetch(`${url}/v1/cache`, { method: 'DELETE' })
  await clear()
  const one = await blocksOf(forks[0], 'Go 0.')
  expect(one).toBeGreaterThan(20)
  await clear()
  const eight = await Promise.all(forks.slice(1).map((fork, i) => blocksOf(fork, `Go ${i}.`)))
  expect(sum(eight)).toBe(one)
  const positions = await Promise.all(forks.map(async (fork) => (await fork.get()).position))
  expect(new Set(positions).size).toBe(1)
})

test('forks of forks, ten deep: each says its own, and every turn of each replays', async () => {
  let last = await refrain.sessions.create({ system: 'Sys.' })
  const line = [last]
  for (let depth = 0; depth < 10; depth++) {
    await last.chat(`m${depth}`)
    const [next] = await last.fork()
    if (next === undefined) return expect.unreachable('no fork')
    last = next
    line.push(last)
  }
  await last.chat('end')
  const said = (await last.context()).messages.map(({ content }) => content)
  expect(said.filter((content) => content?.startsWith('m'))).toEqual(line.slice(1).map((_, i) => `m${i}`))
  expect(said.at(-1)).toBe(`I am ${last.id.slice(-6)}.`)
  for (const each of line) {
    const { turns } = await each.get()
    for (let turn = 1; turn <= turns; turn++) expect((await each.context(turn)).matches).toBe(true)
  }
  await expect(line[3]?.delete()).rejects.toMatchObject({ status: 409 })
  for (const each of line.reverse()) await each.delete()
})
