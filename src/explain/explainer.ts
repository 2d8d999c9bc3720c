// Explains misses: takes down the turns that serve.ts tells of, and answers routes. Invariant: what a request waits for is a
// comparison of hashes and a copy of what is new; digests, places and reasons are made when the event loop is free, or when
// somebody asks.

import { BLOCK_TOKENS } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import type { GenerateEvent } from '../core/events.js'
import { cacheMoved } from '../core/signals.js'
import type {
  ExplainOptions,
  MissView,
  Reason,
  SessionView,
  TurnArchive,
  TurnConcluded,
  TurnFacts,
  TurnRecorder,
  TurnView,
  Viewer,
} from './contract.js'
import { causesOf, keptTokens, type Moves } from './costs.js'
import { isSame, messageMark } from './fingerprint.js'
import { segmentsOf } from './segments.js'
import type { Session } from './session.js'
import { TenantTable } from './session-table.js'
import { type TakenDeps, TakenTurn } from './taken.js'
import { toolChanges } from './tool-changes.js'
import { type Marks, type Turn, viewOf } from './turn.js'
import { watched } from './watch.js'

export interface ExplainerDeps {
  readonly clock: Clock
  /** Config `cache.idleMs`; 0: blocks don't age. */
  readonly expiresMs?: number
  /** Told of each main turn, once it is known what it reused. */
  concluded?(turn: TurnConcluded): void
}

export interface Explainer extends TurnRecorder, TurnArchive {
  /** Makes now what is left to make. */
  flush(): void
  close(): void
}

export function createExplainer(options: ExplainOptions, deps: ExplainerDeps): Explainer {
  return new Turns(options, deps)
}

/** Turns of a session that run at once; of more, the oldest are compared with less. */
const OPEN_TURNS = 64
/** First blocks that are remembered of all tenants. */
const HEADS = 10_000

class Turns implements Explainer {
  readonly #options: ExplainOptions
  readonly #tables = new Map<string, TenantTable>()
  /** Begun and not concluded, by session. */
  readonly #open = new Map<Session, Set<TakenTurn>>()
  readonly #due = new Set<TakenTurn>()
  #isScheduled = false
  /** First tokens of prompts -> the tenant that had them first. */
  readonly #heads = new Map<string, string>()
  #moves: Moves = { memoryEvicted: 0, diskEvicted: 0, diskWritten: 0 }
  readonly #unsubscribe: () => void
  readonly #taking: TakenDeps

