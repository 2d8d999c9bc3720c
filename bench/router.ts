// Question: does a fleet behind Refrain compute prefixes as rarely as one cache without a bound would, and does it lose anything when a backend is killed?
// Method: four simulated servers in processes of their own (chained blocks, a cache that holds a share of all, one prefill
// at a time, delays in proportion to what is not cached), agents whose prompts only grow, closed loop, no session header
// unless said. The same load goes through Refrain, and from the client itself by round robin and by a hash of the session,
// in the same run. `killed`: SIGKILL of the busiest server in mid-run, and back with an empty cache.
// Where ../shared/tools/routerbench lies beside the project, its scenarios follow, for Refrain and for the peers that it
// finds installed. Goals: prefilled over ideal 1.00, 1.05, 1.21; nobody's request lost before its first token.
// `--processes N`: so many router processes behind the port. `throughput` (asked for by name): 32 sessions of about 40 KB
// against servers that answer at once, after a warm-up; requests a second, and CPU of all router processes for each, which
// is the figure to trust where others use the machine.
// Run: npm run bench -- router [own|shared|all] [scenario,...] [peer,...] [--processes N]

import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { percentile } from './workload/client.js'
import { type Answered, type Choose, idealOf, type Load, runLoad } from './workload/fleet-load.js'
import { type Server, startRefrain } from './workload/servers.js'
import { startUpstream, type Upstream } from './workload/upstream.js'

const MEMBERS = 4
const RATE = 2000
const SHARED = join('..', 'shared', 'tools', 'routerbench')

interface Scenario {
  readonly load: Load
  /** Of all blocks, what one server's cache holds. */
  readonly cacheShare: number
}

const LOAD = { headChars: 6144, turnChars: 1024, maxTokens: 4, seed: 1 }
const SCENARIOS: Readonly<Record<string, Scenario>> = {
  affinity: { load: { ...LOAD, sessions: 24, turns: 8, heads: [0, 1, 2, 3] }, cacheShare: 1 / 3 },
  skew: {
    load: { ...LOAD, sessions: 24, turns: 8, heads: [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3] },
    cacheShare: 1 / 3,
  },
  hothead: { load: { ...LOAD, headChars: 16_384, sessions: 32, turns: 5, heads: [0] }, cacheShare: 1 / 2 },
}

const TARGETS = ['refrain', 'round-robin', 'session-hash'] as const
type Target = (typeof TARGETS)[number]

const flag = process.argv.indexOf('--processes')
const PROCESSES = flag < 0 ? '1' : String(Number(process.argv[flag + 1]))

const say = (text: string) => process.stderr.write(`${text}\n`)

async function withFleet<T>(
  options: { blocks: number; decodeMs?: number; rate?: number },
  run: (fleet: Fleet) => Promise<T>,
) {
  const start = (port = 0) => startUpstream({ rate: RATE, ...options, port })
  const ups = await Promise.all(Array.from({ length: MEMBERS }, () => start()))
  const data = mkdtempSync(join(tmpdir(), 'refrain-bench-router-'))
  const workers = ups.map(({ url }) => url).join(',')
  let refrain: Server | undefined
  try {
    const args = ['--workers', workers, '--data-dir', data, '--log-level', 'error', '--processes', PROCESSES]
    refrain = await startRefrain(args)
    return await run({ ups, start, refrain })
  } finally {
    await refrain?.stop('SIGKILL')
    await Promise.all(ups.map((up) => up.kill()))
    rmSync(data, { recursive: true, force: true })
  }
}

interface Fleet {
  /** A server that was killed is replaced in place. */
  readonly ups: Upstream[]
  start(port: number): Promise<Upstream>
  readonly refrain: Server
}

function chooserOf(target: Target, { ups, refrain }: Fleet): Choose {
  if (target === 'refrain') return () => ({ url: refrain.url })
  const at = (i: number) => ({ url: (ups[i % ups.length] as Upstream).url })
  return target === 'round-robin' ? (_, nth) => at(nth) : (session) => at(Math.imul(session + 1, 0x9e3779b1) >>> 16)
}

