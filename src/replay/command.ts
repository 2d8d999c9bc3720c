// `refrain bench replay TRACE --target URL`: a trace is sent to servers, and what came of it is told as a table, JSON and a
// page. Invariant: every answer is on disk before it counts; whatever ends the run early, the report is of what there is
// and says so.

import { formatCount, formatMs, formatTable } from '../core/units.js'
import { UsageError } from '../core/usage-error.js'
import type { Report, RunReport } from '../report/report.js'
import { writeReport } from '../report/write-report.js'
import { type DriveParts, drive, type Ended } from './drive.js'
import { closeConnections, post } from './exchange.js'
import type { Plan, PlannedRequest } from './plan.js'
import { Prompts, type Speech } from './prompts.js'
import { createResults, type Results, type ResultsHead, resumeResults, type TargetHead } from './results.js'
import { type ReplayFlags, type ReplaySettings, settingsOf } from './settings.js'
import { readPlan } from './sources.js'
import { replayReport } from './summary.js'
import { modelOf, type Target, targetsOf, wordsPerToken } from './target.js'

export type { ReplayFlags }

export interface ReplayParts {
  /** A variable of the environment, for keys. */
  environment(name: string): string | undefined
  /** How many requests of all are over, at which target. */
  progress(target: string, done: number, total: number): void
  /** Ends the run; the report is still made. */
  readonly signal: AbortSignal
}

/** What the command prints. @throws UsageError. */
export async function replayCommand(paths: readonly string[], flags: ReplayFlags, parts: ReplayParts): Promise<string> {
  const settings = settingsOf(flags)
  const plan = await readPlan(paths, settings.plan)
  if (plan.texts.kind === 'messages' && settings.speech.api !== 'chat')
    throw new UsageError(`--api: ${plan.name} has messages, which go to chat`)
  if (plan.texts.kind === 'messages' && settings.speech.salt !== '')
    throw new UsageError(`--salt: the messages of ${plan.name} are sent as they are`)
  const paced = plan.hasTimes || settings.drive.sessions !== undefined ? settings : oneByOne(settings, flags)
  const targets = targetsOf(flags, parts.environment)
  try {
    const results = await begin({ plan, targets, settings: paced, flags, signal: parts.signal })
    try {
      const ended = await run({ plan, targets, settings: paced, results }, parts)
      const report = replayReport({ plan, settings: paced, results, ended })
      const json = paced.report === undefined ? undefined : writeReport(paced.report, report)
      if (flags.json === true) return `${JSON.stringify(report, undefined, 2)}\n`
      return `${reportText(report)}${whereText(paced, json, ended)}`
    } finally {
      results.close()
    }
  } catch (error) {
    if (parts.signal.aborted && error === parts.signal.reason) return 'stopped before anything was sent\n'
    throw error
  } finally {
    closeConnections()
  }
}

/** A trace without times has no pace of its own. */
function oneByOne(settings: ReplaySettings, { speed }: ReplayFlags): ReplaySettings {
  if (speed !== undefined) throw new UsageError('--speed: the trace has no times; give --sessions')
  return { ...settings, drive: { ...settings.drive, sessions: 1 } }
}

interface Begun {
  readonly plan: Plan
  readonly targets: readonly Target[]
  readonly settings: ReplaySettings
}

/** Asks the targets what they are, and opens the results. */
async function begin({ plan, targets, settings, flags, signal }: Begun & { flags: ReplayFlags; signal: AbortSignal }) {
  const { speech, drive: pace } = settings
  const wanted = {
    digest: plan.digest,
    settings: {
      ...speech,
      ...{ sessions: pace.sessions ?? 'by time', speed: pace.speed, order: pace.order },
      targets: targets.map(({ name, url }) => `${name}=${url}`),
      model: flags.model ?? 'first',
    },
  }
  const models: string[] = []
  for (const target of targets) models.push(await modelOf(target, flags.model))
  if (settings.resume) return resumeResults(settings.results, wanted)
  const heads: TargetHead[] = []
  for (const [i, target] of targets.entries()) {
    const model = models[i]!
    const isText = plan.texts.kind === 'messages'
    const words = isText ? 1 : await wordsPerToken(target, { ...speech, model, seed: `${Date.now()} ${i}`, signal })
    heads.push({ name: target.name, url: target.url, model, wordsPerToken: words })
  }
  const head: ResultsHead = {
    refrain_replay: 1,
    trace: plan.name,
    ...wanted,
    targets: heads,
    began: new Date().toISOString(),
  }
  return createResults(settings.results, head)
}

