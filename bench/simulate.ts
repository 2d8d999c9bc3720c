// Question: how long does `refrain bench simulate` take for a million references to blocks, and how much of it is the cache?
// Method: seeded agent sessions (a common start, 20 turns that each add some 12 blocks, sixteen sessions at a time) until
// there are a million references; the trace is made first, then chains are built, then one run at each capacity, one with a
// disk below. Where ../shared is: the Mooncake trace too, of which two thirds of the blocks come once (the dearest there
// is), per million. CPU time stands beside wall time, which other work on the machine blurs. Goal: 10 s for chains and one
// run. Ceiling: the walk over the same references in a plain Set of hashes, in the same run.
// Run: npm run bench -- simulate [references]

import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { type References, referencesOf } from '../src/simulate/references.js'
import { simulate } from '../src/simulate/simulate.js'
import { agentTrace } from '../src/testing/agent-trace.js'
import { readTraces } from '../src/trace/read-trace.js'
import type { Trace } from '../src/trace/trace.js'

const wanted = Number(process.argv[2] ?? 1_000_000)

interface Timed<T> {
  readonly value: T
  readonly wallMs: number
  readonly cpuMs: number
}

async function timed<T>(work: () => T | Promise<T>): Promise<Timed<T>> {
  const cpu = process.cpuUsage()
  const start = performance.now()
  const value = await work()
  const { user, system } = process.cpuUsage(cpu)
  return { value, wallMs: Math.round(performance.now() - start), cpuMs: Math.round((user + system) / 1000) }
}

const times = ({ wallMs, cpuMs }: Timed<unknown>, millions: number) => ({
  wallMs: Math.round(wallMs / millions),
  cpuMs: Math.round(cpuMs / millions),
})

function walk({ requests, hashes }: References): number {
  const seen = new Set<string>()
  for (const { nodes } of requests) for (const node of nodes) seen.add(hashes[node]!)
  return seen.size
}

interface Budget {
  /** Shares of the different blocks. */
  readonly memory: number
  readonly disk?: number
}

async function measured(trace: Trace, budgets: readonly Budget[], millionsOf: (count: number) => number) {
  const chains = await timed(() => referencesOf(trace))
  const { hashes, count } = chains.value
  const millions = millionsOf(count)
  const plain = await timed(() => walk(chains.value))
  const runs = []
  for (const { memory, disk } of budgets) {
    const memoryBlocks = Math.ceil(memory * hashes.length)
    const below = disk === undefined ? {} : { diskBlocks: Math.ceil(disk * hashes.length) }
    const run = await timed(() => simulate(chains.value, { memoryBlocks, ...below, evictor: 'priority-lru' }))
    const { hitRate } = run.value
    const took = times(run, millions)
    runs.push({ memoryBlocks, ...below, hitRate, ...took })
    process.stdout.write(
      `${trace.name}: ${memoryBlocks} blocks, ${below.diskBlocks ?? 0} on disk: hit rate ${hitRate.toFixed(4)}, ` +
        `${took.wallMs} ms, ${took.cpuMs} ms of CPU\n`,
    )
  }
  const ahead = { chains: times(chains, millions), plain: times(plain, millions) }
  return { trace: trace.name, references: count, blocks: hashes.length, ...ahead, runs }
}

const shape = { sessions: 16, turns: 20, headBlocks: 180, added: [4, 19], seed: 8 } as const
const budgets = [{ memory: 1 }, { memory: 0.25 }, { memory: 0.05 }, { memory: 0.05, disk: 0.5 }]
const agents = await measured(agentTrace({ ...shape, references: wanted }), budgets, () => 1)
const mooncake = ['../../../shared', '../../../../shared']
  .map((up) => fileURLToPath(new URL(`${up}/data/mooncake/conversation_3000.jsonl`, import.meta.url)))
  .find(existsSync)
const once =
  mooncake === undefined
    ? undefined
    : await measured(await readTraces([mooncake]), budgets.slice(2), (count) => count / 1e6)
process.stdout.write(`${JSON.stringify({ agents, ...(once && { mooncakePerMillion: once }) })}\n`)
