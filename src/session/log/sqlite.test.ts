// What SQLite adds to the contract: one owner, keys, and files in which nothing can be read, least of all what was erased.
// Damage of any sort is an error with a sentence, never another text and never an empty log.

import { createHash } from 'node:crypto'
import { once } from 'node:events'
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { note } from '../../core/signals.js'
import { type LogHouse, openLogHouse } from '../../testing/log-house.js'
import type { SessionLog } from './contract.js'
import type { NewEvent } from './event.js'
import { newSessionId } from './ids.js'

let house: LogHouse
beforeAll(async () => {
  house = await openLogHouse()
})
afterAll(() => house.close())

const SECRET = 'the plan is to paint the bicycle shed green'
const user = (content: string): NewEvent => ({ body: { kind: 'user', content } })
const make = async (log: SessionLog, events: NewEvent[], tenant = 'acme') =>
  (await log.create({ id: newSessionId(), tenant, model: 'toy', metadata: '{"title":"shed"}' }, events)).id
const all = (log: SessionLog, id: string, tenant = 'acme') => log.read(tenant, id, { from: 1, limit: 1000 })

/** Bytes of every file of the folder. */
function filesOf(folder: string): [string, Buffer][] {
  return readdirSync(folder).map((name) => [name, readFileSync(join(folder, name))])
}

/** Files that hold one of `needles`. */
function holding(folder: string, needles: readonly (string | Uint8Array)[]): string[] {
  return filesOf(folder).flatMap(([name, bytes]) =>
    needles.some((needle) => bytes.includes(Buffer.from(needle))) ? [name] : [],
  )
}

/** The text in every form in which it could lie there. */
function formsOf(text: string): (string | Uint8Array)[] {
  const forms = [text, JSON.stringify(text).slice(1, -1)].flatMap((each) => [
    Buffer.from(each),
    Buffer.from(each, 'utf16le'),
  ])
  const digests = ['sha1', 'sha256', 'sha512', 'md5'].map((name) => createHash(name).update(text).digest())
  const written = digests.flatMap((digest) => [digest.toString('hex'), digest.toString('base64')])
  const encoded = [0, 1, 2].map((skip) => Buffer.from(text).subarray(skip).toString('base64').slice(0, 24))
  return [...forms, ...digests, ...written, ...encoded]
}

const TAMPER = `
  const { parentPort, workerData: { libsql, path, statements } } = require('node:worker_threads')
  const db = new (require(libsql))(path)
  const found = []
  for (const sql of statements) {
    if (sql.startsWith('SELECT')) found.push(...db.prepare(sql).all([]).map((row) => Object.values(row)[0]))
    else db.exec(sql)
  }
  db.pragma('wal_checkpoint(TRUNCATE)')
  parentPort.postMessage(found)`

/** Runs SQL on a closed log, on a thread of its own: the binding lets go of a file when its thread ends. */
async function tamper(folder: string, ...statements: string[]): Promise<Buffer[]> {
  const libsql = createRequire(import.meta.url).resolve('libsql')
  const workerData = { libsql, path: join(folder, 'log.db'), statements }
  const worker = new Worker(TAMPER, { eval: true, workerData })
  const ended = once(worker, 'exit')
  const [found] = (await once(worker, 'message')) as [Iterable<ArrayBuffer>]
  await ended
  return [...found].map((bytes) => Buffer.from(bytes))
}

