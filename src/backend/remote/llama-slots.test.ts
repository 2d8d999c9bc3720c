// Sessions and the slots of a llama-server that is played by a double as the recordings show the real one: states in slots,
// files by name, counts in place of statuses.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { RouteQuery } from '../../router/contract.js'
import { ManualClock } from '../../testing/manual-clock.js'
import { type Remote, RemoteFault } from './contract.js'
import { LlamaSlots } from './llama-slots.js'
import { SlotRecords } from './slot-records.js'

class PlayedServer {
  readonly slots: (string[] | undefined)[]
  readonly files = new Map<string, string[]>()
  readonly moves: string[] = []
  build = 'b1'
  /** What it tells instead of what is so. */
  lies: { saved?: number; restored?: number; status?: number } = {}
  isDown = false

  constructor(count: number) {
    this.slots = Array.from({ length: count }, () => undefined)
  }

  get remote(): Remote {
    const facts = { kind: 'llama-cpp', models: [], lacks: [], slots: this.slots.length } as const
    const call: Remote['call'] = async (method, path, more) => {
      if (this.isDown) throw new RemoteFault('refused', { sent: false, code: 'ECONNREFUSED' })
      if (method === 'GET') return { status: 200, value: { model_path: 'm.gguf', build_info: this.build } }
      return this.#slotAction(path, (more?.body as { filename?: string } | undefined)?.filename ?? '')
    }
    return { id: 'llama', facts, call } as unknown as Remote
  }

  #slotAction(path: string, filename: string) {
    const [, id, action] = /^\/slots\/(\d+)\?action=(\w+)$/.exec(path) as unknown as [string, string, string]
    this.moves.push(`${action} ${id}`)
    const slot = Number(id)
    const { status } = this.lies
    if (status !== undefined) return { status, value: { error: {} } }
    if (action === 'save') {
      const state = this.slots[slot] ?? []
      this.files.set(filename, [...state])
      return { status: 200, value: { n_saved: this.lies.saved ?? state.length } }
    }
    if (action === 'erase') {
      this.slots[slot] = undefined
      return { status: 200, value: {} }
    }
    const state = this.files.get(filename)
    if (state === undefined) return { status: 400, value: { error: {} } }
    this.slots[slot] = [...state]
    return { status: 200, value: { n_restored: this.lies.restored ?? state.length } }
  }

  /** Computes a prompt in a slot; what of its front was there. */
  run(slot: number, prompt: readonly string[]): number {
    const held = this.slots[slot] ?? []
    const differs = prompt.findIndex((token, i) => held[i] !== token)
    this.slots[slot] = [...prompt, 'answer']
    return differs < 0 ? prompt.length : differs
  }
}

let folder: string
let clock: ManualClock
let server: PlayedServer

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'refrain-slots-'))
  clock = new ManualClock()
  server = new PlayedServer(2)
})

afterEach(() => rmSync(folder, { recursive: true, force: true }))

function open(more: { saveAfterMs?: number; perMember?: number } = {}) {
  const records = new SlotRecords(join(folder, 'slots.json'), more.perMember ?? 8)
  const remote = server.remote
  const slots = new LlamaSlots(
    { waitMs: 1000, saveAfterMs: more.saveAfterMs ?? 0 },
    { remotes: () => [remote], records, clock },
  )
  return { slots, records }
}

type House = ReturnType<typeof open>

const promptOf = (session: string, turns: number) =>
  Array.from({ length: 10 * turns }, (_, i) => `${session}${Math.floor(i / 10)}`)

function queryOf(session: string, turns: number, more: Partial<RouteQuery> = {}): RouteQuery {
  const hashes = Array.from({ length: turns }, (_, i) => `${session}#${i}`)
  const tokens = hashes.map((_, i) => 10 * (i + 1))
  return {
    ...{ id: `${session}${turns}`, model: 'm', tenant: 't', salt: 't', session, requestClass: 'main' },
    ...{ priority: 'interactive', segments: { hashes, tokens, head: 1 }, promptTokens: 10 * turns, estimated: true },
    ...more,
  }
}

const sit = ({ slots }: House, query: RouteQuery, signal = new AbortController().signal) =>
  slots.take('llama', query, signal)!

/** One turn of a session: where it sat, and how many tokens of it were there. */
async function turn(house: House, session: string, turns: number, more: Partial<RouteQuery> = {}) {
  const seat = await sit(house, queryOf(session, turns, more))
  const [{ key, json } = { key: '', json: '' }] = seat.settings
  expect(key).toBe('id_slot')
  clock.advance(1)
  const prompt = promptOf(session, turns)
  const cachedTokens = server.run(Number(json), prompt)
  seat.leave({ promptTokens: prompt.length, completionTokens: 2, cachedTokens })
  return { slot: Number(json), cachedTokens }
}

