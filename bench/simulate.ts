// Question: how long does `refrain bench simulate` take for a million references to blocks, and how much of it is the cache?
// Method: seeded agent sessions (a common start, 20 turns that each add some 12 blocks, sixteen sessions at a time) until
// there are a million references; the trace is made first, then chains are built, then one run at each capacity. CPU time
// stands beside wall time, which other work on the machine blurs. Goal: 10 s for chains and one run. Ceiling: the walk over
// the same references in a plain Set of hashes, in the same run.
// Run: npm run bench -- simulate [references]

import { referencesOf } from '../src/simulate/references.js'
import { simulate } from '../src/simulate/simulate.js'
import { agentTrace } from '../src/testing/agent-trace.js'

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

const shape = { sessions: 16, turns: 20, headBlocks: 180, added: [4, 19], seed: 8 } as const
const trace = agentTrace({ ...shape, references: wanted })
const chains = await timed(() => referencesOf(trace))
const { hashes, requests, count } = chains.value
const plain = await timed(() => {
  const seen = new Set<string>()
  for (const { nodes } of requests) for (const node of nodes) seen.add(hashes[node]!)
  return seen.size
})
const times = ({ wallMs, cpuMs }: Timed<unknown>) => ({ wallMs, cpuMs })
const runs = []
for (const share of [1, 0.25, 0.05]) {
  const memoryBlocks = Math.ceil(share * hashes.length)
  const run = await timed(() => simulate(chains.value, { memoryBlocks, evictor: 'priority-lru' }))
  const { hitRate } = run.value
  runs.push({ memoryBlocks, hitRate, ...times(run) })
  process.stdout.write(
    `${memoryBlocks} blocks: hit rate ${hitRate.toFixed(4)}, ${run.wallMs} ms, ${run.cpuMs} ms of CPU\n`,
  )
}
const result = { references: count, blocks: hashes.length, chains: times(chains), plain: times(plain), runs }
process.stdout.write(`${JSON.stringify(result)}\n`)
