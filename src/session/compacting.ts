// Shortens the contexts of logged sessions when there is reason to, and stores results that are too long as they come.
// Summaries are written by the session's own model, on its warm prefix. Invariant: what is done is one event of the log, or
// nothing; a compaction that fails leaves the context as it was.

import { randomBytes } from 'node:crypto'
import { RefrainError } from '../core/errors.js'
import type { GenerateRequest } from '../core/request.js'
import { note } from '../core/signals.js'
import type { CompactionPlan, Lifecycle, SummaryRequest } from './compaction/contract.js'
import { planCompaction, WAYS } from './compaction/plan.js'
import { budgetResults, type EnteringResult } from './compaction/result-budget.js'
import { isToolDue, isUnderPressure, ttlBoundary } from './compaction/triggers.js'
import { historyChars } from './compaction/units.js'
import { CURRENT_COMPILER } from './compile/compilers.js'
import type { SessionPorts } from './contract.js'
import type { SessionLog } from './log/contract.js'
import type { CompactionEvent, NewEvent, PolicySnapshot, ToolResultEvent } from './log/event.js'
import type { OpenSession } from './open-session.js'

export interface CompactingDeps {
  readonly log: SessionLog
  readonly ports: SessionPorts
  /** Of the model's card. */
  readonly lifecycle: Lifecycle
  /** Without a turn for so long, cached prefixes have lapsed; 0: never. */
  readonly idleMs: number
  /** Unix milliseconds. */
  readonly now?: () => number
}

export interface Relief {
  readonly trigger: Exclude<CompactionEvent['trigger'], 'ttl'>
  readonly policy: PolicySnapshot
  readonly signal: AbortSignal
  /** Instead of the lifecycle's. */
  readonly strategy?: string
}

export class Compacting {
  readonly #deps: CompactingDeps
  /** Calls of the compact tool that were tried and came to nothing. */
  readonly #tried = new WeakMap<OpenSession, number>()
  /** Characters of contexts that no strategy could shorten: a summary is not written anew at every turn. */
  readonly #hopeless = new WeakMap<OpenSession, number>()

  constructor(deps: CompactingDeps) {
    this.#deps = deps
  }

  /** Results that are too long are stored and stand as stubs. */
  async takeIn(open: OpenSession, events: readonly NewEvent[]): Promise<readonly NewEvent[]> {
    const { log, ports, lifecycle } = this.#deps
    const names = new Map([...open.fold.openCalls].map(([id, { name }]) => [id, name]))
    for (const { body } of events) if (body.kind === 'tool_call') names.set(body.id, body.name)
    const entering = events.flatMap(({ body }): EnteringResult[] =>
      body.kind === 'tool_result' ? [{ event: body, tool: names.get(body.callId) ?? '' }] : [],
    )
    if (entering.length === 0) return events
    const budgeted = budgetResults(entering, {
      limits: lifecycle.results,
      earlierChars: earlierChars(open),
      countTokens: (text) => ports.countTokens(open.record.model, text),
      locatorOf: () => `res_${randomBytes(12).toString('hex')}`,
    })
    const stubs = new Map<object, ToolResultEvent>(entering.map(({ event }, i) => [event, budgeted.events[i] ?? event]))
    const sourcesOf = (locator: string) =>
      events.find(({ body }) => stubs.get(body)?.spilled?.locator === locator)?.sources ?? []
    for (const { locator, text } of budgeted.stored) {
      await log.keepResult(open.whose, { locator, text, sources: sourcesOf(locator) })
    }
    return events.map((event) => ({ ...event, body: stubs.get(event.body) ?? event.body }))
  }

  /**
   * Shortens the context where there is reason to; false: it was not. The session is held.
   * @throws RefrainError `compaction_rejected`, where the API asked; `invalid_request` by strategy.
   */
  async relieve(open: OpenSession, why: Relief): Promise<boolean> {
    const { trigger, policy, strategy } = why
    if (strategy !== undefined && !WAYS.includes(strategy)) {
      const message = `'strategy' must be one of ${WAYS.join(', ')}, not '${strategy.slice(0, 40)}'`
      throw new RefrainError('invalid_request', message, { param: 'strategy' })
    }
    const usedTokens = this.#usedTokens(open, policy)
    const isDue = trigger === 'tool' ? this.#isToolDue(open) : trigger !== 'pressure'
    const isPressed = this.#isPressed(open, policy, usedTokens)
    if (!isDue && !isPressed) return this.#lapse(open, policy)
    const cause = isDue ? trigger : 'pressure'
    const plan = await this.#run(open, { ...why, trigger: cause }, usedTokens)
    if (plan.kind === 'apply') this.#hopeless.delete(open)
    if (plan.kind === 'apply') return this.#apply(open, plan.event)
    if (plan.kind === 'nothing') return false
    const reason = plan.problems.join('; ').slice(0, 1000)
    note.publish({
      level: 'error',
      text: `a compaction of ${open.record.id} was rejected: ${reason}`,
      detail: { trigger },
    })
    const isShorter = plan.partial !== undefined && (await this.#apply(open, plan.partial))
    this.#hopeless.set(open, open.compile(policy).chars)
    if (isShorter) return true
    if (trigger === 'api') throw new RefrainError('compaction_rejected', `the context was not shortened: ${reason}`)
    return false
  }

  async #apply(open: OpenSession, event: CompactionEvent): Promise<boolean> {
    await open.append([{ body: event }])
    return true
  }

