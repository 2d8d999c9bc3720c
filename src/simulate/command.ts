// `refrain bench simulate TRACE...`: hit rate against capacity, by evictor and disk, as a table or JSON. Invariant: the
// ideal (everything kept) stands beside every figure, so that it says what more memory can still give.

import * as evictors from '../cache/evictor/index.js'
import { BLOCK_TOKENS } from '../core/block.js'
import { formatBytes, formatCount, formatTable, parseBytes, parseCount } from '../core/units.js'
import { UsageError } from '../core/usage-error.js'
import { sessionBytes, totalBytes, widthsOf } from '../plan/shape.js'
import { loadShape } from '../plan/shape-sources.js'
import { type Prices, pricesFrom } from '../report/prices.js'
import { checkReportPath, writeReport } from '../report/write-report.js'
import { readTraces } from '../trace/read-trace.js'
import { type References, referencesOf } from './references.js'
import { ROUTERS, type RouterName } from './routing.js'
import { type BackendLoad, type Simulation, type SimulationOptions, simulate, USUAL_RATE } from './simulate.js'
import { type Observed, simulationPage } from './simulation-page.js'

export interface SimulateFlags {
  /** Budgets of host memory, commas between: blocks (`20k`), or bytes (`8GB`) with `--model`. */
  readonly memory?: string
  readonly disk?: string
  readonly evictor?: string
  /** A shape, see plan/: gives blocks their bytes. */
  readonly model?: string
  /** How many simulated servers; memory and disk are each one's. */
  readonly backends?: string
  /** Of `ROUTERS`, commas between. */
  readonly router?: string
  /** Prompt tokens a second that a backend computes; given, times to the first token are told. */
  readonly prefill?: string
  readonly report?: string
  readonly prices?: string
  readonly json?: boolean
}

/** Of the different blocks of the trace, where no budget is named. */
const SHARES = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1] as const
const USUAL_EVICTOR = 'priority-lru'
const MOST_BACKENDS = 1024

export interface SimulationReport {
  readonly trace: string
  readonly requests: number
  readonly references: number
  readonly differentBlocks: number
  readonly blockTokens: number
  readonly blockBytes?: number
  /** Everything kept. */
  readonly ideal: Simulation
  readonly runs: readonly Simulation[]
}

/** What the command prints; `progress` is told how many of the runs are done. @throws UsageError. */
export async function simulateCommand(
  paths: readonly string[],
  flags: SimulateFlags,
  progress: (done: number, total: number) => void = () => undefined,
): Promise<string> {
  const given = settingsOf(flags)
  const trace = await readTraces(paths)
  const references = referencesOf(trace)
  const blockBytes = flags.model === undefined ? undefined : await bytesOfBlock(flags.model)
  const differentBlocks = references.hashes.length
  const memory =
    flags.memory === undefined
      ? SHARES.map((share) => Math.ceil(share * differentBlocks))
      : blocksOf(flags.memory, '--memory', blockBytes)
  const disks = flags.disk === undefined ? [undefined] : blocksOf(flags.disk, '--disk', blockBytes)
  const plans = given.evictors.flatMap((evictor) =>
    given.fleets.flatMap((fleet) =>
      disks.flatMap((diskBlocks) =>
        memory.map((memoryBlocks) => ({
          ...{ evictor, memoryBlocks, ...fleet },
          ...(diskBlocks !== undefined && { diskBlocks, ...segmentsOf(diskBlocks, blockBytes) }),
        })),
      ),
    ),
  )
  const observed: Observed[] = []
  const run = async (plan: SimulationOptions) => {
    progress(observed.length, plans.length + 1)
    const hits = new Uint32Array(references.requests.length)
    const ttftMs = new Float64Array(references.requests.length)
    const simulation = await simulate(references, plan, {
      pace: { rate: given.rate ?? USUAL_RATE },
      seen(index, found, waited) {
        hits[index] = found
        ttftMs[index] = waited
      },
    })
    observed.push({ simulation, hits, ttftMs: given.rate === undefined ? undefined : ttftMs })
    return simulation
  }
  const runs: Simulation[] = []
  for (const plan of plans) runs.push(await run(plan))
  const ideal = await run({ evictor: USUAL_EVICTOR, memoryBlocks: differentBlocks + 1 })
  progress(observed.length, observed.length)
  const report: SimulationReport = {
    ...{ trace: trace.name, requests: references.requests.length, references: references.count, differentBlocks },
    blockTokens: BLOCK_TOKENS,
    ...(blockBytes !== undefined && { blockBytes }),
    ...{ ideal, runs },
  }
  const { reportPath, prices } = given
  const written =
    reportPath === undefined
      ? ''
      : `\nthe report is in ${reportPath}, its numbers in ${writeReport(reportPath, simulationPage({ report, references, observed, prices }))}\n`
  return flags.json === true ? `${JSON.stringify(report, undefined, 2)}\n` : reportText(report, references) + written
}

interface Settings {
  readonly evictors: readonly string[]
  /** What each plan has of backends and router; one without either where there is one backend. */
  readonly fleets: readonly Pick<SimulationOptions, 'backends' | 'router'>[]
  /** Undefined: nobody asked for times. */
  readonly rate: number | undefined
  readonly reportPath: string | undefined
  readonly prices: Prices
}

/** @throws UsageError naming the flag. */
function settingsOf(flags: SimulateFlags): Settings {
  if (flags.report !== undefined) checkReportPath(flags.report)
  return {
    evictors: evictorsOf(flags),
    fleets: fleetsOf(flags),
    rate: flags.prefill === undefined ? undefined : parseCount(flags.prefill, '--prefill'),
    reportPath: flags.report,
    prices: pricesFrom(flags.prices),
  }
}