describe('what lies in the files', () => {
  test('is never text, nor a digest of it, nor a name', async () => {
    const folder = house.folder()
    const log = await house.open(folder)
    const spilled = {
      kind: 'tool_result',
      callId: 'c',
      content: '',
      spilled: { locator: 'res_shed', chars: 9 },
    } as const
    const id = await make(
      log,
      [
        user(SECRET),
        { body: { kind: 'layer', id: 'layer-of-paint', sources: ['crm://bicycles/7'] } },
        { body: { kind: 'tool_call', id: 'call-paint', name: 'paint', arguments: '{"shed":true}' } },
        { body: spilled, sources: ['crm://bicycles/8'], layer: 'layer-of-paint' },
      ],
      'acme-bicycles',
    )
    await log.keepResult(
      { tenant: 'acme-bicycles', session: id },
      { locator: 'res_shed', text: SECRET, sources: ['crm://bicycles/7'] },
    )
    await log.setGrant('acme-bicycles', { source: 'crm://bicycles/7', state: 'revoked', at: 1 })
    await log.setSharedMemory('acme-bicycles', { id: 'shed-memory', label: 'shed', value: SECRET })
    const names = [
      'acme-bicycles',
      'crm://bicycles',
      'layer-of-paint',
      'call-paint',
      'res_shed',
      'shed-memory',
      '{"shed',
      'title',
    ]
    const needles = [...formsOf(SECRET), ...names, ...formsOf('crm://bicycles/7'), ...formsOf('acme-bicycles')]
    expect(holding(folder, needles)).toEqual([])
    // The search does find what is there.
    expect(holding(folder, [id])).not.toEqual([])
    await log.close()
    expect(holding(folder, needles)).toEqual([])
    for (const [name] of filesOf(folder)) expect(statSync(join(folder, name)).mode & 0o777, name).toBe(0o600)
    expect(statSync(folder).mode & 0o777).toBe(0o700)
  })

  test.each(['session', 'tenant', 'events'] as const)(
    'of an erased %s is not even ciphertext or a key',
    async (what) => {
      const folder = house.folder()
      let log = await house.open(folder)
      const id = await make(log, [user(SECRET.repeat(300)), user('short'), user(SECRET)])
      await log.keepResult({ tenant: 'acme', session: id }, { locator: 'l', text: SECRET.repeat(999), sources: [] })
      await log.noteBlocks({ tenant: 'acme', session: id }, [createHash('sha256').update(SECRET).digest()])
      const stays = await make(log, [user('stays')], 'other')
      await log.close()
      const mine = `(SELECT row FROM session WHERE id = '${id}')`
      const contents = ['event', 'result'].map((table) => `SELECT content FROM ${table} WHERE session = ${mine}`)
      const keys = [
        `SELECT hash FROM block WHERE session = ${mine}`,
        `SELECT wrapped FROM session WHERE id = '${id}'`,
        `SELECT about FROM session WHERE id = '${id}'`,
      ]
      const tenants = `SELECT wrapped FROM tenant WHERE id = (SELECT tenant FROM session WHERE id = '${id}')`
      const gone = { events: contents, session: [...contents, ...keys], tenant: [...contents, ...keys, tenants] }[what]
      const wanted = await tamper(folder, ...gone)
      // Pages cut a long one; what is short and what begins each page is whole.
      const pieces = wanted.flatMap((bytes) => {
        const at = Array.from({ length: Math.ceil(bytes.length / 512) }, (_, i) => 512 * i)
        return at.map((from) => bytes.subarray(from, from + 24)).filter((piece) => piece.length >= 16)
      })
      const lies = () => {
        const files = filesOf(folder)
        return pieces.filter((piece) => files.some(([, bytes]) => bytes.includes(piece))).length
      }
      expect(lies()).toBeGreaterThan(pieces.length * 0.9)
      log = await house.open(folder)
      if (what === 'session') await log.erase({ tenant: 'acme', session: id })
      if (what === 'tenant') await log.erase({ tenant: 'acme' })
      if (what === 'events')
        await log.eraseEvents({ tenant: 'acme', session: id }, { positions: [1, 2, 3], locators: ['l'] })
      expect(lies()).toBe(0)
      expect(await all(log, stays, 'other')).toHaveLength(1)
      await log.close()
      expect(lies()).toBe(0)
    },
  )
})

