// Question: does `refrain bench simulate` say what a server does? The same trace, the same budgets: hit rate of a simulation
// against that of a live replay on a toy model with the real tiers (memory and disk), over HTTP.
// Method: seeded agents, some at a time, each request behind the one before, so that both see one order; prompts of token
// ids, so that both see the same blocks. The served program restores whatever it has (`restore: always`), as a simulation
// does, and its working set holds one sequence, which the simulation knows nothing of. Goal: within 1 point of each other.
// Peer: the ideal, everything kept, in the same table.
// Run: npm run bench -- replay [references]

import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { recordBytes, SEGMENT_HEADER_BYTES } from '../src/cache/block-file.js'
import { blockBytes } from '../src/core/block.js'
import { replayCommand } from '../src/replay/command.js'
import type { Report } from '../src/report/report.js'
import { referencesOf } from '../src/simulate/references.js'
import { simulate } from '../src/simulate/simulate.js'
import { agentTrace, oneByOneFile } from '../src/testing/agent-trace.js'
import { writeToyModel } from '../src/testing/toy-model.js'
import { startRefrain } from './workload/servers.js'

const references = Number(process.argv[2] ?? 10_000)
/** Shares of the trace's different blocks. */
const SHARES = [
  { memory: 0.15, disk: undefined },
  { memory: 0.4, disk: undefined },
  { memory: 0.1, disk: 0.25 },
  { memory: 0.1, disk: 0.6 },
] as const
/** Of the toy: what its file says. */
const BYTES = blockBytes({ layers: 2, kvHeads: 2, headDim: 32, dtype: 'fp16' })
const DISK_SEGMENTS = 8

const folder = await mkdtemp(join(tmpdir(), 'refrain-bench-replay-'))
const trace = agentTrace({ references, sessions: 12, turns: 12, headBlocks: 12, added: [2, 5], seed: 8 })
const chains = referencesOf(trace)
const blocksOf = (share: number) => Math.max(100, Math.ceil(share * chains.hashes.length))
const traceFile = join(folder, 'trace.json')
const model = join(folder, 'toy.gguf')
await writeFile(traceFile, oneByOneFile(trace))
await writeToyModel(model, { architecture: 'llama', quantization: 'Q4_1', contextLength: 8192 })

interface Budgets {
  readonly memoryBlocks: number
  readonly diskBlocks: number | undefined
}

async function live({ memoryBlocks, diskBlocks }: Budgets, name: string): Promise<number> {
  const diskBytes =
    diskBlocks === undefined ? 0 : diskBlocks * recordBytes(BYTES) + (DISK_SEGMENTS + 1) * SEGMENT_HEADER_BYTES
  const config = [
    'cache:',
    ...['  restore: always', `  memoryBytes: ${memoryBlocks * BYTES}`, `  diskBytes: ${diskBytes}`],
    ...['engine:', '  maxRunning: 1', '  workingSetBytes: 8 MiB'],
  ]
  const file = join(folder, `${name}.yaml`)
  await writeFile(file, `${config.join('\n')}\n`)
  const data = join(folder, name)
  const server = await startRefrain(['--config', file, '--data-dir', data, '--model', model, '--log-level', 'warn'])
  try {
    const text = await replayCommand(
      [traceFile],
      {
        ...{ target: [server.url], sessions: '1', api: 'tokens', tokenIds: '10-250', maxOutput: '1', json: true },
        results: join(folder, `${name}.jsonl`),
      },
      { environment: () => undefined, progress: () => undefined, signal: new AbortController().signal },
    )
    const [run] = (JSON.parse(text) as Report).runs
    if (run === undefined || run.failed > 0) throw new Error(`the replay failed: ${JSON.stringify(run?.errors)}`)
    return run.hitRate ?? Number.NaN
  } finally {
    await server.stop()
  }
}

try {
  const ideal = await simulate(chains, { memoryBlocks: chains.hashes.length + 1, evictor: 'lru' })
  const rateOf = ({ reusedTokens, promptTokens }: typeof ideal) => reusedTokens / promptTokens
  const runs = []
  for (const [i, { memory, disk: onDisk }] of SHARES.entries()) {
    const memoryBlocks = blocksOf(memory)
    const diskBlocks = onDisk === undefined ? undefined : blocksOf(onDisk)
    const disk = diskBlocks === undefined ? {} : { diskBlocks, diskSegments: DISK_SEGMENTS }
    const simulated = rateOf(await simulate(chains, { memoryBlocks, ...disk, evictor: 'priority-lru' }))
    const served = await live({ memoryBlocks, diskBlocks }, `case${i}`)
    const points = 100 * (served - simulated)
    runs.push({ memoryBlocks, diskBlocks: diskBlocks ?? 0, simulated, served, points })
    process.stdout.write(
      `${memoryBlocks} blocks, ${diskBlocks ?? 0} on disk: simulated ${(100 * simulated).toFixed(2)} %, ` +
        `served ${(100 * served).toFixed(2)} % (${points.toFixed(2)} points), ideal ${(100 * rateOf(ideal)).toFixed(2)} %\n`,
    )
  }
  const { count, hashes, requests } = chains
  process.stdout.write(
    `${JSON.stringify({ references: count, blocks: hashes.length, requests: requests.length, ideal: rateOf(ideal), runs })}\n`,
  )
} finally {
  await rm(folder, { recursive: true })
}
