// A turn from its start until what it missed is known: first compared and copied, which is all that its request waits for;
// then digested, located and told, behind the request's back. Invariant: once it is concluded it holds on to neither text nor
// tokens, and nothing of it is done twice.

import type { GenerateEvent } from '../core/events.js'
import { turnMissed } from '../core/signals.js'
import type { CauseView, MissView, Reason, TurnConcluded, TurnFacts } from './contract.js'
import { causesOf, keptTokens, lossReason, type Moves } from './costs.js'
import { type Difference, differenceOf } from './difference.js'
import { messageMarks, templateDigest, templateOptions, toolMark } from './fingerprint.js'
import { sentenceOf } from './sentences.js'
import type { Latest, Session } from './session.js'
import { quickTokens } from './side.js'
import { bytesOf, TokenLine } from './token-line.js'
import { Marks, type Turn } from './turn.js'
import type { EventSink } from './watch.js'

/** Tokens behind the place where two prompts part that are kept until it is told. */
const TAIL_TOKENS = 256

export interface TakenDeps {
  readonly keepText: boolean
  readonly expiresMs: number
  now(): number
  /** So far. */
  moves(): Moves
  /** Its usage came in, or it ended: there is something to conclude. */
  due(taken: TakenTurn): void
  concluded?(turn: TurnConcluded): void
}

/** The turn that it is compared with, as that was when this one began. */
interface Prior {
  readonly turn: Turn
  /** Undefined: it went to another model, or its tokens were revoked. */
  readonly line?: {
    readonly tokens: TokenLine
    readonly length: number | undefined
    readonly shared: number
    readonly isSameRoot: boolean
    readonly reasoned: boolean
    readonly isAppended: boolean
  }
  readonly idleMs: number
  readonly moves: Moves
}

/** What moved in the cache until a turn was done. */
const movesAt = new WeakMap<Turn, Moves>()

export class TakenTurn implements EventSink {
  readonly turn: Turn
  readonly session: Session
  readonly isMain: boolean
  /** A question beside the conversation that was sent as a request of its own. */
  readonly #isSide: boolean
  readonly #deps: TakenDeps
  readonly #prior: Prior | undefined
  readonly #intent: Session['intent']
  readonly #latest: Latest | undefined
  readonly #answer: number[] | undefined
  #facts: TurnFacts | undefined
  #isConcluded = false

  constructor(facts: TurnFacts, session: Session, turn: Turn, deps: TakenDeps) {
    const { requestClass, n, maxTokens, quick } = facts.request
    this.turn = turn
    this.session = session
    const isAside = quick !== undefined && maxTokens === 0
    this.isMain = requestClass !== 'auxiliary' && requestClass !== 'compaction' && !isAside
    this.#isSide = requestClass === 'auxiliary' && quick === undefined
    this.#deps = deps
    this.#facts = facts
    this.#intent = this.#intended(facts)
    this.#prior = this.#compare(facts)
    if (this.isMain) this.#latest = this.#lead(facts)
    this.#answer = this.isMain && n === 1 && maxTokens !== 0 ? [] : undefined
    movesAt.set(turn, deps.moves())
  }

  /** Tokens that it begins with and the turn before had too. */
  get shared(): number {
    return this.#prior?.line?.shared ?? 0
  }

  // --- at once ---------------------------------------------------------------------------------------------------------