async function cached(target: Target, { load, cacheShare }: Scenario) {
  const ideal = idealOf(load)
  return withFleet({ blocks: Math.ceil(ideal.blocks * cacheShare) }, async (fleet) => {
    const started = performance.now()
    const answers = await runLoad(load, chooserOf(target, fleet))
    const wallMs = performance.now() - started
    const counts = await Promise.all(fleet.ups.map((up) => up.counts()))
    const prefilled = counts.reduce((sum, each) => sum + each.promptTokens - each.cachedTokens, 0)
    const requests = counts.map((each) => each.requests)
    return {
      prefilledOverIdeal: round(prefilled / ideal.prefilled),
      ttftP50Ms: round(percentile(ttfts(answers), 50)),
      ttftP95Ms: round(percentile(ttfts(answers), 95)),
      wallMs: round(wallMs),
      busiestOverIdlest: round(Math.max(...requests) / Math.min(...requests)),
      errors: answers.filter(({ error }) => error !== undefined).length,
    }
  })
}

/** Kills the busiest at a third of the time, starts it again at two thirds. */
async function killed(decodeMs: number, maxTokens: number) {
  const load: Load = { ...LOAD, maxTokens, sessions: 16, turns: 1000, heads: [0, 1, 2, 3] }
  const lengthMs = 12_000
  return withFleet({ blocks: 20_000, decodeMs }, async (fleet) => {
    const running = runLoad(load, chooserOf('refrain', fleet), lengthMs)
    await sleep(lengthMs / 3)
    const counts = await Promise.all(fleet.ups.map((up) => up.counts()))
    const victim = counts.reduce((best, each, i) => (each.requests > (counts[best]?.requests ?? 0) ? i : best), 0)
    const { url, kill } = fleet.ups[victim] as Upstream
    const killedAt = performance.now()
    await kill()
    await sleep(lengthMs / 3)
    fleet.ups[victim] = await fleet.start(Number(new URL(url).port))
    const backAt = performance.now()
    const answers = await running
    const failed = answers.filter(({ error }) => error !== undefined)
    const reused = answers.find(({ at, startedAt, error }) => at === url && startedAt > backAt && error === undefined)
    return {
      requests: answers.length,
      lostBeforeFirstToken: failed.filter(({ begun }) => !begun).length,
      brokenStreams: failed.filter(({ begun }) => begun).length,
      moved: movedOf(answers, { killedAt, backAt, url }),
      reusedAfterMs: reused === undefined ? null : round(reused.startedAt - backAt),
    }
  })
}

const WARM_MS = 5000
const MEASURED_MS = 10_000

async function throughput() {
  const load: Load = {
    ...LOAD,
    headChars: 32_768,
    turnChars: 512,
    maxTokens: 1,
    sessions: 32,
    turns: 16,
    heads: [0, 1, 2, 3],
  }
  return withFleet({ blocks: 200_000, rate: 0 }, async (fleet) => {
    const choose = chooserOf('refrain', fleet)
    const through = async (ms: number) => {
      const started = performance.now()
      const left = () => ms - (performance.now() - started)
      let answered = 0
      for (let seed = 1; left() > 0; seed++) {
        const answers = await runLoad({ ...load, seed }, choose, left())
        answered += answers.filter(({ error }) => error === undefined).length
      }
      return { answered, ms: performance.now() - started }
    }
    await through(WARM_MS)
    const before = cpuSecondsOf(fleet.refrain.pid)
    const { answered, ms } = await through(MEASURED_MS)
    const seconds = cpuSecondsOf(fleet.refrain.pid) - before
    return {
      processes: Number(PROCESSES),
      requests: answered,
      requestsPerSecond: round((1000 * answered) / ms),
      routerCpuMsPerRequest: round((1000 * seconds) / answered),
    }
  })
}

/** Of a process and its children; Linux only, elsewhere NaN. */
function cpuSecondsOf(pid: number): number {
  try {
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean)
    return [pid, ...children.map(Number)].reduce((sum, each) => sum + ownSeconds(each), 0)
  } catch {
    return Number.NaN
  }
}

function ownSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) / 100
}

/** Sessions of others that were answered elsewhere while one was away. */
function movedOf(
  answers: readonly Answered[],
  { killedAt, backAt, url }: Record<'killedAt' | 'backAt', number> & { url: string },
) {
  const homes = new Map<number, string>()
  for (const each of answers)
    if (each.startedAt < killedAt && each.error === undefined) homes.set(each.session, each.at)
  const away = answers.filter(({ startedAt }) => startedAt > killedAt && startedAt < backAt)
  const moved = away.filter(({ session, at }) => homes.get(session) !== url && homes.get(session) !== at)
  return new Set(moved.map(({ session }) => session)).size
}