  async #run(
    open: OpenSession,
    why: Relief,
    usedTokens: number,
  ): Promise<Exclude<CompactionPlan, { kind: 'summary' }>> {
    const { ports, lifecycle } = this.#deps
    const { trigger, policy, strategy, signal } = why
    const { name, contextLength } = ports.model(open.record.model)
    let plan = planCompaction({
      events: open.events,
      policy,
      compiler: CURRENT_COMPILER,
      compiled: open.compiled,
      lifecycle,
      trigger,
      // A backend that takes less than it was said to take has just told how much is too much.
      window: trigger === 'overflow' ? Math.min(contextLength, usedTokens) : contextLength,
      usedTokens,
      countTokens: (text) => ports.countTokens(name, text),
      ...(strategy !== undefined && { strategy }),
    })
    for (let n = 0; plan.kind === 'summary'; n++) {
      const { request, accept, refuse } = plan
      const written = await this.#write(open, request, { signal, n })
      plan = typeof written === 'string' ? accept(written) : refuse(written.why)
    }
    return plan
  }

  /** The summary, or why there is none. @throws the signal's reason. */
  async #write(
    open: OpenSession,
    { messages, tools, instruction, maxTokens }: SummaryRequest,
    { signal, n }: { readonly signal: AbortSignal; readonly n: number },
  ): Promise<string | { readonly why: string }> {
    const { record } = open
    const request: GenerateRequest = {
      id: `${record.id}-summary-${open.position}-${n}`,
      model: record.model,
      tenant: { name: record.tenant, salt: this.#deps.ports.saltOf(record.tenant), admin: false },
      session: record.id,
      logged: { aside: 'whole' },
      requestClass: 'compaction',
      priority: 'auxiliary',
      prompt: {
        kind: 'chat',
        messages: [...messages, { role: 'user', content: instruction }],
        tools,
      },
      ...(tools.length > 0 && { toolChoice: { mode: 'none' } }),
      sampling: GREEDY,
      ...{ maxTokens, stop: [], stopTokenIds: [], ignoreEos: false, n: 1, echo: false },
    }
    try {
      let text = ''
      for await (const event of this.#deps.ports.generate(request, signal)) {
        if (event.type === 'token') text += event.split?.content ?? event.text
        else if (event.type === 'end') text += event.split?.content ?? ''
      }
      return text
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof RefrainError) return { why: `the model was not asked: ${error.code}: ${error.message}` }
      throw error
    }
  }

  /** The boundary that costs nothing, because what was cached has lapsed. */
  async #lapse(open: OpenSession, policy: PolicySnapshot): Promise<boolean> {
    const { idleMs, now = Date.now } = this.#deps
    const last = open.events.findLast(({ position }) => position <= open.fold.usageAt)
    if (idleMs === 0 || last === undefined || now() - last.at < idleMs) return false
    const event = ttlBoundary(open.compiled, policy)
    return event === undefined ? false : this.#apply(open, event)
  }

  #isToolDue(open: OpenSession): boolean {
    const asked = open.events.findLast(({ body }) => body.kind === 'tool_call' && body.name === 'compact')
    if (asked === undefined || this.#tried.get(open) === asked.position || !isToolDue(open.events)) return false
    this.#tried.set(open, asked.position)
    return true
  }

  #isPressed(open: OpenSession, policy: PolicySnapshot, usedTokens: number): boolean {
    const { ports, lifecycle } = this.#deps
    const { contextLength: window } = ports.model(open.record.model)
    const context = open.compile(policy)
    if (context.chars < (this.#hopeless.get(open) ?? 0) * RETRY_GROWTH) return false
    return isUnderPressure(lifecycle, { usedTokens, window, chars: historyChars(context) })
  }

  /** As the backend counted the last turn, and what came behind it. */
  #usedTokens(open: OpenSession, policy: PolicySnapshot): number {
    const { ports } = this.#deps
    const { fold, events, record } = open
    const count = (text: string) => ports.countTokens(record.model, text)
    const { usage, usageAt, boundaryAt } = fold
    if (usage === undefined || boundaryAt > usageAt) {
      const { messages, tail, tools } = open.compile(policy)
      const said = [...messages, ...tail].map(({ content, toolCalls = [] }) =>
        [content, ...toolCalls.map((call) => call.arguments)].join('\n'),
      )
      return [...said, ...tools.map(({ json }) => json)].reduce((sum, text) => sum + count(text) + FRAME_TOKENS, 0)
    }
    const sent = events.findLastIndex(({ body }) => body.kind === 'turn' && body.turn === usage.turn)
    // What was answered is among the completion's tokens; results of calls that the server ran stand in front of its count.
    const behind = events
      .slice(sent + 1)
      .filter(({ body, position }) => position > usageAt || body.kind === 'tool_result')
    return behind.reduce(
      (sum, { body }) => ('content' in body ? sum + count(body.content) + FRAME_TOKENS : sum),
      usage.promptTokens + usage.completionTokens,
    )
  }
}

/** What could not be shortened is tried again when it has grown by so much: little, for a summary must still fit in beside it. */
const RETRY_GROWTH = 1.03

/** What a template writes around a message, about. */
const FRAME_TOKENS = 8

const GREEDY: GenerateRequest['sampling'] = {
  ...{ temperature: 0, topP: 1, topK: 0, minP: 0, logitBias: {} },
  ...{ repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0 },
}

/** Characters of results that answer the latest batch of calls already. */
function earlierChars({ events }: OpenSession): number {
  const begin = events.findLastIndex(({ body }) => body.kind === 'assistant')
  return events
    .slice(begin + 1)
    .reduce((sum, { body }) => (body.kind === 'tool_result' ? sum + body.content.length : sum), 0)
}
