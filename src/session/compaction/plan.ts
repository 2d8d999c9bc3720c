// One boundary: steps and strategies in order, the context measured again after each, the rest left out once there is room.
// Pure; where a model has to write, the plan says what and goes on with its text. Invariant: what comes out has fewer
// characters and fewer tokens than what went in, and never follows another compaction with nothing said in between.

import { createIncrementalCompiler } from '../compile/compilers.js'
import type { CompiledContext, IncrementalCompiler } from '../compile/contract.js'
import type { CompactionEvent, CompactionStep } from '../log/event.js'
import { checkSummary } from './check.js'
import type { CompactionInput, CompactionPlan, StepKind, SummaryRequest } from './contract.js'
import { factsOf } from './facts.js'
import * as kinds from './index.js'
import { cutTo } from './snip.js'
import { mayCompact, OVERFLOW_KEEP, reliefTokens } from './triggers.js'
import { historyChars, stepInput } from './units.js'
import { coveredEvents, requestsIn, summaryRequest, summaryStep } from './write.js'

const KINDS: Readonly<Record<string, StepKind>> = kinds
const RANKS = ['restorable', 'cheap', 'lossy']

/** What to log to make the context shorter, or what has to be written first. */
export function planCompaction(input: CompactionInput): CompactionPlan {
  if (!mayCompact(input.events)) return { kind: 'nothing', reason: 'too-soon' }
  return new Plan(input).run()
}

/** `planCompaction` with somebody who writes. What `summarize` throws comes through. */
export async function runCompaction(
  input: CompactionInput,
  summarize: (request: SummaryRequest) => Promise<string>,
): Promise<Exclude<CompactionPlan, { kind: 'summary' }>> {
  let plan = planCompaction(input)
  while (plan.kind === 'summary') plan = plan.accept(await summarize(plan.request))
  return plan
}

class Plan {
  readonly #input: CompactionInput
  readonly #compiled: IncrementalCompiler
  readonly #position: number
  readonly #before: CompiledContext
  readonly #keep: number
  readonly #toolTokens: number
  #steps: CompactionStep[] = []
  #now: CompiledContext
  #problems: readonly string[] = []

  constructor(input: CompactionInput, twin?: Plan) {
    const { policy, trigger, lifecycle } = input
    this.#input = input
    this.#position = twin === undefined ? input.events.length : twin.#position
    this.#compiled = twin === undefined ? (input.compiled ?? compilerOf(input, this.#position)) : twin.#compiled
    this.#before = twin === undefined ? this.#compiled.compile(policy) : twin.#before
    this.#now = this.#before
    const tools = this.#before.tools.map(({ json }) => json).join('\n')
    this.#toolTokens = Math.min(input.usedTokens, tools === '' ? 0 : input.countTokens(tools))
    this.#keep = trigger === 'overflow' ? OVERFLOW_KEEP : lifecycle.keep
  }

  /** So that a plan that asks for a text can be gone on with more than once. */
  #copy(): Plan {
    const copy = new Plan(this.#input, this)
    copy.#steps = this.#steps
    copy.#now = this.#now
    copy.#problems = this.#problems
    return copy
  }

