// The flags of `refrain bench replay` as checked values. Invariant: what cannot be meant is refused before anything is read
// or sent, with the flag's name.

import { parseCount } from '../core/units.js'
import { UsageError } from '../core/usage-error.js'
import { type Prices, pricesFrom } from '../report/prices.js'
import { checkReportPath } from '../report/write-report.js'
import type { DriveOptions } from './drive.js'
import type { PlanOptions } from './plan.js'
import type { Api, Speech } from './prompts.js'

export interface ReplayFlags {
  readonly target: readonly string[]
  readonly model?: string
  readonly keyEnv?: readonly string[]
  readonly api?: string
  readonly tokenIds?: string
  readonly speed?: string
  readonly sessions?: string
  readonly order?: string
  readonly limit?: string
  readonly maxPrompt?: string
  readonly maxSeconds?: string
  readonly maxOutput?: string
  readonly shrink?: string
  readonly salt?: string
  readonly ignoreEos?: boolean
  readonly timeout?: string
  readonly giveUp?: string
  readonly results?: string
  readonly resume?: boolean
  readonly report?: string
  readonly prices?: string
  readonly json?: boolean
}

export interface ReplaySettings {
  readonly plan: PlanOptions
  readonly speech: Omit<Speech, 'model' | 'wordsPerToken'>
  readonly drive: Omit<DriveOptions, 'signal'>
  readonly timeoutMs: number
  readonly results: string
  readonly resume: boolean
  readonly report: string | undefined
  readonly prices: Prices
}

const DEFAULTS = {
  speed: 1,
  maxOutput: 256,
  shrink: 1,
  timeoutSeconds: 600,
  giveUp: 10,
  results: 'refrain-replay.jsonl',
  /** Plain tokens in the vocabularies of nearly all models. */
  tokenIds: '1000-30000',
} as const
const MOST_SESSIONS = 10_000

/** @throws UsageError naming the flag. */
export function settingsOf(flags: ReplayFlags): ReplaySettings {
  const count = (text: string | undefined, flag: string) => (text === undefined ? undefined : parseCount(text, flag))
  const limit = count(flags.limit, '--limit')
  const maxPrompt = count(flags.maxPrompt, '--max-prompt')
  const sessions = count(flags.sessions, '--sessions')
  if (sessions !== undefined && sessions > MOST_SESSIONS)
    throw new UsageError(`--sessions: ${sessions} at once are more than ${MOST_SESSIONS}`)
  if (sessions !== undefined && flags.speed !== undefined)
    throw new UsageError('--speed goes with the times of the trace, --sessions without them: give one of both')
  if (flags.report !== undefined) checkReportPath(flags.report)
  return {
    plan: { ...(limit !== undefined && { limit }), ...(maxPrompt !== undefined && { maxPrompt }) },
    speech: {
      api: oneOf(flags.api, '--api', ['chat', 'completions', 'tokens']) as Api,
      tokenIds: range(flags.tokenIds ?? DEFAULTS.tokenIds),
      salt: flags.salt ?? '',
      shrink: positive(flags.shrink, '--shrink', DEFAULTS.shrink),
      mostOutput: count(flags.maxOutput, '--max-output') ?? DEFAULTS.maxOutput,
      ignoreEos: flags.ignoreEos === true,
    },
    drive: {
      sessions,
      speed: positive(flags.speed, '--speed', DEFAULTS.speed),
      order: oneOf(flags.order, '--order', ['after', 'interleaved']) as 'after' | 'interleaved',
      maxMs: positive(flags.maxSeconds, '--max-seconds', Number.POSITIVE_INFINITY) * 1000,
      giveUp: count(flags.giveUp, '--give-up') ?? DEFAULTS.giveUp,
    },
    timeoutMs: positive(flags.timeout, '--timeout', DEFAULTS.timeoutSeconds) * 1000,
    results: flags.results ?? DEFAULTS.results,
    resume: flags.resume === true,
    report: flags.report,
    prices: pricesFrom(flags.prices),
  }
}

/** The first of `known` where nothing is given. */
function oneOf(text: string | undefined, flag: string, known: readonly [string, ...string[]]): string {
  if (text === undefined) return known[0]
  if (known.includes(text)) return text
  throw new UsageError(`${flag}: '${text}' is none of ${known.join(', ')}`)
}

function positive(text: string | undefined, flag: string, fallback: number): number {
  if (text === undefined) return fallback
  const number = Number(text)
  if (text.trim() !== '' && Number.isFinite(number) && number > 0) return number
  throw new UsageError(`${flag}: '${text}' is no number above 0`)
}

function range(text: string): readonly [number, number] {
  const [, low, high] = /^(\d{1,7})-(\d{1,7})$/.exec(text) ?? []
  if (low !== undefined && Number(low) < Number(high)) return [Number(low), Number(high)]
  throw new UsageError(`--token-ids: '${text}' is no range of ids, as ${DEFAULTS.tokenIds}`)
}
