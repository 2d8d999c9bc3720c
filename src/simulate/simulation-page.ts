// A simulation as a report. Invariant: a run's samples are the trace's requests, in its time; times to the first token are
// there only where a rate was given, since they are that rate's doing.

import { BLOCK_TOKENS } from '../core/block.js'
import { formatBytes, formatCount } from '../core/units.js'
import type { Prices } from '../report/prices.js'
import { type CapacityLine, type Report, runReport, type Sample } from '../report/report.js'
import type { SimulationReport } from './command.js'
import type { References } from './references.js'
import type { Simulation } from './simulate.js'

/** What each request of a run came to, by its place in the trace. */
export interface Observed {
  readonly simulation: Simulation
  /** Blocks. */
  readonly hits: Uint32Array
  /** Undefined: nobody asked for times. */
  readonly ttftMs: Float64Array | undefined
}

export interface PageParts {
  readonly report: SimulationReport
  readonly references: References
  /** All runs, the ideal one last. */
  readonly observed: readonly Observed[]
  readonly prices: Prices
}

export function simulationPage({ report, references, observed, prices }: PageParts): Report {
  const ideal = observed.at(-1)!
  const { blockBytes } = report
  const shown = observed.slice(0, -1).map(({ simulation }) => simulation)
  const names = new Names(shown, blockBytes)
  const runs = observed.slice(0, -1).map((each) =>
    runReport({
      name: names.run(each.simulation),
      detail: detailOf(each.simulation),
      samples: samplesOf(references, each, ideal),
      ...{ failures: [], prices },
    }),
  )
  return {
    kind: 'simulation',
    title: `Simulation of ${report.trace}`,
    subtitle: `${formatCount(report.requests)} requests, ${formatCount(report.references)} references to ${formatCount(report.differentBlocks)} blocks of ${report.blockTokens} tokens`,
    notes: notesOf(observed),
    prices,
    runs,
    capacity: {
      unit: blockBytes === undefined ? 'blocks' : 'bytes',
      ideal: runs[0]?.idealHitRate ?? 0,
      lines: linesOf(shown, names, blockBytes),
    },
  }
}

function samplesOf({ requests }: References, { hits, ttftMs }: Observed, ideal: Observed): Sample[] {
  return requests.map(({ at, turn, promptTokens, outputTokens }, i) => ({
    ...{ at, turn, promptTokens, outputTokens },
    reusedTokens: hits[i]! * BLOCK_TOKENS,
    idealTokens: ideal.hits[i]! * BLOCK_TOKENS,
    ttftMs: ttftMs?.[i],
  }))
}

/** Hit rates are of prompt tokens here, as servers count them. */
function linesOf(shown: readonly Simulation[], names: Names, blockBytes: number | undefined): CapacityLine[] {
  const lines = new Map<string, { capacity: number; hitRate: number }[]>()
  for (const simulation of shown) {
    const { memoryBlocks, backends = 1, reusedTokens, promptTokens } = simulation
    const name = names.kind(simulation)
    const points = lines.get(name) ?? []
    lines.set(name, points)
    const capacity = memoryBlocks * backends * (blockBytes ?? 1)
    points.push({ capacity, hitRate: promptTokens === 0 ? 0 : reusedTokens / promptTokens })
  }
  return [...lines].map(([name, points]) => ({ name, points: points.sort((a, b) => a.capacity - b.capacity) }))
}

/** What tells runs apart: what all of them have in common is not said. */
class Names {
  readonly #says: Readonly<Record<'router' | 'evictor' | 'diskBlocks', boolean>>
  readonly #blockBytes: number | undefined

  constructor(shown: readonly Simulation[], blockBytes: number | undefined) {
    const differs = (of: (each: Simulation) => unknown) => new Set(shown.map(of)).size > 1
    this.#blockBytes = blockBytes
    this.#says = {
      router: differs(({ router }) => router),
      evictor: differs(({ evictor }) => evictor),
      diskBlocks: differs(({ diskBlocks }) => diskBlocks),
    }
  }

  /** Without its capacity. */
  kind(simulation: Simulation): string {
    const { router, evictor, diskBlocks } = simulation
    const said = [
      ...(this.#says.router && router !== undefined ? [router] : []),
      ...(this.#says.evictor ? [evictor] : []),
      ...(this.#says.diskBlocks && diskBlocks !== undefined ? [`${sizeOf(diskBlocks, this.#blockBytes)} disk`] : []),
    ]
    return said.length === 0 ? evictor : said.join(', ')
  }

  run(simulation: Simulation): string {
    const where = this.#says.diskBlocks ? ' memory' : ''
    return `${this.kind(simulation)}, ${sizeOf(simulation.memoryBlocks, this.#blockBytes)}${where}`
  }
}

function sizeOf(blocks: number, blockBytes: number | undefined): string {
  return blockBytes === undefined ? `${formatCount(blocks)} blocks` : formatBytes(blocks * blockBytes)
}

function detailOf({ memoryBlocks, diskBlocks, backends = 1 }: Simulation): string {
  const disk = diskBlocks === undefined ? '' : ` and ${formatCount(diskBlocks)} on disk`
  const each = backends === 1 ? '' : `, in each of ${backends} backends`
  return `${formatCount(memoryBlocks)} blocks in memory${disk}${each}`
}

function notesOf(observed: readonly Observed[]): string[] {
  const notes = [
    'The cache, its evictors and its disk tier are those that serve; blocks have names and no bytes.',
    'Requests come one after the other in the order of the trace; the last token of a prompt is always computed.',
    'What is generated counts only where it stands in a later prompt, and is new there.',
    'Computed tokens cost what writing to the cache costs.',
  ]
  if (observed.some(({ simulation }) => simulation.backends !== undefined))
    notes.push('Capacities in the picture are those of all backends together.')
  if (observed.some(({ ttftMs }) => ttftMs !== undefined))
    notes.push('Times to the first token assume that a backend computes one prompt at a time at the rate of --prefill.')
  return notes
}
