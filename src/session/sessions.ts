// Sessions that are logged, as routes see them: made, read, added to, forked, shortened, begun anew, erased. Invariant: the
// log is the only truth; whatever is kept in memory can be read from it again; what is erased is gone from everywhere
// before it is said to be.

import { randomBytes } from 'node:crypto'
import { RefrainError } from '../core/errors.js'
import type { GenerateRequest, Tenant } from '../core/request.js'
import { builtInTools, memoryComplaint } from './built-ins.js'
import { Compacting } from './compacting.js'
import type { Lifecycle } from './compaction/contract.js'
import { contextView } from './context-view.js'
import type {
  CompactAsk,
  CompactionView,
  ContextView,
  ForkAsk,
  NewEvent,
  NewSession,
  ResponseStore,
  SessionEvent,
  SessionPorts,
  SessionState,
  Sessions,
  SharedMemory,
  SourceGrant,
  SourceView,
  StoredResult,
  TurnRunner,
  Warmed,
} from './contract.js'
import { Erasure } from './erasure.js'
import type { SessionLog } from './log/contract.js'
import { checkModel, checkResults, newMessages } from './new-messages.js'
import { type OpenSession, OpenSessions } from './open-session.js'
import { currentPolicy, settledPolicy } from './policy.js'
import { createResponseStore } from './response-store.js'
import { type SeriesRules, type SeriesStep, seriesOf } from './series.js'
import type { SeriesWatch } from './series-watch.js'
import { shareEdits } from './shared-memory.js'
import { storedResult } from './stored-result.js'
import { type TurnDeps, type TurnOptions, Turns } from './turns.js'

export interface SessionOptions extends TurnOptions {
  /** Sessions whose events are in memory. */
  readonly open: number
  /** Forks of one call. */
  readonly forks: number
  /** Of a session's metadata, as JSON in UTF-8. */
  readonly metadataBytes: number
  /** Events that one request appends. */
  readonly appendEvents: number
}

export interface SessionDeps extends Pick<TurnDeps, 'log' | 'ports' | 'sources'> {
  readonly lifecycle: Lifecycle
  /** Config cache.idleMs */
  readonly idleMs: number
  readonly seriesRules: SeriesRules
  /** Tells alarms; absent: nobody does. */
  readonly watch?: Pick<SeriesWatch, 'take'>
  readonly options: SessionOptions
}

export interface LoggedSessions {
  readonly sessions: Sessions
  readonly turns: TurnRunner
}

export function createSessions(deps: SessionDeps): LoggedSessions {
  const { watch } = deps
  const open = new OpenSessions(deps.log, deps.options.open, watch && ((...seen) => watch.take(...seen)))
  const compacting = new Compacting(deps)
  const erasure = new Erasure({ ...deps, open })
  const turns = new Turns({ ...deps, compacting, erasure, sessions: open })
  return { sessions: new AllSessions(deps, { open, compacting, erasure }), turns }
}

/** Kinds of events that may come while a turn runs: the context is the same with them. */
const BESIDE_A_TURN: readonly string[] = ['attempt', 'layer']

interface Parts {
  readonly open: OpenSessions
  readonly compacting: Compacting
  readonly erasure: Erasure
}

class AllSessions implements Sessions {
  readonly responses: ResponseStore
  readonly #log: SessionLog
  readonly #ports: SessionPorts
  readonly #deps: SessionDeps
  readonly #open: OpenSessions
  readonly #erasure: Erasure
  readonly #compacting: Compacting

  constructor(deps: SessionDeps, { open, compacting, erasure }: Parts) {
    this.#compacting = compacting
    this.#deps = deps
    this.#log = deps.log
    this.#ports = deps.ports
    this.#open = open
    this.#erasure = erasure
    this.responses = createResponseStore({
      open: (whose) => open.open(whose),
      create: (tenant, model) => this.create(tenant, { model, tools: [], builtIns: [], events: [] }),
      fork: (tenant, id, at) => this.fork(tenant, id, { at, n: 1 }),
      erase: (tenant, id) => this.erase(tenant, id),
    })
  }