  constructor(options: ExplainOptions, deps: ExplainerDeps) {
    this.#options = options
    this.#taking = {
      keepText: options.keepText,
      expiresMs: deps.expiresMs ?? 0,
      now: () => deps.clock.now(),
      moves: () => this.#moves,
      due: (taken) => this.#later(taken),
      ...(deps.concluded && { concluded: deps.concluded }),
    }
    this.#unsubscribe = cacheMoved.subscribe(({ what, tier, blocks }) => {
      const { memoryEvicted, diskEvicted, diskWritten } = this.#moves
      const isDisk = tier === 'disk'
      this.#moves = {
        memoryEvicted: memoryEvicted + (what === 'evict' && !isDisk ? blocks : 0),
        diskEvicted: diskEvicted + (what === 'evict' && isDisk ? blocks : 0),
        diskWritten: diskWritten + (what === 'write' ? blocks : 0),
      }
    })
  }

  // --- what serve.ts tells ---------------------------------------------------------------------------------------------

  record(facts: TurnFacts): ((events: AsyncIterable<GenerateEvent>) => AsyncIterable<GenerateEvent>) | undefined {
    if (this.#options.turns === 0 || this.#options.sessions === 0) return undefined
    const table = this.#tableOf(facts.request.tenant.name)
    const session = this.#sessionOf(facts, table)
    this.#settleOpen(session)
    const taken = new TakenTurn(facts, session, this.#turnOf(facts, session), this.#taking)
    table.add(session, taken.turn)
    this.#keepOpen(session, taken)
    if (session.byContent && taken.isMain) table.led(session, facts.chain, Math.floor(taken.shared / BLOCK_TOKENS))
    this.#later(taken)
    return (events) => watched(events, taken)
  }

  revoked({ tenant, session }: { readonly tenant: string; readonly session: string }): void {
    const found = this.#tables.get(tenant)?.sessions.get(session)
    if (found === undefined) return
    this.flush()
    found.intent = 'revocation'
    // Token ids spell what was revoked.
    found.latest.clear()
    for (const turn of found.turns) turn.miss = withoutTexts(turn.miss)
  }

  forget({ tenant, session }: { readonly tenant: string; readonly session?: string }): void {
    if (session === undefined) this.#tables.delete(tenant)
    else this.#tables.get(tenant)?.forget(session)
  }

  #tableOf(tenant: string): TenantTable {
    const table = this.#tables.get(tenant) ?? new TenantTable(tenant, this.#options)
    this.#tables.set(tenant, table)
    return table
  }

  #sessionOf({ request, rendered, chain }: TurnFacts, table: TenantTable): Session {
    if (request.session !== undefined) return table.open(request.session)
    const found = table.follow(chain)
    if (found !== undefined) {
      this.#settleOpen(found)
      const marks = found.last?.marks
      const { prompt } = request
      const first = prompt.kind === 'chat' ? prompt.messages.findIndex(({ role }) => role !== 'system') : -1
      const message = prompt.kind === 'chat' ? prompt.messages[first] : undefined
      // A head is shared by many conversations: the first thing that is said tells them apart.
      if (message === undefined || isSame(marks?.messages[first], messageMark(message, rendered, first))) {
        return table.open(found.key, true)
      }
    }
    return table.open(`content-${request.id.slice(0, 16)}`, true)
  }

  #turnOf({ request, model, backend, tokens, stableTokens }: TurnFacts, session: Session): Turn {
    return {
      number: session.count + 1,
      requestId: request.id,
      at: Date.now(),
      requestClass: request.requestClass ?? 'main',
      ...{ model, backend },
      promptTokens: tokens.length,
      status: 'running',
      completionTokens: 0,
      committedTokens: 0,
      ...(stableTokens !== undefined && { stableTokens }),
      usage: undefined,
      marks: undefined,
      ownMarks: 0,
      miss: undefined,
      quickTokens: undefined,
      isElsewhere: session.count === 0 && this.#isElsewhere(request.tenant.name, tokens),
    }
  }

  /** Whether a prompt of another tenant began with the same tokens. */
  #isElsewhere(tenant: string, tokens: Int32Array): boolean {
    if (tokens.length < BLOCK_TOKENS) return false
    const head = tokens.subarray(0, BLOCK_TOKENS).join()
    const owner = this.#heads.get(head) ?? tenant
    this.#heads.delete(head)
    this.#heads.set(head, owner)
    const [oldest] = this.#heads.keys()
    if (this.#heads.size > HEADS && oldest !== undefined) this.#heads.delete(oldest)
    return owner !== tenant
  }

  // --- behind the requests' backs ----------------------------------------------------------------------------------------

  #keepOpen(session: Session, taken: TakenTurn): void {
    const open = this.#open.get(session) ?? new Set()
    this.#open.set(session, open.add(taken))
    const [oldest] = open
    if (open.size > OPEN_TURNS && oldest !== undefined) open.delete(oldest)
  }

  /** The next turn is told by what these are. */
  #settleOpen(session: Session): void {
    for (const taken of this.#open.get(session) ?? []) taken.settle()
  }

  #later(taken: TakenTurn): void {
    this.#due.add(taken)
    if (this.#isScheduled) return
    this.#isScheduled = true
    setImmediate(() => {
      this.#isScheduled = false
      this.flush()
    })
  }

  flush(): void {
    const due = [...this.#due]
    this.#due.clear()
    for (const taken of due) {
      this.#conclude(taken)
      this.#tables.get(taken.session.tenant)?.account(taken.session)
    }
  }

  #conclude(taken: TakenTurn): boolean {
    const isDone = taken.conclude()
    const open = this.#open.get(taken.session)
    if (isDone && open?.delete(taken) === true && open.size === 0) this.#open.delete(taken.session)
    return isDone
  }

  // --- what routes ask -----------------------------------------------------------------------------------------------------

  sessions(viewer: Viewer): readonly SessionView[] {
    this.flush()
    const tables = viewer.admin ? [...this.#tables.values()] : [this.#tables.get(viewer.name)]
    const all = tables.flatMap((table) => [...(table?.sessions.values() ?? [])])
    return all.map((session) => session.view()).sort((a, b) => b.at - a.at)
  }

  session(viewer: Viewer, key: string, tenant?: string): SessionView | undefined {
    return this.#find(viewer, key, tenant)?.view()
  }

  turns(viewer: Viewer, key: string, tenant?: string): readonly TurnView[] | undefined {
    return this.#find(viewer, key, tenant)?.turns.map((turn) => viewOf(turn, viewer))
  }

  *prefixes(viewer: Viewer) {
    const tables = viewer.admin ? [...this.#tables.values()] : [this.#tables.get(viewer.name)]
    for (const { key, tenant, latest } of tables.flatMap((table) => [...(table?.sessions.values() ?? [])])) {
      for (const { line } of latest.values()) yield { session: key, tenant, chain: line.chain }
    }
  }

  turn(viewer: Viewer, key: string, which: { readonly turn: number; readonly tenant?: string }) {
    const session = this.#find(viewer, key, which.tenant)
    const turn = session?.turns.find(({ number }) => number === which.turn)
    return session && turn && { turn: viewOf(turn, viewer), segments: segmentsOf(turn, session) }
  }

  #find(viewer: Viewer, key: string, tenant: string | undefined): Session | undefined {
    this.flush()
    const own = this.#tables.get(viewer.name)?.sessions.get(key)
    if (!viewer.admin) return tenant === undefined || tenant === viewer.name ? own : undefined
    if (tenant !== undefined) return this.#tables.get(tenant)?.sessions.get(key)
    return own ?? [...this.#tables.values()].map(({ sessions }) => sessions.get(key)).find((each) => each !== undefined)
  }

  compare(tenant: string, { id, previousId }: { readonly id: string; readonly previousId: string }) {
    const table = this.#tables.get(tenant)
    const previous = table?.find(previousId)
    const current = table?.find(id)
    if (previous === undefined) return 'previous_not_found'
    if (current === undefined) return 'unknown'
    this.flush()
    const { miss, usage } = current.turn
    if (usage === undefined) return 'unknown'
    const isCompared =
      current.session === previous.session && (miss === undefined || miss.comparedWith === previous.turn.number)
    if (isCompared && miss === undefined) return 'none'
    if (isCompared && miss !== undefined) return { reason: miss.reason, missedTokens: miss.missedTokens }
    return this.#compareMarks(previous.turn, current.turn)
  }

  /** By digests alone: the tokens of that turn are long gone. */
  #compareMarks(previous: Turn, current: Turn) {
    const { usage, promptTokens } = current
    if (usage === undefined || previous.marks === undefined || current.marks === undefined) return 'unknown'
    const kept = keptTokens({ ...previous, lineTokens: undefined })
    const reason = previous.model === current.model ? changeOf(previous.marks, current.marks) : 'model_changed'
    const spending = { kept, promptTokens, shared: reason === undefined ? kept : 0, usage }
    const [cause] = causesOf(spending, { prompt: reason ?? 'evicted', cache: 'evicted' })
    return cause ?? 'none'
  }

  close(): void {
    this.#unsubscribe()
  }
}

function withoutTexts(miss: MissView | undefined): MissView | undefined {
  if (miss?.difference?.before === undefined) return miss
  const { before: _, after: __, ...difference } = miss.difference
  return { ...miss, difference }
}

/** The first that differs, in the order of most templates; undefined: nothing. */
function changeOf(before: Marks, after: Marks): Reason | undefined {
  if (before.template !== after.template) return 'template_changed'
  if (toolChanges(before.tools, after.tools).length > 0) return 'tools_changed'
  const [old, now] = [before.messages, after.messages]
  const at = old.findIndex((mark, i) => !isSame(mark, now[i]))
  if (at < 0) return undefined
  return old[at]?.role === 'system' && old.slice(0, at).every(({ role }) => role === 'system')
    ? 'system_changed'
    : 'messages_changed'
}