async function run(
  begun: Begun & { readonly results: Results },
  parts: ReplayParts,
): Promise<ReadonlyMap<string, Ended>> {
  const { plan, targets, settings, results } = begun
  const prompts = new Prompts(plan)
  const answered = new Set(
    results.lines.flatMap(({ target, i, error }) => (error === undefined ? [`${i} ${target}`] : [])),
  )
  const left = new Map(
    targets.map(({ name }) => [name, plan.requests.filter(({ index }) => !answered.has(`${index} ${name}`))] as const),
  )
  const total = plan.requests.length * targets.length
  let done = answered.size
  const clocks = new Map<string, number>()
  const speeches = new Map<string, Speech>(
    results.head.targets.map(({ name, model, wordsPerToken: words }) => [
      name,
      { ...settings.speech, model, wordsPerToken: words },
    ]),
  )
  const byName = new Map(targets.map((target) => [target.name, target]))
  const send: DriveParts['send'] = async (name, request, signal) => {
    const { path, body } = prompts.of(request, speeches.get(name)!)
    const at = (performance.now() - clocks.get(name)!) / 1000
    const answer = await post(byName.get(name)!, {
      path,
      body,
      headers: headersOf(request),
      timeoutMs: settings.timeoutMs,
      signal,
    })
    const line = { target: name, i: request.index, at: rounded(at) }
    if ('error' in answer) results.add({ ...line, error: answer.error })
    else {
      const { ttftMs, wallMs, promptTokens, cachedTokens, outputTokens } = answer
      results.add({
        ...line,
        ...{ ttft: rounded(ttftMs), wall: rounded(wallMs), out: outputTokens },
        ...(promptTokens !== undefined && { prompt: promptTokens }),
        ...(cachedTokens !== undefined && { cached: cachedTokens }),
      })
    }
    parts.progress(name, ++done, total)
    return !('error' in answer)
  }
  const begunWith = (name: string) => {
    const before = results.lines.filter(({ target }) => target === name).map(({ at, wall = 0 }) => 1000 * at + wall)
    clocks.set(name, performance.now() - Math.max(0, ...before))
  }
  return await drive(left, { ...settings.drive, signal: parts.signal }, { send, begun: begunWith })
}

function headersOf({ session, parent }: PlannedRequest): Record<string, string> {
  const plain = (text: string) => text.replaceAll(/[^!-~]/g, '_')
  return {
    ...(session !== undefined && { 'x-refrain-session': plain(session) }),
    ...(parent !== undefined && { 'x-refrain-parent-session': plain(parent) }),
  }
}

/** Three digits behind the point. */
function rounded(number: number): number {
  return Math.round(number * 1000) / 1000
}

function reportText({ title, subtitle, notes, runs, prices }: Report): string {
  const head = [
    'target',
    'requests',
    'failed',
    'prompt tokens',
    'reused',
    'of ideal',
    'TTFT p50',
    'p90',
    'p99',
    'cost',
    'saved',
  ]
  const row = (run: RunReport) => [
    run.name,
    formatCount(run.requests),
    formatCount(run.failed),
    formatCount(run.promptTokens),
    percent(run.hitRate),
    percent(
      run.reusedTokens === undefined ? undefined : run.idealTokens === 0 ? 1 : run.reusedTokens / run.idealTokens,
    ),
    ...[run.ttft?.p50Ms, run.ttft?.p90Ms, run.ttft?.p99Ms].map((ms) => (ms === undefined ? '-' : formatMs(ms))),
    run.cost.actual === undefined ? '-' : `${run.cost.actual.all.toPrecision(3)} ${prices.currency}`,
    percent(run.cost.savedShare),
  ]
  const failures = runs.flatMap((run) =>
    run.errors.map(({ what, count }) => `${run.name}: ${formatCount(count)} x ${what}\n`),
  )
  const said = notes.map((note) => `${note}\n`).join('')
  return `${title}\n${subtitle}\n\n${formatTable([head, ...runs.map(row)])}\n${failures.join('')}${said}`
}

function whereText(
  { results, report }: ReplaySettings,
  json: string | undefined,
  ended: ReadonlyMap<string, Ended>,
): string {
  const pages = report === undefined ? '' : `the report is in ${report}, its numbers in ${json}\n`
  const isWhole = [...ended.values()].every((how) => how === 'done')
  return `${pages}${isWhole ? `every answer is in ${results}` : `go on with the same command and --resume (${results})`}\n`
}

function percent(share: number | undefined): string {
  return share === undefined ? '-' : `${(100 * share).toFixed(1)} %`
}