  #intended({ request, boundary }: TurnFacts): Session['intent'] {
    const { session } = this
    const { contextEpoch, requestClass } = request
    const isRewritten =
      contextEpoch === 'new' ||
      (session.epoch !== undefined && contextEpoch !== undefined && contextEpoch > session.epoch)
    if (typeof contextEpoch === 'number') session.epoch = contextEpoch
    if (requestClass === 'compaction') session.intent = 'compaction'
    if (!this.isMain) return undefined
    const intent = boundary ?? (isRewritten ? 'compaction' : session.intent)
    session.intent = undefined
    return intent
  }

  #compare({ model, chain, tokens }: TurnFacts): Prior | undefined {
    const { session } = this
    const latest = session.latest.get(model)
    const turn = latest?.turn ?? session.last
    if (turn === undefined) return undefined
    if (this.isMain) session.compared++
    const moves = movesAt.get(turn) ?? this.#deps.moves()
    if (latest === undefined) return { turn, idleMs: 0, moves }
    const { line, reasoned, usedMs } = latest
    const shared = line.shared(chain, tokens)
    return {
      turn,
      line: {
        tokens: line,
        length: turn.status === 'done' ? line.length : undefined,
        shared,
        reasoned,
        isSameRoot: line.chain.root === chain.root,
        isAppended: shared >= line.headTokens,
      },
      idleMs: this.#deps.now() - usedMs,
      moves,
    }
  }

  #lead(facts: TurnFacts): Latest {
    const { model, chain, tokens } = facts
    const headTokens = tokens.length - tailTokens(facts)
    const line = new TokenLine({ chain, tokens, headTokens }, this.#prior?.line?.tokens)
    const latest = { line, turn: this.turn, reasoned: false, usedMs: this.#deps.now(), spellings: facts.tokenizer }
    this.session.setLatest(model, latest)
    this.session.last = this.turn
    return latest
  }

  // --- as events pass --------------------------------------------------------------------------------------------------

  see(event: GenerateEvent): void {
    if (event.type === 'token') {
      if (event.choice !== 0 || this.#latest === undefined) return
      if (this.#answer !== undefined) for (const id of event.ids) this.#answer.push(id)
      if (event.split !== undefined && event.split.reasoning !== '') this.#latest.reasoned = true
    } else if (event.type === 'start' || event.type === 'finish') {
      const { turn } = this
      turn.usage = event.cache
      turn.committedTokens = event.committedTokens
      if (event.type === 'finish') turn.completionTokens = event.completionTokens
      this.#deps.due(this)
    }
  }

  end({ finished }: { readonly finished: boolean }): void {
    const { turn } = this
    turn.status = finished ? 'done' : 'failed'
    movesAt.set(turn, this.#deps.moves())
    const latest = this.#latest
    if (latest !== undefined && latest.turn === turn && this.session.latest.get(turn.model) === latest) {
      latest.usedMs = this.#deps.now()
      if (finished && this.#answer !== undefined) latest.line.answered(this.#answer)
    }
    this.#deps.due(this)
  }

  // --- behind the request's back ---------------------------------------------------------------------------------------

  /** Digests the prompt. */
  settle(): void {
    const facts = this.#facts
    if (facts === undefined || this.turn.marks !== undefined) return
    const { request, rendered, template } = facts
    const { prompt } = request
    const named = `${templateDigest(template)}${templateOptions(request) === '' ? '' : `:${templateOptions(request)}`}`
    const before = this.#prior?.line?.isAppended === true ? this.#prior.turn.marks : undefined
    if (prompt.kind !== 'chat') {
      this.turn.marks = new Marks(named, [], [])
      return
    }
    const { messages, tools } = prompt
    const isLonger = before !== undefined && before.count <= messages.length && before.tools.length === tools.length
    const from = isLonger ? before.count : 0
    const more = messageMarks(messages, rendered, { from, behind: from === 0 ? undefined : before?.messages[from - 1] })
    const isMore = isLonger && from > 0
    this.turn.marks = isMore ? before.with(named, more) : new Marks(named, tools.map(toolMark), more)
    this.turn.ownMarks = more.length + (isMore ? 0 : tools.length)
    this.session.ownMarks += this.turn.ownMarks
  }

  /** Where the prompt parts from the one before; undefined: nowhere. */
  #locate(): Difference | undefined {
    const [facts, line, before, after] = [this.#facts, this.#prior?.line, this.#prior?.turn.marks, this.turn.marks]
    if (facts === undefined || line === undefined || before === undefined || after === undefined) return undefined
    const { request, rendered, tokenizer, places, tokens } = facts
    const { shared, tokens: old, reasoned } = line
    if (shared >= old.length || shared >= tokens.length) return undefined
    const difference = differenceOf({
      ...{ before, after, rendered, reasoned, spellings: tokenizer },
      messages: request.prompt.kind === 'chat' ? request.prompt.messages : [],
      token: shared,
      bytesBefore: old.bytesBefore(shared, tokenizer),
      old: old.slice(shared, shared + TAIL_TOKENS),
      new: tokens.slice(shared, shared + TAIL_TOKENS),
      promptTokens: old.prompt.length,
      keepText: this.#deps.keepText,
    })
    return places === undefined ? difference : inClientsPlace(difference, places)
  }

  /** Says what was missed, once the usage is known; true: it is said, or never will be. */
  conclude(): boolean {
    if (this.#isConcluded) return true
    const { turn, session } = this
    const { usage } = turn
    this.settle()
    if (usage === undefined) {
      if (turn.status === 'running') return false
    } else {
      turn.miss = this.#missed()
      if (this.#isSide) this.#asQuick(usage.computed)
      session.promptTokens += turn.promptTokens
      session.reusedTokens += turn.promptTokens - usage.computed
      if (turn.miss !== undefined && turn.miss.reason !== 'first_seen') session.missedTokens += turn.miss.missedTokens
      for (const cause of turn.miss?.causes ?? []) turnMissed.publish(cause)
    }
    this.#isConcluded = true
    this.#tell()
    this.#facts = undefined
    return true
  }

  #tell(): void {
    const { turn, session } = this
    const { concluded } = this.#deps
    const facts = this.#facts
    if (concluded === undefined || facts === undefined || !this.isMain || turn.usage === undefined) return
    const { promptTokens, backend, stableTokens, number } = turn
    concluded({
      ...{ tenant: session.tenant, session: session.key, turn: number, promptTokens, backend },
      cachedTokens: promptTokens - turn.usage.computed,
      stableTokens: stableTokens ?? promptTokens - tailTokens(facts),
      reason: turn.miss?.reason,
      isLogged: facts.request.logged !== undefined,
    })
  }

  #asQuick(computed: number): void {
    const { turn, session } = this
    const { isSameRoot = false, shared = 0 } = this.#prior?.line ?? {}
    const side = { promptTokens: turn.promptTokens, shared: isSameRoot ? shared : 0, computed }
    turn.quickTokens = quickTokens(side)
    session.side.add(side)
  }

  #missed(): MissView | undefined {
    const { turn } = this
    const [usage, prior] = [turn.usage, this.#prior]
    if (usage === undefined) return undefined
    if (prior === undefined) return firstSeen(usage.computed)
    const { line } = prior
    const left = keptTokens({
      promptTokens: prior.turn.promptTokens,
      usage: prior.turn.usage,
      committedTokens: prior.turn.committedTokens,
      lineTokens: line?.length,
    })
    // What was written anew behind the conversation, and all that came behind it, was never to be reused.
    const kept = Math.min(left, prior.turn.stableTokens ?? left)
    const shared = line?.isSameRoot === true ? line.shared : 0
    const spending = { kept, promptTokens: turn.promptTokens, shared, usage }
    const spent = causesOf(spending, { prompt: 'messages_changed', cache: 'evicted' })
    if (spent.length === 0) return undefined
    const loss = { ...prior, expiresMs: this.#deps.expiresMs, usage, since: minus(this.#deps.moves(), prior.moves) }
    const cache = lossReason({ ...loss, isElsewhere: prior.turn.backend !== turn.backend })
    // Where it parts is looked for only if that cost something.
    const isChanged = spent.some(({ reason }) => reason === 'messages_changed')
    const difference = isChanged && line?.isSameRoot === true ? this.#locate() : undefined
    const prompt = this.#promptReason(prior, difference)
    const causes = causesOf(spending, { prompt, cache })
    const dearest = causes[0] as CauseView
    const repeats = difference && this.isMain && this.session.repeated({ ...difference, reason: prompt })
    return {
      ...dearest,
      missedTokens: causes.reduce((sum, cause) => sum + cause.missedTokens, 0),
      sentence: sentenceOf(dearest.reason, difference?.view),
      comparedWith: prior.turn.number,
      ...(difference && { difference: difference.view }),
      causes,
      ...(repeats && { repeats }),
    }
  }

  #promptReason({ line }: Prior, difference: Difference | undefined): Reason {
    if (line === undefined) return this.#intent ?? 'model_changed'
    if (!line.isSameRoot) return 'tenant'
    const reason = difference?.reason ?? 'messages_changed'
    const rewritten = this.#facts?.boundary === undefined ? REWRITTEN : REWRITTEN_HEAD
    return this.#intent !== undefined && rewritten.includes(reason) ? this.#intent : reason
  }
}

/** What of a conversation changes when it is rewritten on purpose. */
const REWRITTEN: readonly Reason[] = ['messages_changed', 'reasoning_dropped', 'retokenized']

/** And of one whose head is compiled anew at such a boundary. */
const REWRITTEN_HEAD: readonly Reason[] = [...REWRITTEN, 'system_changed', 'tools_changed', 'template_changed']

function firstSeen(computed: number): MissView | undefined {
  if (computed === 0) return undefined
  const cause = { reason: 'first_seen', missedTokens: computed } as const
  return { ...cause, sentence: sentenceOf('first_seen', undefined), causes: [cause] }
}

function minus(a: Moves, b: Moves): Moves {
  return {
    memoryEvicted: a.memoryEvicted - b.memoryEvicted,
    diskEvicted: a.diskEvicted - b.diskEvicted,
    // What was written at any time may be there.
    diskWritten: a.diskWritten,
  }
}

/** Several messages of the client's may have become one. */
function inClientsPlace(difference: Difference, places: readonly number[]): Difference {
  const { message } = difference.view
  const index = message === undefined ? -1 : places.indexOf(message.index)
  if (message === undefined || index < 0) return difference
  return { ...difference, view: { ...difference.view, message: { ...message, index } } }
}

/** Tokens of what opens the answer. */
function tailTokens({ rendered, tokens, tokenizer }: TurnFacts): number {
  if (rendered === undefined) return 0
  let left = Buffer.byteLength(rendered.text.slice(rendered.tail))
  let count = 0
  while (left > 0 && count < tokens.length) {
    left -= bytesOf(tokens[tokens.length - 1 - count] as number, tokenizer).length
    count++
  }
  return count
}