  run(): CompactionPlan {
    const { lifecycle, strategy, trigger } = this.#input
    if (trigger === 'pressure' && this.#isRelieved()) return { kind: 'nothing', reason: 'no-pressure' }
    // Whoever names a strategy wants that one.
    if (strategy === undefined) for (const kind of this.#ordered(lifecycle.steps)) this.#tryStep(kind)
    return this.#strategies([strategy ?? lifecycle.strategy, ...lifecycle.next])
  }

  #ordered(names: readonly string[]): readonly StepKind[] {
    return names.map(kindOf).sort((a, b) => RANKS.indexOf(a.rank) - RANKS.indexOf(b.rank))
  }

  #tryStep(kind: StepKind): void {
    if (this.#isRelieved()) return
    const step = kind.plan(this.#stepInput())
    if (step !== undefined && step.step !== 'write') this.#take(step)
  }

  #strategies([name, ...others]: readonly string[]): CompactionPlan {
    if (name === undefined || this.#isRelieved()) return this.#finish()
    const step = kindOf(name).plan(this.#stepInput())
    if (step === undefined) return this.#finish()
    if (step.step !== 'write') {
      this.#take(step)
      return this.#finish()
    }
    const { to } = step
    const request = summaryRequest(this.#input, { before: this.#before, now: this.#now, to }, (context) =>
      this.#measure(context),
    )
    const refuse = (why: string) => this.#copy().#rejected([why], others)
    if (request === undefined) return refuse('nothing that could be summed up fits the window')
    return { kind: 'summary', request, accept: (text) => this.#copy().#accept(text, { to, request, others }), refuse }
  }

  #accept(
    text: string,
    asked: { readonly to: number; readonly request: SummaryRequest; readonly others: readonly string[] },
  ): CompactionPlan {
    const { to, request, others } = asked
    const { lifecycle } = this.#input
    const covered = coveredEvents(this.#input, this.#before, to)
    const { added, problems } = checkSummary(text, factsOf(covered), lifecycle.summary.addedChars)
    if (problems.length > 0) return this.#rejected(problems, others)
    const requests = requestsIn(covered, lifecycle.summary)
    const step = summaryStep({ to, text: text.trim(), generation: request.generation, added, requests })
    // What the summary covers needs no other step.
    const rest = this.#steps.flatMap((each) => uncovered(each, to))
    if (!this.#replace([...rest, step]))
      return this.#rejected(['the summary is no shorter than what it covers'], others)
    return this.#finish()
  }

  #rejected(problems: readonly string[], others: readonly string[]): CompactionPlan {
    this.#problems = [...this.#problems, ...problems]
    if (others.length > 0) return this.#strategies(others)
    // The backend takes nothing as it is, so what it said is lost either way unless something goes.
    const cut = this.#input.trigger === 'overflow' ? cutTo(this.#stepInput()) : undefined
    if (cut !== undefined) {
      this.#take(cut)
      return this.#finish()
    }
    const finished = this.#finish()
    const partial = finished.kind === 'apply' ? finished.event : undefined
    return { kind: 'rejected', problems: this.#problems, partial }
  }

  /** Adds a step unless the context would not be shorter for it. */
  #take(step: CompactionStep): void {
    this.#replace([...this.#steps, step])
  }

  #replace(steps: CompactionStep[]): boolean {
    const next = this.#onTrial(steps)
    if (next.chars >= this.#now.chars || this.#measure(next) >= this.#measure(this.#now)) return false
    this.#steps = steps
    this.#now = next
    return true
  }

  #finish(): CompactionPlan {
    if (this.#steps.length === 0) return { kind: 'nothing', reason: 'nothing-to-do' }
    const [tokensBefore, tokensAfter] = [this.#measure(this.#before), this.#measure(this.#now)]
    if (tokensAfter >= tokensBefore || this.#now.chars >= this.#before.chars)
      return { kind: 'nothing', reason: 'not-smaller' }
    return { kind: 'apply', event: this.#event(this.#steps), tokensBefore, tokensAfter, rejected: this.#problems }
  }

  /** Whoever asked by name is not done before the strategy. */
  #isRelieved(): boolean {
    const { trigger, lifecycle } = this.#input
    if (trigger === 'api' || trigger === 'tool') return false
    const { chars = Number.POSITIVE_INFINITY } = lifecycle.trigger
    return this.#measure(this.#now) <= reliefTokens(this.#input) && historyChars(this.#now) <= chars
  }

  #stepInput() {
    const { events, lifecycle } = this.#input
    return stepInput(this.#now, { events, lifecycle, keep: this.#keep })
  }

  /** Tools have their tokens whatever becomes of the messages. */
  #measure(context: CompiledContext): number {
    const { measure, usedTokens } = this.#input
    if (measure !== undefined) return measure(context)
    const { chars } = this.#before
    return chars === 0 ? usedTokens : this.#toolTokens + ((usedTokens - this.#toolTokens) * context.chars) / chars
  }

  #event(steps: readonly CompactionStep[]): CompactionEvent {
    const { trigger } = this.#input
    return { kind: 'compaction', trigger, steps, charsBefore: this.#before.chars, charsAfter: this.#now.chars }
  }

  #onTrial(steps: readonly CompactionStep[]): CompiledContext {
    const { policy } = this.#input
    // Something may have been logged while a summary was written.
    const isThere = this.#compiled.position === this.#position
    const compiled = isThere ? this.#compiled : compilerOf(this.#input, this.#position)
    return compiled.trial([this.#event(steps)], policy)
  }
}

function compilerOf({ events, compiler }: CompactionInput, position: number): IncrementalCompiler {
  const compiled = createIncrementalCompiler(compiler)
  compiled.append(events.slice(0, position))
  return compiled
}

/** Names that a policy or a client may choose from. */
export const WAYS: readonly string[] = Object.keys(KINDS)

function kindOf(name: string): StepKind {
  const kind = Object.hasOwn(KINDS, name) ? KINDS[name] : undefined
  if (kind === undefined)
    throw new Error(`no way to shorten a context is called '${name}'; known are ${WAYS.join(', ')}`)
  return kind
}

/** What of a step lies behind `to`. */
function uncovered(step: CompactionStep, to: number): CompactionStep[] {
  if (step.step === 'micro') {
    const results = step.results.filter((position) => position > to)
    return results.length === 0 ? [] : [{ ...step, results }]
  }
  if (step.step === 'discard') {
    const calls = step.calls.filter((position) => position > to)
    return calls.length === 0 ? [] : [{ ...step, calls }]
  }
  return step.step === 'snip' && step.to <= to ? [] : [step]
}