describe('who may open it', () => {
  test('one at a time; the second is told whose it is', async () => {
    const folder = house.folder()
    const log = await house.open(folder)
    await expect(house.open(folder)).rejects.toThrow(/belongs to another process/)
    const id = await make(log, [user('a')])
    await log.close()
    await expect(log.read('acme', id, { from: 1, limit: 1 })).rejects.toMatchObject({ code: 'draining' })
    const again = await house.open(folder)
    expect(await all(again, id)).toHaveLength(1)
    await again.close()
  })

  test('who has its key; another one, or none, is refused and changes nothing', async () => {
    const folder = house.folder()
    const notes: string[] = []
    const stop = note.subscribe(({ text }) => notes.push(text))
    let log = await house.open(folder)
    stop()
    expect(notes.join()).toContain(join(folder, 'master.key'))
    const id = await make(log, [user(SECRET)])
    await log.close()
    const keys = { oldKeyFiles: [] as string[] }
    await expect(house.open(folder, { keys: { ...keys, key: 'ab'.repeat(32) } })).rejects.toThrow(/another master key/)
    await expect(house.open(folder, { keys: { ...keys, key: 'short' } })).rejects.toThrow(/32 bytes/)
    await expect(house.open(folder, { keys: { ...keys, keyFile: join(folder, 'none') } })).rejects.toThrow(/no file/)
    const key = readFileSync(join(folder, 'master.key'), 'utf8')
    rmSync(join(folder, 'master.key'))
    await expect(house.open(folder)).rejects.toThrow(/the key of the session log is gone/)
    expect(existsSync(join(folder, 'master.key'))).toBe(false)
    log = await house.open(folder, { keys: { ...keys, key: Buffer.from(key.trim(), 'hex').toString('base64') } })
    expect((await all(log, id))[0]!.body).toEqual({ kind: 'user', content: SECRET })
    await log.close()
  })

  test('a new key takes over from the old one, which then opens nothing', async () => {
    const folder = house.folder()
    mkdirSync(folder)
    const file = (name: string, byte: string) => {
      const path = join(folder, name)
      writeFileSync(path, byte.repeat(32))
      return path
    }
    const [old, fresh] = [file('old', '0a'), file('fresh', '0b')]
    let log = await house.open(folder, { keys: { keyFile: old, oldKeyFiles: [] } })
    const ids = [await make(log, [user('a')]), await make(log, [user('b')], 'other')]
    await log.close()
    log = await house.open(folder, { keys: { keyFile: fresh, oldKeyFiles: [old] } })
    expect(await all(log, ids[0]!)).toHaveLength(1)
    await log.close()
    await expect(house.open(folder, { keys: { keyFile: old, oldKeyFiles: [] } })).rejects.toThrow(/another master key/)
    log = await house.open(folder, { keys: { keyFile: fresh, oldKeyFiles: [] } })
    expect(await all(log, ids[1]!, 'other')).toHaveLength(1)
    await log.append({ tenant: 'other', session: ids[1]!, expected: 1, events: [user('c')] })
    await log.close()
  })
})

