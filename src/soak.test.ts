// A minute of agents at work: eight sessions with growing histories, some streamed, some given up in the middle, against
// the built program with small budgets, so that every bounded thing is full long before the end. What must hold: memory
// stays where it is once it is full, nothing is left running, and the program drains as if nothing had been.

import { readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { seeded } from './testing/random.js'
import { isBuilt, type Served, serve } from './testing/served.js'
import { writeToyModel } from './testing/toy-model.js'

const SECONDS = 60
const SESSIONS = 8
/** Mean, from one answer to the next request. Without it they take all the time of a core. */
const TOOL_MS = 150
/** Of the run; what is filled in it (code, memos, tiers) does not count. */
const WARM_UP = 0.5
const MIB = 1024 * 1024
const ALLOWED_MIB = 24

const CONFIG = `cache:
  memoryBytes: 4 MiB
  diskBytes: 8 MiB
engine:
  workingSetBytes: 16 MiB
explain:
  memoryBytes: 2 MiB
replies:
  memoryBytes: 2 MiB
`

let folder: string
let served: Served

beforeAll(async () => {
  if (!isBuilt) return
  folder = await mkdtemp(join(tmpdir(), 'refrain-soak-'))
  const model = join(folder, 'toy.gguf')
  await writeToyModel(model, { architecture: 'llama', quantization: 'Q4_1' })
  const config = join(folder, 'config.yaml')
  await writeFile(config, CONFIG)
  // A small heap: what the collector may put off is then small beside what a leak would leave.
  process.env['NODE_OPTIONS'] = '--max-old-space-size=96 --max-semi-space-size=4'
  served = await serve(['--config', config, '--data-dir', join(folder, 'data'), '--model', model])
  delete process.env['NODE_OPTIONS']
})

afterAll(async () => {
  await served?.end('SIGKILL')
  if (folder !== undefined) await rm(folder, { recursive: true, force: true })
})

/** Resident memory of a process, in MiB. */
function residentMiB(pid: number): number {
  const found = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))
  return (Number(found?.[1]) * 1024) / MIB
}

/** One session after another until the time is over: a history that grows to the window's end, then a new one. */
async function agent(lane: number, until: number): Promise<number> {
  const random = seeded(lane + 1)
  let history = ''
  let answered = 0
  while (performance.now() < until) {
    // Its tool runs.
    await sleep(random.below(2 * TOOL_MS))
    if (history.length > 400) history = ''
    history += ` ${Array.from({ length: 12 }, () => `w${random.below(97)}`).join(' ')}`
    const stream = random.below(2) === 0
    const leaves = stream && random.below(4) === 0
    const stop = new AbortController()
    const response = await fetch(`${served.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-refrain-session': `lane-${lane}` },
      body: JSON.stringify({ prompt: history, max_tokens: 12, temperature: 0, ignore_eos: true, stream }),
      signal: stop.signal,
    })
    expect(response.status).toBe(200)
    if (leaves) {
      await response.body?.getReader().read()
      stop.abort()
    } else {
      const text = await response.text()
      if (stream) expect(text).toContain('[DONE]')
      answered++
    }
  }
  return answered
}

describe.skipIf(!isBuilt || process.platform !== 'linux')('a soak (needs npm run build, and /proc)', () => {
  test(
    'eight sessions for a minute leave memory flat and nothing behind',
    async () => {
      const started = performance.now()
      const until = started + SECONDS * 1000
      const samples: { readonly at: number; readonly mib: number }[] = []
      const watch = (async () => {
        while (performance.now() < until) {
          samples.push({ at: (performance.now() - started) / (SECONDS * 1000), mib: residentMiB(served.pid) })
          await sleep(500)
        }
      })()
      const answered = await Promise.all(Array.from({ length: SESSIONS }, (_, lane) => agent(lane, until)))
      await watch
      for (const count of answered) expect(count).toBeGreaterThan(3)

      const full = samples.filter(({ at }) => at >= WARM_UP).map(({ mib }) => mib)
      const half = full.length >> 1
      const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length
      // The two halves behind the warm-up: a leak of any size per request shows as a step between them.
      expect(mean(full.slice(half)) - mean(full.slice(0, half))).toBeLessThan(ALLOWED_MIB)

      // Whoever left last is given up behind its socket's end.
      await expect
        .poll(async () => (await fetch(`${served.url}/ready`)).json(), { timeout: 20_000 })
        .toMatchObject({ running: 0, waiting: 0 })
      const status = (await (await fetch(`${served.url}/v1/cache`)).json()) as {
        data: { tiers: { tier: string; used_bytes: number; capacity_bytes: number; used_slots?: number }[] }[]
      }
      for (const tier of status.data[0]?.tiers ?? []) expect(tier.used_bytes).toBeLessThanOrEqual(tier.capacity_bytes)
      expect(await served.end('SIGTERM')).toBe(0)
    },
    (SECONDS + 60) * 1000,
  )
})