function fleetsOf({ backends: text, router }: SimulateFlags): Pick<SimulationOptions, 'backends' | 'router'>[] {
  const backends = text === undefined ? 1 : parseCount(text, '--backends')
  if (backends > MOST_BACKENDS) throw new UsageError(`--backends: ${backends} are more than ${MOST_BACKENDS}`)
  if (backends === 1) {
    if (router !== undefined) throw new UsageError('--router: there is one backend; give several with --backends')
    return [{}]
  }
  const names = router === undefined ? [...ROUTERS] : router.split(',').map((name) => name.trim())
  const unknown = names.find((name) => !ROUTERS.includes(name as RouterName))
  if (unknown !== undefined) throw new UsageError(`--router: '${unknown}' is none of ${ROUTERS.join(', ')}`)
  return names.map((name) => ({ backends, router: name as RouterName }))
}

/** As the disk tier cuts a disk of so many bytes: files of 256 MB, and not too few or many. */
function segmentsOf(blocks: number, blockBytes: number | undefined): { readonly diskSegments?: number } {
  if (blockBytes === undefined) return {}
  return { diskSegments: Math.min(256, Math.max(8, Math.ceil((blocks * blockBytes) / (256 * 2 ** 20)))) }
}

function evictorsOf({ evictor = USUAL_EVICTOR }: SimulateFlags): string[] {
  const names = evictor.split(',').map((name) => name.trim())
  const unknown = names.find((name) => !Object.hasOwn(evictors, name))
  if (unknown === undefined) return names
  throw new UsageError(`--evictor: '${unknown}' is none of ${Object.keys(evictors).join(', ')}`)
}

async function bytesOfBlock(model: string): Promise<number> {
  const shape = await loadShape(model)
  // What a block adds to a long session; windows and states are kept once a session, not once a block.
  const at = (tokens: number) => totalBytes(sessionBytes(shape, tokens, widthsOf(shape)))
  const far = 1_048_576
  return at(far + BLOCK_TOKENS) - at(far) || at(BLOCK_TOKENS)
}

function blocksOf(text: string, flag: string, blockBytes: number | undefined): number[] {
  return text.split(',').map((part) => {
    if (!/b$/i.test(part.trim())) return parseCount(part, flag)
    if (blockBytes === undefined) throw new UsageError(`${flag}: '${part}' are bytes: say of which model with --model`)
    const blocks = Math.floor(parseBytes(part, flag) / blockBytes)
    if (blocks > 0) return blocks
    throw new UsageError(`${flag}: '${part}' do not hold one block of ${formatBytes(blockBytes)}`)
  })
}

function reportText(report: SimulationReport, { count }: References): string {
  const { ideal, runs, blockBytes, differentBlocks } = report
  const size = (blocks: number) => (blockBytes === undefined ? [] : [formatBytes(blocks * blockBytes)])
  const hasDisk = runs.some(({ diskBlocks }) => diskBlocks !== undefined)
  const disk = ({ diskBlocks = 0, diskHits }: Simulation) =>
    hasDisk ? [formatCount(diskBlocks), percent(diskHits / Math.max(1, count))] : []
  const isFleet = runs.some(({ backends }) => backends !== undefined)
  const fleet = ({ router, loads }: Simulation) =>
    isFleet ? [router ?? '', loads === undefined ? '' : unevenness(loads)] : []
  const row = (run: Simulation) => [
    run.evictor,
    ...fleet(run),
    formatCount(run.memoryBlocks),
    ...size(run.memoryBlocks),
    ...disk(run),
    percent(run.hitRate),
    percent(ideal.hitRate === 0 ? 1 : run.hitRate / ideal.hitRate),
    percent(run.reusedTokens / Math.max(1, run.promptTokens)),
    formatCount(run.evictedBlocks),
  ]
  const head = [
    'evictor',
    ...(isFleet ? ['router', 'busiest'] : []),
    'memory blocks',
    ...(blockBytes === undefined ? [] : ['memory']),
    ...(hasDisk ? ['disk blocks', 'from disk'] : []),
    ...['hit rate', 'of ideal', 'tokens reused', 'evicted'],
  ]
  const everything = { ...ideal, evictor: 'everything kept', memoryBlocks: differentBlocks }
  return (
    `${report.trace}: ${formatCount(report.requests)} requests, ${formatCount(count)} references to ` +
    `${formatCount(differentBlocks)} blocks of ${BLOCK_TOKENS} tokens\n\n` +
    `${formatTable([head, ...runs.map(row), row(everything)])}${turnsText(ideal)}`
  )
}

/** What the busiest backend computes, against what each would if all computed the same. */
function unevenness(loads: readonly BackendLoad[]): string {
  const computed = loads.map(({ computedTokens }) => computedTokens)
  const mean = computed.reduce((sum, each) => sum + each, 0) / computed.length
  return mean === 0 ? '-' : `${(Math.max(...computed) / mean).toFixed(2)} x`
}

/** The first turns where everything is kept: what the conversations themselves allow. */
function turnsText({ turns }: Simulation): string {
  const first = turns.slice(0, 12)
  if (first.length === 0) return ''
  const cells = first.map(({ turn, hitRate }) => `${turn}: ${percent(hitRate)}`)
  return `\nhit rate by turn, everything kept   ${cells.join('  ')}\n`
}

function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`
}
