// The results of a replay as a report. Invariant: what failed counts in nothing but the failures; what of the run is not as
// the trace would have it (resumed, stopped, left out, longer or shorter prompts) is said in a sentence.

import { formatCount } from '../core/units.js'
import { type Report, type RunReport, runReport, type Sample } from '../report/report.js'
import type { Ended } from './drive.js'
import type { Plan } from './plan.js'
import type { ResultLine, Results } from './results.js'
import type { ReplaySettings } from './settings.js'

export interface SummaryParts {
  readonly plan: Plan
  readonly settings: ReplaySettings
  readonly results: Results
  readonly ended: ReadonlyMap<string, Ended>
}

export function replayReport(parts: SummaryParts): Report {
  const { plan, settings, results } = parts
  const { targets } = results.head
  const runs = targets.map(({ name, url, model }) => {
    const lines = results.lines.filter(({ target }) => target === name)
    const failures = lines.flatMap(({ error }) => error ?? [])
    const samples = lines.filter(({ error }) => error === undefined).map((line) => sampleOf(line, plan))
    return runReport({ name, detail: `${model} at ${url}`, samples, failures, prices: settings.prices })
  })
  return {
    kind: 'replay',
    title: `Replay of ${plan.name}`,
    subtitle: `${formatCount(plan.requests.length)} requests to ${targets.map(({ name, model }) => `${name} (${model})`).join(', ')}, ${paceOf(settings)}`,
    notes: notesOf(parts, runs),
    prices: settings.prices,
    runs,
  }
}

function sampleOf(line: ResultLine, plan: Plan): Sample {
  const { turn, idealShare, promptTokens: traced } = plan.requests[line.i]!
  const promptTokens = line.prompt ?? traced ?? 0
  return {
    at: line.at,
    turn,
    promptTokens,
    reusedTokens: line.cached,
    idealTokens: Math.min(idealShare * promptTokens, Math.max(0, promptTokens - 1)),
    outputTokens: line.out ?? 0,
    ttftMs: line.ttft,
  }
}

function paceOf({ drive }: ReplaySettings): string {
  const pace =
    drive.sessions === undefined
      ? drive.speed === 1
        ? "at the trace's times"
        : `at ${drive.speed} times the trace's speed`
      : drive.sessions === 1
        ? 'one session at a time'
        : `${drive.sessions} sessions at a time`
  return pace
}

function notesOf({ plan, settings, results, ended }: SummaryParts, runs: readonly RunReport[]): string[] {
  const { drive, speech } = settings
  const notes: string[] = []
  if (runs.length > 1) {
    notes.push(
      drive.order === 'after'
        ? 'The targets were driven one after the other, each with the whole trace.'
        : drive.sessions === undefined
          ? 'The targets were driven at the same time, each request to all of them.'
          : 'The targets were driven by turns, each session to all of them before the next one.',
    )
  }
  for (const [name, how] of ended) {
    const done = results.lines.filter(({ target }) => target === name).length
    const part = `${name}: ${formatCount(done)} of ${formatCount(plan.requests.length)} requests`
    if (how === 'time') notes.push(`${part}, then its time (--max-seconds) was over.`)
    if (how === 'stopped') notes.push(`${part}, then it was stopped.`)
    if (how === 'given up') notes.push(`${part}, then it was given up after ${drive.giveUp} failures in a row.`)
  }
  if (new Set(runs.map(({ requests }) => requests)).size > 1) {
    notes.push('The targets answered different requests: their sums are not of the same.')
  }
  if (results.resumed > 0) {
    const times = results.resumed === 1 ? 'once' : `${results.resumed} times`
    notes.push(`It was resumed ${times}: caches may have been colder, or warmer, than without the break.`)
  }
  if (plan.leftOut.long > 0)
    notes.push(`${formatCount(plan.leftOut.long)} requests are longer than --max-prompt and left out.`)
  if (plan.leftOut.limit > 0) notes.push(`${formatCount(plan.leftOut.limit)} later requests are left out (--limit).`)
  if (plan.texts.kind === 'blocks') notes.push(...blockNotes(plan, results, speech.shrink))
  else notes.push('What could be reused (ideal) is estimated from the length of the messages that prompts share.')
  const silent = runs.filter(({ requests, reusedTokens }) => requests > 0 && reusedTokens === undefined)
  for (const { name } of silent) notes.push(`${name} does not say what it reused.`)
  notes.push('Computed tokens cost what writing to the cache costs; what is generated is in no later prompt.')
  return notes
}

/** What the texts in place of blocks came to. */
function blockNotes(plan: Plan, results: Results, shrink: number): string[] {
  const notes = ['The trace has names of blocks only: the texts are made, with the same beginnings in common.']
  if (shrink !== 1) notes.push(`Prompts and answers are ${shrink} times shorter than in the trace (--shrink).`)
  for (const { name } of results.head.targets) {
    let [counted, traced] = [0, 0]
    for (const { target, i, prompt } of results.lines) {
      if (target !== name || prompt === undefined) continue
      counted += prompt
      traced += (plan.requests[i]!.promptTokens ?? 0) / shrink
    }
    if (traced > 0)
      notes.push(`${name} counts ${((100 * counted) / traced).toFixed(1)} % of the trace's prompt tokens.`)
  }
  return notes
}
