// The quick instructions of one request, as serve.ts runs them: which tokens its job has, which branches, and what is done
// to its events. Invariant: the answer's own prompt is what it would be without them; alone, they share the longest prefix
// that all of them begin with.

import type { Chain } from '../core/block.js'
import type { GenerateEvent } from '../core/events.js'
import type { BranchPlan } from '../core/quick.js'
import type { Job } from '../core/request.js'
import { plansOf, withResults } from './answers.js'
import { besides } from './beside.js'
import { type Fork, type ForkInput, planForks } from './fork-plan.js'

/** Tokens that branches may compute again, all of them together, rather than run as a job of their own. */
const AGAIN_TOKENS = 64

export interface QuickJob {
  /** The prompt of the job: the request's own, or what questions alone need of it. */
  readonly tokens: Int32Array
  readonly branches: readonly BranchPlan[]
}

export interface QuickRun {
  readonly job: QuickJob
  /** Questions that run beside `job`, as one of their own. */
  readonly apart?: QuickJob
  /** The events of `job`, with results. `ask` runs `apart`. */
  answer(
    events: AsyncIterable<GenerateEvent>,
    signal: AbortSignal,
    ask: (apart: QuickJob, signal: AbortSignal) => AsyncIterable<GenerateEvent>,
  ): AsyncIterable<GenerateEvent>
}

/**
 * Plans the tasks of `input`; `alone`: nothing else is asked.
 * @throws RefrainError `invalid_request` by field, `template_failed`.
 */
export function planQuick(input: ForkInput, alone: boolean): QuickRun {
  const forks = planForks(input)
  const plans = plansOf(forks)
  if (alone) {
    const job = shared(plans, input.tokens)
    return { job, answer: (events) => withResults(events, forks) }
  }
  const again = plans.filter(({ shares }) => shares !== 'reply' && input.prefixTokens - shares > AGAIN_TOKENS)
  if (again.length === 0) {
    return { job: { tokens: input.tokens, branches: plans }, answer: (events) => withResults(events, forks) }
  }
  return apart(input, forks, plans)
}

function apart({ tokens }: ForkInput, forks: readonly Fork[], plans: readonly BranchPlan[]): QuickRun {
  const own = shared(plans, tokens)
  return {
    job: { tokens, branches: [] },
    apart: own,
    answer: (events, signal, ask) =>
      withResults(besides(events, { plans, ask: (stop) => ask(own, stop) }, signal), forks),
  }
}

/** `questions` beside `job`: a side request on the same model, with a chain of its own. */
export function jobApart({ request, model }: Job, { tokens, branches }: QuickJob, chain: Chain): Job {
  const { constraint: _, pinTtlMs: __, stop: ___, ...rest } = request
  const priority = request.priority === 'interactive' ? 'auxiliary' : request.priority
  const plain = { ...rest, priority, stop: [], n: 1, maxTokens: 0, requestClass: 'auxiliary' } as const
  return { request: plain, model, tokens, chain, branches, maxTokens: 0, transient: true }
}

/** The job of questions alone: what all of them begin with is its prompt, be it more or less than the request's. */
function shared(plans: readonly BranchPlan[], tokens: Int32Array): QuickJob {
  const most = Math.max(0, ...plans.map(sharesOf))
  const whole = plans.map((plan) => Int32Array.from([...tokens.subarray(0, sharesOf(plan)), ...plan.suffix]))
  const common = sharedStart(whole)
  if (plans.length === 0) return { tokens, branches: [] }
  if (most > 0 && common - most <= AGAIN_TOKENS) return { tokens: tokens.subarray(0, most), branches: plans }
  const prompt = (whole[0] as Int32Array).subarray(0, common)
  const branches = plans.map((plan, i) => ({
    ...plan,
    shares: common,
    suffix: (whole[i] as Int32Array).subarray(common),
  }))
  return { tokens: prompt, branches }
}

function sharesOf({ shares }: BranchPlan): number {
  if (shares === 'reply') throw new Error('a question alone has no answer to follow')
  return shares
}

/** Leading tokens that all have, less than all of any. */
function sharedStart(all: readonly Int32Array[]): number {
  const [first, ...others] = all
  if (first === undefined) return 0
  const most = Math.min(...all.map(({ length }) => length)) - 1
  let at = 0
  while (at < most && others.every((other) => other[at] === first[at])) at++
  return at
}
