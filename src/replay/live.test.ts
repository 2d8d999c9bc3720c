// A replay against the built program on a toy model: what it reuses is what the simulation of the same trace says, with
// memory alone and with a disk below it. bench/replay.ts does the same for 10,000 references and tight disks.

import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { recordBytes } from '../cache/block-file.js'
import { blockBytes } from '../core/block.js'
import type { Report } from '../report/report.js'
import { referencesOf } from '../simulate/references.js'
import { simulate } from '../simulate/simulate.js'
import { agentTrace, oneByOneFile } from '../testing/agent-trace.js'
import { isBuilt, serve } from '../testing/served.js'
import { writeToyModel } from '../testing/toy-model.js'
import { replayCommand } from './command.js'

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-live-'))
  await writeToyModel(join(folder, 'toy.gguf'), { architecture: 'llama', quantization: 'Q4_1' })
})
afterAll(() => rm(folder, { recursive: true }))

/** Of the toy's file. */
const BYTES = blockBytes({ layers: 2, kvHeads: 2, headDim: 32, dtype: 'fp16' })
const trace = agentTrace({ references: 800, sessions: 6, turns: 8, headBlocks: 8, added: [2, 4], seed: 3 })

async function served(memoryBlocks: number, diskBlocks: number): Promise<number> {
  const name = `${memoryBlocks}-${diskBlocks}`
  const config = [
    ...['cache:', '  restore: always', `  memoryBytes: ${memoryBlocks * BYTES}`],
    `  diskBytes: ${diskBlocks * recordBytes(BYTES)}`,
    ...['engine:', '  maxRunning: 1', '  workingSetBytes: 4 MiB'],
  ]
  await writeFile(join(folder, `${name}.yaml`), config.join('\n'))
  await writeFile(join(folder, 'trace.json'), oneByOneFile(trace))
  const model = join(folder, 'toy.gguf')
  const data = join(folder, 'data', name)
  const program = await serve(['--config', join(folder, `${name}.yaml`), '--data-dir', data, '--model', model])
  try {
    const flags = {
      ...{ target: [program.url], sessions: '1', api: 'tokens', tokenIds: '10-250', maxOutput: '1', json: true },
      results: join(folder, `${name}.jsonl`),
    }
    const parts = { environment: () => undefined, progress: () => undefined, signal: new AbortController().signal }
    const { runs } = JSON.parse(await replayCommand([join(folder, 'trace.json')], flags, parts)) as Report
    expect(runs[0]).toMatchObject({ requests: trace.requests.length, failed: 0 })
    return runs[0]!.hitRate!
  } finally {
    await program.end('SIGTERM')
  }
}

describe.skipIf(!isBuilt)('a live replay on a toy model (needs npm run build)', () => {
  test.each([
    [60, 0],
    [60, 600],
  ])(
    'reuses within a point of the simulation, %i blocks in memory and %i on disk',
    async (memoryBlocks, diskBlocks) => {
      const { reusedTokens, promptTokens } = await simulate(referencesOf(trace), {
        ...{ memoryBlocks, evictor: 'priority-lru', ...(diskBlocks > 0 && { diskBlocks }) },
      })
      const simulated = reusedTokens / promptTokens
      expect(simulated).toBeGreaterThan(0.3)
      expect(Math.abs((await served(memoryBlocks, diskBlocks)) - simulated)).toBeLessThan(0.01)
    },
    120_000,
  )
})