describe('damage', () => {
  const EVENTS = ['one', 'two', 'three', 'four'].map((text) => user(text.repeat(20)))
  let pristine: { readonly folder: string; readonly ids: readonly [string, string] }
  beforeAll(async () => {
    const folder = house.folder()
    const log = await house.open(folder)
    pristine = { folder, ids: [await make(log, EVENTS), await make(log, EVENTS)] }
    await log.close()
  })
  const written = () => {
    const folder = house.folder()
    cpSync(pristine.folder, folder, { recursive: true })
    return { folder, ids: pristine.ids }
  }
  const mine = (id: string) => `session = (SELECT row FROM session WHERE id = '${id}')`

  const RUINS: readonly (readonly [string, (id: string, other: string) => string])[] = [
    [
      'a changed byte',
      (id) =>
        `UPDATE event SET content = CAST(substr(content, 1, 20) || x'00' || substr(content, 22) AS BLOB) WHERE ${mine(id)} AND position = 2`,
    ],
    ['a cut content', (id) => `UPDATE event SET content = x'0011' WHERE ${mine(id)} AND position = 2`],
    [
      'contents of two places swapped',
      (id) =>
        `UPDATE event SET content = (SELECT content FROM event AS e WHERE e.session = event.session AND e.position = 5 - event.position) WHERE ${mine(id)} AND position IN (2, 3)`,
    ],
    [
      'two rows swapped, digests and all',
      (id) =>
        `UPDATE event SET position = -position WHERE ${mine(id)} AND position IN (2, 3); UPDATE event SET position = 5 + position WHERE ${mine(id)} AND position < 0`,
    ],
    [
      'a row of another session',
      (id, other) =>
        `UPDATE event SET (id, at, digest, content) = (SELECT id, at, digest, content FROM event AS e WHERE e.position = 2 AND e.${mine(other)}) WHERE ${mine(id)} AND position = 2`,
    ],
    ['another time', (id) => `UPDATE event SET at = at + 1 WHERE ${mine(id)} AND position = 2`],
    ['another kind', (id) => `UPDATE event SET kind = 'note' WHERE ${mine(id)} AND position = 2`],
    ['an event called erased', (id) => `UPDATE event SET erased = 1 WHERE ${mine(id)} AND position = 2`],
    ['a missing event', (id) => `DELETE FROM event WHERE ${mine(id)} AND position = 2`],
    [
      'an end that is cut off',
      (id) =>
        `DELETE FROM event WHERE ${mine(id)} AND position = 4; UPDATE session SET position = 3, digest = (SELECT digest FROM event WHERE ${mine(id)} AND position = 3) WHERE id = '${id}'`,
    ],
    [
      "another session's key",
      (id, other) =>
        `UPDATE session SET wrapped = (SELECT wrapped FROM session WHERE id = '${other}') WHERE id = '${id}'`,
    ],
  ]

  /** Two sessions for each kind of damage, all in one log that is opened once. */
  describe('to a row', () => {
    let log: SessionLog
    const ids: (readonly [string, string])[] = []
    beforeAll(async () => {
      const folder = house.folder()
      const whole = await house.open(folder)
      for (const _ of RUINS) ids.push([await make(whole, EVENTS), await make(whole, EVENTS)])
      await whole.close()
      await tamper(folder, ...RUINS.flatMap(([, sql], i) => sql(...ids[i]!).split('; ')))
      log = await house.open(folder)
    })
    afterAll(() => log.close())

    test.each(RUINS.map(([name], i) => [name, i] as const))('%s is an error', async (_, i) => {
      const [id, other] = ids[i]!
      await expect(all(log, id)).rejects.toMatchObject({ code: 'log_damaged' })
      // The other session has nothing to do with it.
      expect(await all(log, other)).toHaveLength(4)
    })
  })

  test('of the file is said when it is opened, and the file is left as it is', async () => {
    const { folder } = written()
    const path = join(folder, 'log.db')
    const whole = readFileSync(path)
    const tables: [RegExp, () => unknown][] = [
      [
        /damaged/,
        () => writeFileSync(path, Buffer.concat([whole.subarray(0, 8192), Buffer.alloc(whole.length - 8192, 0xee)])),
      ],
      [/damaged|no session log/, () => writeFileSync(path, 'no database at all '.repeat(99))],
      [/is empty/, () => truncateSync(path, 0)],
      [/newer Refrain/, () => tamper(folder, 'PRAGMA user_version = 99')],
      [/no session log/, () => tamper(folder, 'PRAGMA application_id = 7')],
    ]
    for (const [complaint, damage] of tables) {
      for (const name of readdirSync(folder)) if (name.startsWith('log.db')) rmSync(join(folder, name))
      writeFileSync(path, whole)
      await damage()
      const before = readFileSync(path)
      await expect(house.open(folder), String(complaint)).rejects.toThrow(complaint)
      expect(readFileSync(path).equals(before), String(complaint)).toBe(true)
    }
  })

  test('what makers that were killed left behind does not matter', async () => {
    const { folder, ids } = written()
    copyFileSync(join(folder, 'log.db'), join(folder, 'log.db.4711.new'))
    const log = await house.open(folder)
    expect(await all(log, ids[0])).toHaveLength(4)
    await log.close()
    expect(existsSync(join(folder, 'log.db.4711.new'))).toBe(false)
  })
})

