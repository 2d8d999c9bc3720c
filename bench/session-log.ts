// What does it cost to write an event of a session down for good, and does it get dearer as the log grows?
//
// Method: logs of 1,000 and of 100,000 events of about 1 KB in one session. Then one event after the other is appended to it
// (durable to the process), and by 8 writers at once, each to a session of its own and waiting for its answer before the next
// (durable to a loss of power: group commit). Each append is timed from call to answer, thread to thread. Peers in the same
// run: the log in memory, and what 8 writers take where nothing is shared (their events one after the other). Then a process
// that writes is killed at random moments, and each next one looks for what was acknowledged (--kills N, 0: not).
// Goal, with 100,000 events in the log, p50 / p99: process <= 1 / 10 ms; power, 8 writers <= 5 / 30 ms; no acknowledged event lost.
// Ceiling: one write and sync of 4 KB to the same disk, measured too; `load`: processes that wanted a core when it began, by
// core (over 1: others were at work, and the slowest in a hundred waited for them). Arguments: --events N --appends N --kills N

import { closeSync, fdatasyncSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs'
import { availableParallelism, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import type { SessionLog } from '../src/session/log/contract.js'
import type { NewEvent } from '../src/session/log/event.js'
import { newSessionId } from '../src/session/log/ids.js'
import { createMemoryLog } from '../src/session/log/memory.js'
import { openSqliteLog } from '../src/session/log/sqlite.js'
import { killAgainAndAgain } from '../src/testing/log-kills.js'
import { HOUSE_LIMITS } from '../src/testing/log-limits.js'

const { values } = parseArgs({
  options: {
    events: { type: 'string', default: '100000' },
    appends: { type: 'string', default: '2000' },
    kills: { type: 'string', default: '200' },
  },
})
const [events, appends, kills] = [values.events, values.appends, values.kills].map(Number) as [number, number, number]
const WRITERS = 8
const root = mkdtempSync(join(tmpdir(), 'refrain-session-log-'))
const workerUrl = new URL('../src/session/log/sqlite-worker.js', import.meta.url)
let folders = 0

const sqlite = (durability: 'process' | 'power') =>
  openSqliteLog({
    ...{ workerUrl, durability, folder: join(root, String(folders++)), keys: { oldKeyFiles: [] } },
    ...{ maxBytes: 2 ** 34, limits: { ...HOUSE_LIMITS, sessionEvents: 10_000_000 } },
  })
const text = 'She sells sea shells by the sea shore. '.repeat(26)
const event = (i: number): NewEvent => ({ body: { kind: 'user', content: `${i} ${text}` } })

async function filled(log: SessionLog, count: number): Promise<string> {
  const { id } = await log.create({ id: newSessionId(), tenant: 'acme', model: 'toy' }, [])
  for (let i = 0; i < count; i += 500) {
    const some = Array.from({ length: Math.min(500, count - i) }, (_, n) => event(i + n))
    await log.append({ tenant: 'acme', session: id, expected: i, events: some })
  }
  return id
}

interface Figures {
  readonly p50Ms: number
  readonly p99Ms: number
  readonly perSecond: number
}

/** `each` writers append `appends` events in all, one after the other each. The first tenth warms up. */
async function appending(log: SessionLog, sessions: readonly string[]): Promise<Figures> {
  const times: number[] = []
  let left = appends
  let warm = Math.ceil(appends / 10)
  let started = performance.now()
  const write = async (session: string) => {
    while (left-- > 0) {
      const begun = performance.now()
      await log.append({ tenant: 'acme', session, events: [event(left)] })
      if (warm-- > 0) started = performance.now()
      else times.push(performance.now() - begun)
    }
  }
  await Promise.all(sessions.map(write))
  return { ...quantiles(times), perSecond: Math.round((1000 * times.length) / (performance.now() - started)) }
}

function quantiles(times: number[]): Pick<Figures, 'p50Ms' | 'p99Ms'> {
  times.sort((a, b) => a - b)
  const at = (share: number) => Number((times[Math.floor(times.length * share)] ?? 0).toFixed(3))
  return { p50Ms: at(0.5), p99Ms: at(0.99) }
}

/** What the disk itself takes for a page that is there when it says so. */
function diskItself(): Pick<Figures, 'p50Ms' | 'p99Ms'> {
  const file = openSync(join(root, 'raw'), 'w')
  const page = Buffer.alloc(4096, 1)
  const times = Array.from({ length: 500 }, () => {
    const begun = performance.now()
    writeSync(file, page)
    fdatasyncSync(file)
    return performance.now() - begun
  })
  closeSync(file)
  return quantiles(times)
}

async function measured(open: () => Promise<SessionLog>, count: number, writers: number): Promise<Figures> {
  const log = await open()
  const big = await filled(log, count)
  const others = await Promise.all(Array.from({ length: writers - 1 }, () => filled(log, 0)))
  const figures = await appending(log, [big, ...others])
  await log.close()
  return figures
}

async function reading(): Promise<{ readonly eventsPerSecond: number; readonly eraseMs: number }> {
  const log = await sqlite('process')
  const id = await filled(log, events)
  let begun = performance.now()
  const read = await log.read('acme', id, { from: 1, limit: events })
  const eventsPerSecond = Math.round((1000 * read.length) / (performance.now() - begun))
  begun = performance.now()
  await log.erase({ tenant: 'acme', session: id })
  const eraseMs = Math.round(performance.now() - begun)
  await log.close()
  return { eventsPerSecond, eraseMs }
}

/** Twenty kills a folder: each process looks through all that it finds. */
async function killed(): Promise<{ readonly acknowledged: number; readonly lost: number } | undefined> {
  let [acknowledged, lost] = [0, 0]
  const house = {
    workerUrl,
    program: (name: string) => fileURLToPath(new URL(`../src/testing/${name}.js`, import.meta.url)),
  }
  for (let done = 0; done < kills; done += 20) {
    const outcome = await killAgainAndAgain(house, {
      ...{ folder: join(root, `kills${done}`), durability: done % 40 === 0 ? 'power' : 'process' },
      ...{ kills: Math.min(20, kills - done), seed: done },
    })
    acknowledged += outcome.acknowledged
    lost += outcome.lost.length
  }
  return kills === 0 ? undefined : { acknowledged, lost }
}

try {
  const [load = 0] = loadavg()
  const memory = async () =>
    createMemoryLog({ limits: { ...HOUSE_LIMITS, sessionEvents: 10_000_000 }, maxBytes: 2 ** 34 })
  const disk = diskItself()
  const baseline = await measured(memory, events, 1)
  const small = await measured(() => sqlite('process'), 1000, 1)
  const process_ = await measured(() => sqlite('process'), events, 1)
  const alone = await measured(() => sqlite('power'), events, 1)
  const power = await measured(() => sqlite('power'), events, WRITERS)
  const { eventsPerSecond, eraseMs } = await reading()
  const killing = await killed()
  const report = {
    ...{
      events,
      appends,
      writers: WRITERS,
      load: Number((load / availableParallelism()).toFixed(1)),
      disk,
      memory: baseline,
      processSmall: small,
      process: process_,
    },
    ...{ powerAlone: alone, power, readPerSecond: eventsPerSecond, eraseMs },
    growth: Number((process_.p50Ms / small.p50Ms).toFixed(2)),
    grouped: Number((power.perSecond / alone.perSecond).toFixed(2)),
    ...(killing && { kills, ...killing }),
    reached: process_.p50Ms <= 1 && process_.p99Ms <= 10 && power.p50Ms <= 5 && power.p99Ms <= 30 && !killing?.lost,
  }
  process.stdout.write(`${JSON.stringify(report)}\n`)
} finally {
  rmSync(root, { recursive: true, force: true })
}
