// Question: how long does `refrain bench simulate` take for a million references to blocks, and how much of it is the cache?
// Method: seeded agent sessions (a common start, 20 turns that each add some 12 blocks, sixteen sessions at a time) until
// there are a million references; the trace is made first, then chains are built, then one run at each capacity. CPU time
// stands beside wall time, which other work on the machine blurs. Goal: 10 s for chains and one run. Ceiling: the walk over
// the same references in a plain Set of hashes, in the same run.
// Run: npm run bench -- simulate [references]

import { referencesOf } from '../src/simulate/references.js'
import { simulate } from '../src/simulate/simulate.js'
import { seeded } from '../src/testing/random.js'
import type { TraceRequest } from '../src/trace/trace.js'

const wanted = Number(process.argv[2] ?? 1_000_000)

function sessions(references: number): TraceRequest[] {
  const random = seeded(8).next
  const open = Array.from({ length: 16 }, (_, i) => ({ id: i, turn: 0, blocks: [] as number[] }))
  const requests: TraceRequest[] = []
  let name = 1000
  for (let count = 0, at = 0; count < references; at++) {
    const session = open[Math.floor(random() * open.length)]!
    if (session.turn === 20) Object.assign(session, { id: session.id + open.length, turn: 0, blocks: [] })
    if (session.turn === 0) session.blocks.push(...Array.from({ length: 180 }, (_, i) => i))
    for (let more = 4 + Math.floor(random() * 16); more > 0; more--) session.blocks.push(name++)
    const blocks = [...session.blocks]
    const promptTokens = 64 * blocks.length + 1
    const turn = ++session.turn
    requests.push({ at, session: String(session.id), turn, promptTokens, outputTokens: 100, blocks, scope: 0 })
    count += blocks.length
  }
  return requests
}

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

const trace = { name: 'seeded', blockTokens: 64, requests: sessions(wanted) }
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