async function own(scenarios: readonly string[]) {
  const results: Record<string, unknown> = {}
  for (const [name, scenario] of Object.entries(SCENARIOS)) {
    if (!wanted(scenarios, name)) continue
    const row: Record<string, unknown> = {}
    for (const target of TARGETS) {
      row[target] = await cached(target, scenario)
      say(`${name.padEnd(10)} ${target.padEnd(13)} ${JSON.stringify(row[target])}`)
    }
    results[name] = row
  }
  if (scenarios.includes('throughput')) {
    results['throughput'] = await throughput()
    say(`throughput ${JSON.stringify(results['throughput'])}`)
  }
  for (const [name, decodeMs, tokens] of [
    ['killed-decoding', 20, 24],
    ['killed-prefilling', 1, 4],
  ] as const) {
    if (!wanted(scenarios, name)) continue
    results[name] = await killed(decodeMs, tokens)
    say(`${name.padEnd(10)} ${JSON.stringify(results[name])}`)
  }
  return results
}

function wanted(scenarios: readonly string[], name: string): boolean {
  return scenarios.length === 0 || scenarios.includes(name)
}

// --- the shared bench ------------------------------------------------------------------------------------------------

const PEERS: Readonly<Record<string, string>> = {
  sglang: 'sglang-router',
  smg: 'python',
  'smg-sticky': 'python',
  vllm: 'vllm-router',
}

/** Those that ../shared/tools/get-gateways has brought. */
function installedPeers(): string[] {
  const bin = join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'refrain-peers', 'gateways', 'bin')
  return Object.keys(PEERS).filter((name) => existsSync(join(bin, PEERS[name] as string)))
}

async function shared(scenarios: readonly string[], peers: readonly string[]) {
  if (!existsSync(SHARED)) {
    say('../shared/tools/routerbench is not here: its scenarios are left out')
    return undefined
  }
  const scenario = scenarios.length === 0 ? 'affinity,skew,hothead,failover,failover-prefill' : scenarios.join(',')
  const data = mkdtempSync(join(tmpdir(), 'refrain-bench-router-'))
  const command = `${process.execPath} dist/main.js serve --data-dir ${data} --log-level error --processes ${PROCESSES} --port {port} --workers {urls_csv}`
  const lines: unknown[] = []
  try {
    for (const target of ['refrain', ...(peers.length > 0 ? peers : installedPeers())]) {
      const args = target === 'refrain' ? ['--cmd', command] : []
      lines.push(...(await runShared(['--target', target, '--scenario', scenario, ...args], join(data, 'lines'))))
    }
  } finally {
    rmSync(data, { recursive: true, force: true })
  }
  return lines
}

async function runShared(args: readonly string[], out: string): Promise<unknown[]> {
  const all = [join(SHARED, 'run.mjs'), ...args, '--quiet-wait', '10', '--out', out]
  const child = spawn(process.execPath, all, { stdio: ['ignore', 2, 2] })
  const code = await new Promise((resolve) => child.on('exit', resolve))
  if (code !== 0 || !existsSync(out)) return [{ args, failed: code }]
  const lines = readFileSync(out, 'utf8').trim().split('\n')
  rmSync(out)
  return lines.map((line) => JSON.parse(line))
}

function ttfts(answers: readonly Answered[]): number[] {
  return answers.filter(({ error }) => error === undefined).map(({ ttftMs }) => ttftMs)
}

function round(value: number): number {
  return Math.round(value * 100) / 100
}

const [which = 'all', scenarios = '', peers = ''] = process.argv
  .slice(2)
  .filter((_, i) => flag < 0 || (i + 2 !== flag && i + 1 !== flag))
const listed = (text: string) => text.split(',').filter((each) => each !== '')
const results = which === 'shared' ? undefined : await own(listed(scenarios))
const lines = which === 'own' ? undefined : await shared(listed(scenarios), listed(peers))
process.stdout.write(
  `${JSON.stringify({ bench: 'router', processes: Number(PROCESSES), members: MEMBERS, rate: RATE, results, shared: lines })}\n`,
)