test('appends that wait together become durable together, and one that fails takes no other with it', async () => {
  const log = await house.open(house.folder(), { durability: 'power' })
  const id = await make(log, [])
  const events = (i: number) => (i % 10 === 3 ? [{ ...user('x'), layer: 'unheard' }] : [user(`${i}`)])
  const answers = await Promise.allSettled(
    Array.from({ length: 100 }, (_, i) => log.append({ tenant: 'acme', session: id, events: events(i) })),
  )
  expect(answers.filter(({ status }) => status === 'rejected')).toHaveLength(10)
  const positions = answers.flatMap((each) =>
    each.status === 'fulfilled' ? each.value.map(({ position }) => position) : [],
  )
  expect(positions).toEqual(Array.from({ length: 90 }, (_, i) => i + 1))
  expect(await all(log, id)).toHaveLength(90)
  await log.close()
})

test('a log goes on after it was opened again: the chain, what it rests on, layers, calls', async () => {
  const folder = house.folder()
  let log = await house.open(folder)
  const id = await make(log, [
    { body: { kind: 'layer', id: 'l', sources: ['mail'] } },
    { body: { kind: 'tool_call', id: 'c', name: 'read', arguments: '{}' } },
    { body: { kind: 'user', content: 'x' }, sources: ['wiki'] },
  ])
  const first = await all(log, id)
  await log.close()
  log = await house.open(folder)
  const more = await log.append({
    ...{ tenant: 'acme', session: id, expected: 3 },
    events: [
      { body: { kind: 'tool_result', callId: 'c', content: 'y' } },
      { body: { kind: 'assistant', content: 'z' } },
      { body: { kind: 'note', tail: 'kept', label: 'n', content: 'z' }, layer: 'l' },
    ],
  })
  expect(more.map(({ sources }) => sources)).toEqual([[], ['wiki'], ['mail', 'wiki']])
  expect(await all(log, id)).toEqual([...first, ...more])
  await log.close()
})

describe('a thread that fails', () => {
  const worker = (onMessage: string) =>
    new URL(
      `data:text/javascript,${encodeURIComponent(`
        import { parentPort } from 'node:worker_threads'
        parentPort.postMessage({ made: undefined })
        parentPort.on('message', (message) => { ${onMessage} })`)}`,
    )
  const read = (log: SessionLog) => log.read('acme', 'ses', { from: 1, limit: 1 })

  test('by ending fails what it had not answered, and the next call starts another', async () => {
    const workerUrl = worker('if (message === "close") parentPort.close(); else process.exit()')
    const log = await house.open(house.folder(), { workerUrl })
    const both = await Promise.allSettled([read(log), read(log)])
    expect(both).toMatchObject([{ reason: { code: 'storage_failed' } }, { reason: { code: 'storage_failed' } }])
    await expect(read(log)).rejects.toMatchObject({ code: 'storage_failed' })
    await log.close()
  })

  test('with a fault of our own is no fault of the caller', async () => {
    const answer = 'parentPort.postMessage({ id: message.id, answer: { fault: "TypeError: x" } })'
    const workerUrl = worker(`if (message === "close") parentPort.close(); else ${answer}`)
    const log = await house.open(house.folder(), { workerUrl })
    await expect(read(log)).rejects.toThrow('TypeError: x')
    await expect(read(log)).rejects.not.toHaveProperty('code')
    await log.close()
  })
})
