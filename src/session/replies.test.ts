// The conformance of the kept replies: what is kept is found by its own tenant's keys, bounded and erasable, in memory and
// on disk; what disks do to it costs a reply and nothing else.

import { mkdtemp, readdir, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import fc from 'fast-check'
import { afterEach, describe, expect, test } from 'vitest'
import { systemFiles } from '../cache/disk/file-door.js'
import type { Reply } from '../core/reply.js'
import { type Note, note } from '../core/signals.js'
import { FaultyDisk } from '../testing/faulty-disk.js'
import { createMemoryReplies, type KeptReply, lineageOf, openReplies, type ReplyStore } from './replies.js'
import { replyLog } from './reply-log.js'
import { decodeRecord, encodeRecord } from './reply-record.js'
import { replyId } from './transcript.js'

const MARK = 0x5eedf00d
const FOLDER = '/replies'

const replyOf = (text: string, length = 8): Reply => {
  const ids = Int32Array.from({ length }, (_, i) => (i % 2 === 0 ? MARK : i))
  const opening = `<assistant>${text}`
  const message = { content: text, reasoning: 'hm', toolCalls: [{ id: 'c', name: 'n', arguments: '{"a": 1.0}' }] }
  return { id: replyId(opening, ids), opening, ids, rest: '', message }
}
const kept = (key: string, more: Partial<KeptReply> = {}): KeptReply => ({
  tenant: 'salt',
  session: 's',
  transcript: key,
  after: '',
  reply: replyOf(key),
  ...more,
})
const textsOf = async (store: ReplyStore, key: string) =>
  (await store.find(key)).map(({ reply }) => reply.message.content)

const diskStore = (disk: FaultyDisk, options: { memoryBytes?: number; diskBytes?: number } = {}) =>
  openReplies({
    memoryBytes: options.memoryBytes ?? 0,
    log: replyLog({ folder: FOLDER, files: disk.door(), diskBytes: options.diskBytes ?? 1e6 }),
  })

const stops: (() => void)[] = []
afterEach(() => {
  for (const stop of stops.splice(0)) stop()
})

describe.each<[string, () => Promise<ReplyStore>]>([
  ['memory', async () => createMemoryReplies({ memoryBytes: 1e6 })],
  ['disk behind a memory', () => diskStore(new FaultyDisk(), { memoryBytes: 1e6 })],
  ['disk alone', () => diskStore(new FaultyDisk())],
])('%s', (_, open) => {
  test('gives back what was kept, under both keys, at once and later', async () => {
    const store = await open()
    const given = kept('k', { call: 'c', after: 'before' })
    store.keep(given)
    for (const key of ['k', 'c', 'k']) {
      expect(store.has(key)).toBe(true)
      expect(await store.find(key)).toEqual([{ reply: given.reply, after: 'before', session: expect.any(String) }])
      await store.flush()
    }
    expect(store.has('other')).toBe(false)
    expect(await store.find('other')).toEqual([])
    expect(store.status()).toMatchObject({ replies: 1, faults: 0 })
  })

  test('different answers to one conversation are all there, the newest first; the same one is kept once', async () => {
    const store = await open()
    for (const text of ['one', 'two', 'one']) store.keep(kept('k', { reply: replyOf(text), call: 'c' }))
    await store.flush()
    expect(await textsOf(store, 'k')).toEqual(['two', 'one'])
    expect(await textsOf(store, 'c')).toEqual(['two', 'one'])
    for (let i = 0; i < 50; i++) store.keep(kept('k', { reply: replyOf(`more ${i}`), call: 'c' }))
    expect((await textsOf(store, 'k')).length).toBe(8)
    expect((await textsOf(store, 'c'))[0]).toBe('more 49')
  })

  test('a session, and a tenant, can be erased; others stay', async () => {
    const store = await open()
    store.keep(kept('a1', { session: 'a' }))
    store.keep(kept('b1', { session: 'b' }))
    store.keep(kept('a2', { session: 'a', tenant: 'other' }))
    store.keep({ ...kept('none'), session: undefined } as unknown as KeptReply)
    await store.erase({ tenant: 'salt', session: 'a' })
    expect(['a1', 'b1', 'a2', 'none'].map((key) => store.has(key))).toEqual([false, true, true, true])
    await store.erase({ tenant: 'salt' })
    expect(['b1', 'a2', 'none'].map((key) => store.has(key))).toEqual([false, true, false])
    store.keep(kept('b1'))
    await store.flush()
    expect(await textsOf(store, 'b1')).toEqual(['b1'])
    await store.close()
  })
})

describe('memory', () => {
  test('is bounded, and what was used last stays', async () => {
    const store = createMemoryReplies({ memoryBytes: 20_000 })
    store.keep(kept('first'))
    for (let i = 0; i < 100; i++) {
      store.keep(kept(`k${i}`))
      expect(await textsOf(store, 'first')).toEqual(['first'])
      expect(store.status().memoryBytes).toBeLessThanOrEqual(20_000)
    }
    expect([store.has('k0'), store.has('k99')]).toEqual([false, true])
    store.keep(kept('huge', { reply: replyOf('x'.repeat(30_000)) }))
    expect(store.has('huge')).toBe(false)
  })

  test('of 0 keeps nothing', () => {
    const store = createMemoryReplies({ memoryBytes: 0 })
    store.keep(kept('k'))
    expect([store.has('k'), store.status().replies]).toEqual([false, 0])
  })
})

describe('a record', () => {
  const head = { transcript: 't', call: undefined, session: 's', after: '', id: replyOf('x').id }

  test('comes back whole, and not at all when a bit of it is another', () => {
    const record = encodeRecord(head, replyOf('x'))
    expect(decodeRecord(record, head.id)).toEqual(replyOf('x'))
    expect(decodeRecord(record, 'other')).toBeUndefined()
    expect(decodeRecord(record.subarray(0, -1), head.id)).toBeUndefined()
    fc.assert(
      fc.property(fc.nat(record.length * 8 - 1), (bit) => {
        const damaged = Buffer.from(record)
        damaged[bit >> 3] = (damaged[bit >> 3] as number) ^ (1 << (bit & 7))
        expect(decodeRecord(damaged, head.id)).toBeUndefined()
      }),
    )
  })

  test('keeps its bytes: version 1', () => {
    const record = encodeRecord({ ...head, id: 'i' }, { ...replyOf('x', 1), id: 'i', message: { content: 'é' } })
    expect(record.toString('base64')).toMatchInlineSnapshot(
      `"UlBMWSYAAABHAAAA9jC3r3f5UIt7InYiOjEsInQiOiJ0IiwicyI6InMiLCJhIjoiIiwiaSI6ImkifQEAAAAN8O1eeyJvcGVuaW5nIjoiPGFzc2lzdGFudD54IiwicmVzdCI6IiIsIm1lc3NhZ2UiOnsiY29udGVudCI6IsOpIn19"`,
    )
  })
})

describe('disk', () => {
  test('outlives the process, killed or not', async () => {
    const disk = new FaultyDisk()
    const first = await diskStore(disk)
    first.keep(kept('a', { call: 'c', after: lineageOf([{ id: 'x' }]) }))
    first.keep(kept('b'))
    await first.flush()
    disk.kill()
    const second = await diskStore(disk)
    expect(await textsOf(second, 'c')).toEqual(['a'])
    expect((await second.find('a'))[0]?.after).toBe(lineageOf([{ id: 'x' }]))
    second.keep(kept('d'))
    await second.close()
    const third = await diskStore(disk)
    expect(['a', 'b', 'd'].map((key) => third.has(key))).toEqual([true, true, true])
    expect(disk.paths.length).toBe(1)
  })

  test('whatever a loss of power leaves of it, what is found is what was kept', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer(), fc.integer({ min: 1, max: 30 }), async (seed, count) => {
        const disk = new FaultyDisk()
        const store = await diskStore(disk)
        for (let i = 0; i < count; i++) store.keep(kept(`k${i}`, { reply: replyOf(`k${i}`, 200) }))
        await store.flush()
        let state = seed
        disk.crash(() => {
          state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff
          return state / 0x80000000
        })
        const again = await diskStore(disk)
        for (let i = 0; i < count; i++) expect([[], [`k${i}`]]).toContainEqual(await textsOf(again, `k${i}`))
        again.keep(kept('new'))
        await again.close()
        const third = await diskStore(disk)
        expect(await textsOf(third, 'new')).toEqual(['new'])
      }),
      { numRuns: 30 },
    )
  })

  test('is bounded: the oldest go, what was used lately stays', async () => {
    const disk = new FaultyDisk()
    const diskBytes = 400_000
    const store = await diskStore(disk, { diskBytes })
    store.keep(kept('used'))
    for (let i = 0; i < 300; i++) {
      store.keep(kept(`k${i}`, { reply: replyOf(`k${i}`, 1000) }))
      if (i % 10 === 0) expect(await textsOf(store, 'used')).toEqual(['used'])
      await store.flush()
      expect(disk.usedBytes).toBeLessThanOrEqual(diskBytes)
    }
    expect([store.has('k0'), store.has('k299')]).toEqual([false, true])
    expect(store.status()).toMatchObject({ diskBytes: disk.usedBytes, faults: 0 })
    const left = store.status().replies
    await store.close()
    const again = await diskStore(disk, { diskBytes })
    expect(again.status().replies).toBe(left)
    expect(await textsOf(again, 'used')).toEqual(['used'])
  })

  test('an erased session leaves none of its tokens behind, torn ends and replaced answers included', async () => {
    const disk = new FaultyDisk()
    const store = await diskStore(disk)
    for (let i = 0; i < 20; i++) {
      store.keep(kept('same', { reply: replyOf(`${i}`, 50), session: 'a' }))
      await store.flush()
    }
    store.keep(kept('b', { session: 'b', reply: replyOf('b', 50) }))
    store.keep(kept('a', { session: 'a' }))
    await store.flush()
    const [path] = disk.paths as [string]
    disk.kill()
    disk.corrupt(path, disk.contents(path).subarray(0, -10))
    const again = await diskStore(disk)
    const count = () => {
      const bytes = disk.contents(path)
      const mark = Buffer.alloc(4)
      mark.writeInt32LE(MARK)
      let found = 0
      for (let at = bytes.indexOf(mark); at >= 0; at = bytes.indexOf(mark, at + 1)) found++
      return found
    }
    expect(count()).toBeGreaterThan(500)
    await again.erase({ tenant: 'salt', session: 'a' })
    expect(count()).toBe(25)
    expect(await textsOf(again, 'b')).toEqual(['b'])
    await again.close()
    const third = await diskStore(disk)
    expect([third.has('same'), third.has('a'), await textsOf(third, 'b')]).toEqual([false, false, ['b']])
    await third.erase({ tenant: 'salt' })
    expect(disk.paths).toEqual([])
  })

  test('what cannot be overwritten is said, not passed over', async () => {
    const disk = new FaultyDisk()
    const store = await diskStore(disk)
    store.keep(kept('a'))
    await store.flush()
    disk.fail('write', 'EIO')
    await expect(store.erase({ tenant: 'salt', session: 's' })).rejects.toThrow('EIO')
    disk.heal()
    await store.erase({ tenant: 'salt', session: 's' })
  })

  test('a full or failing disk costs replies, is told once, and is used again when it heals', async () => {
    const notes: Note[] = []
    stops.push(note.subscribe((each) => notes.push(each)))
    const disk = new FaultyDisk()
    const store = await diskStore(disk)
    disk.fail('write', 'ENOSPC')
    store.keep(kept('a'))
    store.keep(kept('b'))
    await store.flush()
    expect([store.has('a'), store.has('b'), store.status().faults]).toEqual([false, false, 2])
    expect(notes.map(({ text }) => text)).toEqual([expect.stringContaining('ENOSPC')])
    disk.heal()
    store.keep(kept('c'))
    await store.flush()
    expect(await textsOf(store, 'c')).toEqual(['c'])
    disk.fail('read', 'EIO', 1)
    expect(await textsOf(store, 'c')).toEqual([])
    expect(store.has('c')).toBe(false)
  })

  test('keeping and finding wait for no stalled write', async () => {
    const disk = new FaultyDisk()
    const store = await diskStore(disk)
    const go = disk.stall('write', 'create')
    store.keep(kept('a'))
    expect(await textsOf(store, 'a')).toEqual(['a'])
    go()
    await store.flush()
    expect(await textsOf(store, 'a')).toEqual(['a'])
  })

  test('a damaged file is passed over', async () => {
    const disk = new FaultyDisk()
    const store = await diskStore(disk)
    for (const key of ['a', 'b', 'c']) store.keep(kept(key))
    await store.close()
    const [path] = disk.paths as [string]
    const bytes = disk.contents(path)
    bytes[Math.floor(bytes.length / 2)] = (bytes[Math.floor(bytes.length / 2)] as number) ^ 1
    disk.corrupt(path, bytes)
    const again = await diskStore(disk)
    expect(await textsOf(again, 'a')).toEqual(['a'])
    expect(await textsOf(again, 'b')).toEqual([])
    again.keep(kept('d'))
    await again.close()
    const third = await diskStore(disk)
    expect(await textsOf(third, 'd')).toEqual(['d'])
  })
})

test("on the machine's own disk: there after a kill, for its owner alone", async () => {
  const folder = join(await mkdtemp(join(tmpdir(), 'refrain-replies-')), 'replies')
  const open = () => openReplies({ memoryBytes: 0, log: replyLog({ folder, files: systemFiles, diskBytes: 1e6 }) })
  const store = await open()
  store.keep(kept('a'))
  await store.flush()
  // Not closed: as after a kill.
  const again = await open()
  expect(await textsOf(again, 'a')).toEqual(['a'])
  const names = await readdir(folder)
  expect([(await stat(folder)).mode & 0o777, names.length]).toEqual([0o700, 1])
  expect((await stat(join(folder, names[0] as string))).mode & 0o777).toBe(0o600)
  await store.close()
  await again.close()
  await rm(dirname(folder), { recursive: true })
})