  async create(
    tenant: Tenant,
    { model, system, tools, builtIns, events, metadata }: NewSession,
  ): Promise<SessionState> {
    const { name } = this.#ports.model(model === '' ? undefined : model)
    const { metadataBytes } = this.#deps.options
    if (metadata !== undefined && Buffer.byteLength(metadata) > metadataBytes)
      throw wrong('metadata', `must have at most ${metadataBytes} bytes (sessions.log.metadataBytes)`)
    this.#checkCount(events)
    const own = builtInTools(builtIns)
    const twice = tools.findIndex((tool) => own.some((each) => each.name === tool.name))
    if (twice >= 0) throw wrong(`tools[${twice}].function.name`, "is a tool of the server's own; see 'built_in_tools'")
    const head: NewEvent = {
      body: {
        kind: 'head',
        apply: 'now',
        ...(system !== undefined && { system }),
        tools: [...tools, ...own],
      },
    }
    const record = await this.#log.create(
      { id: newId(), tenant: tenant.name, model: name, ...(metadata !== undefined && { metadata }) },
      [head],
    )
    try {
      if (events.length > 0) await this.append(tenant, record.id, { events })
    } catch (error) {
      // Nobody was told its id.
      await this.#erasure.session({ tenant: tenant.name, session: record.id })
      throw error
    }
    return this.get(tenant, record.id)
  }

  async get(tenant: Tenant, id: string): Promise<SessionState> {
    return this.#stateOf(await this.#opened(tenant, id))
  }

  list(tenant: Tenant, page: { readonly before?: number; readonly limit: number }) {
    return this.#log.sessions(tenant.name, page)
  }

  async append(
    tenant: Tenant,
    id: string,
    { events, expected }: { readonly events: readonly NewEvent[]; readonly expected?: number },
  ): Promise<readonly SessionEvent[]> {
    this.#checkCount(events)
    const open = await this.#opened(tenant, id)
    const isThere = ({ body: { key } }: NewEvent) => key !== undefined && open.fold.keys.has(key)
    const isBeside = ({ body }: NewEvent) => BESIDE_A_TURN.includes(body.kind)
    const hold = events.every((event) => isThere(event) || isBeside(event))
      ? undefined
      : await open.take(undefined, 'brief')
    try {
      const fresh = eachOnce(events.filter((event) => !isThere(event)))
      const there = events.filter(isThere).map(({ body }) => open.fold.keys.get(body.key as string))
      const before = open.events.filter(({ position }) => there.includes(position))
      if (fresh.length === 0) return before
      checkResults(
        fresh.map(({ body }) => body),
        open.fold,
        'events',
      )
      this.#checkMemories(open, fresh)
      const taken = await this.#compacting.takeIn(open, fresh)
      const appended = await open.append(taken, before.length > 0 ? undefined : expected)
      await shareEdits(this.#log, appended)
      return [...before, ...appended]
    } finally {
      hold?.release()
    }
  }

  async events(tenant: Tenant, id: string, page: { readonly from: number; readonly limit: number }) {
    const open = await this.#opened(tenant, id)
    const [first] = open.events
    const at = Math.max(0, page.from - (first?.position ?? 1))
    return open.events.slice(at, at + page.limit)
  }

  async trial(
    tenant: Tenant,
    id: string,
    { model, prompt, logged }: Parameters<Sessions['trial']>[2],
  ): ReturnType<Sessions['trial']> {
    const open = await this.#opened(tenant, id)
    checkModel(model, open, this.#ports)
    const { head, bodies } = newMessages({ prompt, logged, n: 1 }, open.fold)
    checkResults(bodies, open.fold, 'messages')
    const policy = await currentPolicy(open, this.#policyDeps(open))
    const events = head === undefined ? bodies : [head, ...bodies]
    const { messages, tail, tools } = open.compiled.trial(events, policy)
    return { model: open.record.model, prompt: { ...prompt, messages: [...messages, ...tail], tools } }
  }

  async series(tenant: Tenant, id: string): Promise<readonly SeriesStep[]> {
    return seriesOf((await this.#opened(tenant, id)).events, this.#deps.seriesRules)
  }

  async context(tenant: Tenant, id: string, turn?: number): Promise<ContextView> {
    const open = await this.#opened(tenant, id)
    const now = await currentPolicy(open, this.#policyDeps(open))
    const policy = turn === undefined ? now : undefined
    const { revoked } = now
    return contextView(open, { ports: this.#ports, policy, turn, revoked, mayAudit: tenant.admin })
  }

  async fork(tenant: Tenant, id: string, { at, n }: ForkAsk): Promise<readonly SessionState[]> {
    const { forks } = this.#deps.options
    if (n > forks) throw wrong('n', `must be at most ${forks} (sessions.log.forks)`)
    const open = await this.#opened(tenant, id)
    if (at === undefined && open.isHeld)
      throw new RefrainError('conflict', `a turn of '${id}' is running: say with 'at' where to fork`)
    const position = at ?? open.position
    const first = open.events[0]?.position ?? 1
    if (position < first || position > open.position)
      throw wrong('at', `must be a position from ${first} to ${open.position}`)
    const { model, metadata } = open.record
    const parent = { session: id, at: position }
    const made: SessionState[] = []
    for (let index = 0; index < n; index++) {
      const record = await this.#log.create(
        { id: newId(), tenant: tenant.name, model, parent, ...(metadata !== undefined && { metadata }) },
        [{ body: { kind: 'fork', parent: id, at: position, of: n, index } }],
      )
      made.push(await this.get(tenant, record.id))
    }
    return made
  }

  async compact(tenant: Tenant, id: string, { strategy }: CompactAsk, signal: AbortSignal): Promise<CompactionView> {
    const open = await this.#opened(tenant, id)
    const hold = await open.take(signal)
    try {
      const policy = await settledPolicy(open, this.#policyDeps(open))
      const how = { trigger: 'api', policy, signal: hold.signal, ...(strategy !== undefined && { strategy }) } as const
      const isShorter = await this.#compacting.relieve(open, how)
      const event = open.events.findLast(({ body }) => body.kind === 'compaction')
      if (!isShorter || event?.body.kind !== 'compaction')
        throw new RefrainError(
          'compaction_rejected',
          'nothing would become shorter, or nothing was said since the last one; messages that no answer followed stay ' +
            '(a reset, or a fork from before them, leaves them out)',
        )
      const { charsBefore, charsAfter, steps } = event.body
      return { event, charsBefore, charsAfter, steps: steps.map(({ step }) => step) }
    } finally {
      hold.release()
    }
  }

  async reset(tenant: Tenant, id: string, { artifacts }: { readonly artifacts: readonly string[] }) {
    const open = await this.#opened(tenant, id)
    for (const [i, locator] of artifacts.entries()) {
      if ((await storedResult(open, this.#log, locator)) === undefined)
        throw wrong(`artifacts[${i}]`, `names no stored result: '${locator.slice(0, 128)}'`)
    }
    const hold = await open.take()
    try {
      const [event] = await open.append([{ body: { kind: 'reset', artifacts } }])
      return event as SessionEvent
    } finally {
      hold.release()
    }
  }

  async resume(
    tenant: Tenant,
    id: string,
    { requestId, ttlMs, signal }: { readonly requestId: string; readonly ttlMs: number; readonly signal: AbortSignal },
  ): Promise<Warmed> {
    const open = await this.#opened(tenant, id)
    const request: GenerateRequest = {
      id: requestId,
      model: open.record.model,
      tenant,
      session: id,
      logged: { aside: 'behind' },
      prompt: { kind: 'chat', messages: [], tools: [] },
      ...NOTHING_SAMPLED,
      ...(ttlMs > 0 && { pinTtlMs: ttlMs }),
    }
    let warmed: Warmed = { promptTokens: 0, computedTokens: 0 }
    for await (const event of this.#ports.generate(request, signal)) {
      if (event.type === 'finish') warmed = { promptTokens: event.promptTokens, computedTokens: event.cache.computed }
    }
    return warmed
  }

  async erase(tenant: Tenant, id: string): Promise<void> {
    await this.#opened(tenant, id)
    await this.#erasure.session({ tenant: tenant.name, session: id })
  }

  async result(tenant: Tenant, id: string, locator: string): Promise<StoredResult> {
    const open = await this.#opened(tenant, id)
    const found = await storedResult(open, this.#log, locator)
    if (found === undefined) throw new RefrainError('not_found', `no result is stored under '${locator.slice(0, 128)}'`)
    const verdicts = await this.#deps.sources.verdicts(tenant.name, found.sources)
    const tainted = found.sources.find((source) => verdicts[source] === 'revoked')
    if (tainted !== undefined && !tenant.admin)
      throw new RefrainError('source_revoked', `it rests on the source '${tainted}', which was revoked`)
    return found
  }

  sources(tenant: Tenant): Promise<readonly SourceGrant[]> {
    return this.#deps.sources.grants(tenant.name)
  }

  async setSource(tenant: Tenant, source: string, state: SourceGrant['state']): Promise<SourceView> {
    const grant: SourceGrant = { source, state, at: Date.now() }
    const ids = await this.#deps.sources.set(tenant.name, grant)
    const sessions = state === 'revoked' ? await this.#erasure.revoke(tenant.name, source, ids) : []
    return { ...grant, sessions }
  }

  memory(tenant: Tenant): Promise<readonly SharedMemory[]> {
    return this.#log.sharedMemory(tenant.name)
  }

  async setMemory(tenant: Tenant, block: SharedMemory): Promise<SharedMemory> {
    const { name } = this.#ports.model(undefined)
    this.#checkMemory(name, block)
    await this.#log.setSharedMemory(tenant.name, block)
    return block
  }

  async eraseTenant(tenant: Tenant, name: string): Promise<void> {
    if (!tenant.admin && tenant.name !== name)
      throw new RefrainError('forbidden', 'a tenant is erased by itself or by an admin')
    await this.#erasure.tenant(name)
  }

  /** @throws RefrainError `invalid_request`. */
  #checkCount(events: readonly NewEvent[]): void {
    const { appendEvents } = this.#deps.options
    if (events.length > appendEvents)
      throw wrong(
        'events',
        `has ${events.length} events; append at most ${appendEvents} at once (sessions.log.appendEvents)`,
      )
  }

  #opened(tenant: Tenant, id: string): Promise<OpenSession> {
    return this.#open.open({ tenant: tenant.name, session: id })
  }

  #policyDeps({ record }: OpenSession) {
    const { log, sources } = this.#deps
    return { log, sources, retention: this.#ports.model(record.model).retention }
  }

  #stateOf(open: OpenSession): SessionState {
    const { record, position, fold, events, isHeld } = open
    const usedAt = events.at(-1)?.at ?? record.usedAt
    return { ...record, usedAt, position, turns: fold.turns, events: events.length, busy: isHeld }
  }

  /** @throws RefrainError `memory_limit`. */
  #checkMemories(open: OpenSession, events: readonly NewEvent[]): void {
    for (const { body } of events) {
      if (body.kind !== 'memory' || body.value === undefined) continue
      const limitTokens = body.limitTokens ?? open.fold.memory.get(body.label)?.limitTokens
      this.#checkMemory(open.record.model, { value: body.value, ...(limitTokens !== undefined && { limitTokens }) })
    }
  }

  #checkMemory(model: string, { value, limitTokens }: Pick<SharedMemory, 'value' | 'limitTokens'>): void {
    const countTokens = (text: string) => this.#ports.countTokens(model, text)
    const complaint = memoryComplaint(value, limitTokens ?? this.#deps.options.memoryTokens, { countTokens })
    if (complaint !== undefined) throw new RefrainError('memory_limit', complaint, { param: 'value' })
  }
}

/** Of two events of one key the first. */
function eachOnce(events: readonly NewEvent[]): readonly NewEvent[] {
  const keys = new Set<string>()
  return events.filter(({ body: { key } }) => {
    if (key === undefined) return true
    const isFirst = !keys.has(key)
    keys.add(key)
    return isFirst
  })
}

/** A request that computes its prompt and says nothing. */
const NOTHING_SAMPLED = {
  requestClass: 'auxiliary',
  priority: 'auxiliary',
  sampling: {
    ...{ temperature: 0, topP: 1, topK: 0, minP: 0, logitBias: {} },
    ...{ repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0 },
  },
  ...{ maxTokens: 0, stop: [], stopTokenIds: [], ignoreEos: false, n: 1, echo: false },
} as const

export function newId(): string {
  return `ses_${randomBytes(16).toString('hex')}`
}

function wrong(param: string, what: string): RefrainError {
  return new RefrainError('invalid_request', `'${param}' ${what}`, { param })
}