describe('slots', () => {
  test('a session keeps its slot, and nothing is moved while there are enough', async () => {
    const house = open()
    const a = await turn(house, 'a', 1)
    const b = await turn(house, 'b', 1)
    expect(b.slot).not.toBe(a.slot)
    expect(await turn(house, 'a', 2)).toEqual({ slot: a.slot, cachedTokens: 10 })
    expect(await turn(house, 'b', 2)).toEqual({ slot: b.slot, cachedTokens: 10 })
    expect(server.moves).toEqual([])
  })

  test('five sessions on two slots: each finds all of its last turn, wherever it sits', async () => {
    const house = open()
    for (let turns = 1; turns <= 4; turns++) {
      for (const session of ['a', 'b', 'c', 'd', 'e']) {
        expect((await turn(house, session, turns)).cachedTokens).toBe(10 * (turns - 1))
      }
    }
    expect(house.slots.counts).toEqual({ saved: 18, restored: 15, failed: 0 })
  })

  test('states outlive the server and the router', async () => {
    const before = open({ saveAfterMs: 100 })
    await turn(before, 'a', 1)
    clock.advance(100)
    await before.slots.close()
    expect(server.moves).toEqual(['save 0'])
    server.slots.fill(undefined)
    const after = open()
    expect((await turn(after, 'a', 2)).cachedTokens).toBe(10)
    server.slots.fill(undefined)
    after.slots.emptied('llama')
    expect((await turn(after, 'a', 2)).cachedTokens).toBe(10)
  })

  test('a state of another model or build is not brought back', async () => {
    const before = open()
    await turn(before, 'a', 1)
    await before.slots.close()
    server.build = 'b2'
    server.slots.fill(undefined)
    const after = open()
    expect((await turn(after, 'a', 2)).cachedTokens).toBe(0)
    expect(server.moves.filter((move) => move.startsWith('restore'))).toEqual([])
  })

  test('what was saved short is no save; what comes back short is erased', async () => {
    const house = open()
    server.lies = { saved: 3 }
    for (const session of ['a', 'b', 'c']) await turn(house, session, 1)
    expect(house.records.get('llama', 't\0a\0m')).toBeUndefined()
    server.lies = {}
    await turn(house, 'd', 1)
    server.lies = { restored: 1 }
    expect((await turn(house, 'b', 2)).cachedTokens).toBe(0)
    expect(server.moves.at(-1)).toMatch(/^erase/)
    expect(house.slots.counts.failed).toBe(2)
  })

  test('a server without a save path is pinned to, and asked once', async () => {
    const house = open()
    server.lies = { status: 501 }
    for (const session of ['a', 'b', 'c', 'd']) await turn(house, session, 1)
    expect(server.moves).toHaveLength(1)
  })

  test('a server that does not answer costs nobody more than a prefill', async () => {
    const house = open()
    await turn(house, 'a', 1)
    await turn(house, 'b', 1)
    server.isDown = true
    const seat = await sit(house, queryOf('c', 1))
    seat.leave(undefined)
    expect(house.slots.counts.saved).toBe(0)
  })

  test('where all are busy a request waits for the first that is free, until its client leaves or it is late', async () => {
    const house = open()
    const first = await sit(house, queryOf('a', 1))
    await sit(house, queryOf('b', 1))
    const third = sit(house, queryOf('c', 1))
    const left = new AbortController()
    const fourth = sit(house, queryOf('d', 1), left.signal)
    left.abort(new Error('gone'))
    await expect(fourth).rejects.toThrow('gone')
    first.leave({ promptTokens: 10, completionTokens: 1 })
    expect((await third).settings).toEqual([{ key: 'id_slot', json: '0' }])
    const fifth = sit(house, queryOf('e', 1))
    clock.advance(1001)
    await expect(fifth).rejects.toMatchObject({ code: 'queue_timeout' })
  })

  test('a session that sends no key is known by its prompt, also after others had its slot', async () => {
    const house = open()
    const unnamed = ({ session, ...query }: RouteQuery) => query
    const go = async (session: string, turns: number) => {
      const seat = await sit(house, unnamed(queryOf(session, turns)))
      const cached = server.run(Number(seat.settings[0]!.json), promptOf(session, turns))
      seat.leave({ promptTokens: 10 * turns, completionTokens: 1, cachedTokens: cached })
      return cached
    }
    for (const session of ['a', 'b', 'c']) await go(session, 1)
    for (const session of ['a', 'b', 'c']) expect(await go(session, 2)).toBe(10)
  })

  test("a side request does not sit in its session's slot", async () => {
    const house = open()
    const { slot } = await turn(house, 'a', 2)
    const title = await sit(house, queryOf('a', 1, { requestClass: 'auxiliary' }))
    expect(title.settings).not.toEqual([{ key: 'id_slot', json: String(slot) }])
  })

  test('a question beside an answer sits where the answer was, with a session and without', async () => {
    const house = open()
    for (const more of [{}, { session: undefined }]) {
      const { slot } = await turn(house, 'a', 2, more)
      const aside = { ...more, requestClass: 'auxiliary', isBeside: true, part: 0 } as const
      expect(await turn(house, 'a', 2, aside)).toEqual({ slot, cachedTokens: 20 })
    }
  })

  test('file names are used again, so that their number is bounded', async () => {
    const house = open({ perMember: 3 })
    for (let i = 0; i < 12; i++) await turn(house, `s${i}`, 1)
    expect(server.files.size).toBe(3)
    expect((await turn(house, 's9', 2)).cachedTokens).toBe(10)
    expect((await turn(house, 's1', 2)).cachedTokens).toBe(0)
  })
})
