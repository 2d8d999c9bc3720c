// Turns of logged sessions: what is new is appended, the log is compiled and sent along the path of a request, the answer is
// logged before its end is told. Invariant: one turn of a session at a time; what the user said is in the log whatever
// becomes of the turn; a turn that came to nothing can be asked again and nothing is there twice.

import { RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'
import type { GenerateRequest } from '../core/request.js'
import { note } from '../core/signals.js'
import { Rounds } from './built-in-rounds.js'
import { runBuiltIn } from './built-ins.js'
import type { Compacting } from './compacting.js'
import type { SessionPorts, TurnPath, TurnRunner } from './contract.js'
import type { Erasure } from './erasure.js'
import type { SessionLog } from './log/contract.js'
import type { AttemptEvent, EventBody, NewEvent, SessionEvent } from './log/event.js'
import { checkChoice, checkKeyed, checkModel, checkResults, isAskedAgain, newMessages } from './new-messages.js'
import type { OpenSession, OpenSessions } from './open-session.js'
import { currentPolicy, freshlyRevoked, NO_POLICY, settled, settledPolicy } from './policy.js'
import { shareEdits } from './shared-memory.js'
import type { SourcePolicy } from './sources.js'
import { storedResult } from './stored-result.js'
import { toldAgain } from './turn-answer.js'
import { AsideTry, LoggedTry } from './turn-try.js'

export interface TurnOptions {
  /** Rounds in a row of calls that the server runs itself. */
  readonly builtInRounds: number
  /** Tokens of a memory block that says nothing of it. */
  readonly memoryTokens: number
  /** Characters that `read_result` gives at once. */
  readonly readChars: number
}

export interface TurnDeps {
  readonly log: SessionLog
  readonly sessions: OpenSessions
  readonly ports: SessionPorts
  readonly options: TurnOptions
  readonly sources: SourcePolicy
  readonly erasure: Pick<Erasure, 'revokeHeld'>
  readonly compacting: Pick<Compacting, 'takeIn' | 'relieve'>
}

export class Turns implements TurnRunner {
  readonly #deps: TurnDeps

  constructor(deps: TurnDeps) {
    this.#deps = deps
  }

  async *run(asked: GenerateRequest, path: TurnPath, signal: AbortSignal): AsyncGenerator<GenerateEvent, void> {
    const { sessions } = this.#deps
    const open = await sessions.open({ tenant: asked.tenant.name, session: asked.session ?? '' })
    checkModel(asked.model, open, this.#deps.ports)
    if (asked.logged?.aside !== undefined) {
      yield* this.#aside(open, asked, { path, signal })
      return
    }
    const hold = await open.take(signal)
    try {
      keepToKey(open, asked)
      const told = answeredBefore(open, asked.logged?.key)
      if (told !== undefined) yield* told
      else {
        await this.#append(open, asked)
        yield* this.#answer(open, asked, { path, signal: hold.signal })
      }
    } finally {
      hold.release()
    }
  }

  /** What is new goes into the log, all of it or nothing. */
  async #append(open: OpenSession, asked: GenerateRequest): Promise<void> {
    const { expected, key } = asked.logged ?? {}
    const { head, bodies } = newMessages(asked, open.fold)
    const isThere = (key !== undefined && open.fold.keys.has(key)) || isAskedAgain(bodies, open.fold)
    if (!isThere) checkResults(bodies, open.fold, 'messages')
    if (head === undefined) checkChoice(asked, open.compile(open.fold.policy ?? NO_POLICY).callable)
    const fresh = isThere
      ? []
      : await this.#deps.compacting.takeIn(
          open,
          bodies.map((body) => ({ body })),
        )
    const events = [...(head === undefined ? [] : [{ body: head }]), ...fresh]
    const [first, ...rest] = events
    if (first !== undefined) {
      const named = key === undefined || isThere ? first : { ...first, body: { ...first.body, key } }
      await open.append([named, ...rest], isThere ? undefined : expected)
    } else if (expected !== undefined && !isThere && expected !== open.position) {
      throw new RefrainError(
        'conflict',
        `the log of '${open.record.id}' stands at ${open.position}, not at ${expected}`,
        {
          param: 'expected_position',
        },
      )
    }
  }

  async *#answer(
    open: OpenSession,
    asked: GenerateRequest,
    way: { readonly path: TurnPath; readonly signal: AbortSignal },
  ): AsyncGenerator<GenerateEvent, void> {
    const { builtIns } = open.fold
    const rounds = new Rounds(builtIns)
    for (let round = 1; ; round++) {
      const done = yield* this.#tries(open, asked, { ...way, rounds })
      const { calls } = done.answer
      const isOurs = calls.length > 0 && calls.every(({ name }) => builtIns.has(name))
      if (!isOurs || round > this.#deps.options.builtInRounds) break
      yield* rounds.between()
    }
    yield* rounds.last()
  }

  /** Once, and once more where the context was too long and could be shortened. */
  async *#tries(
    open: OpenSession,
    asked: GenerateRequest,
    { path, signal, rounds }: { readonly path: TurnPath; readonly signal: AbortSignal; readonly rounds: Rounds },
  ): AsyncGenerator<GenerateEvent, LoggedTry> {
    const { compacting } = this.#deps
    const policy = await this.#settled(open)
    await compacting.relieve(open, { trigger: open.fold.compactAsked ? 'tool' : 'pressure', policy, signal })
    for (let isLast = false; ; isLast = true) {
      const attempt = new LoggedTry(asked, { open, policy, ...this.#tryDeps(open, signal) })
      checkChoice(asked, attempt.callable)
      let outcome: 'left' | 'done' | 'failed' = 'left'
      try {
        for await (const event of path(attempt.request, signal, attempt)) yield* rounds.pass(event)
        outcome = 'done'
        return attempt
      } catch (error) {
        outcome = 'failed'
        const isRetried =
          !isLast && isOverflow(error) && (await compacting.relieve(open, { trigger: 'overflow', policy, signal }))
        const how = isRetried ? 'retried' : signal.aborted ? 'cancelled' : 'failed'
        await this.#attempted(open, { outcome: how, reason: reasonOf(error), turn: attempt.turn })
        if (!isRetried) throw wayOut(error, open)
      } finally {
        if (outcome === 'left')
          await this.#attempted(open, { outcome: 'cancelled', reason: 'the client left', turn: attempt.turn })
      }
    }
  }

  async *#aside(
    open: OpenSession,
    asked: GenerateRequest,
    { path, signal }: { readonly path: TurnPath; readonly signal: AbortSignal },
  ): AsyncGenerator<GenerateEvent, void> {
    // A side question writes no event: while a turn runs it goes by that turn's policy.
    const policy = open.isHeld ? open.fold.policy : undefined
    const inForce = policy ?? (await currentPolicy(open, this.#policyDeps(open)))
    const { noteBlocks } = this.#tryDeps(open, signal)
    const attempt = new AsideTry(asked, { open, policy: inForce, noteBlocks })
    try {
      yield* path(attempt.request, signal, attempt)
    } catch (error) {
      throw wayOut(error, open)
    }
  }

  #tryDeps(open: OpenSession, signal: AbortSignal) {
    const { log, ports } = this.#deps
    return {
      shown: (prompt: Parameters<SessionPorts['shown']>[1]) => ports.shown(open.record.model, prompt),
      noteBlocks: async (hashes: readonly string[]) => {
        signal.throwIfAborted()
        const fresh = open.newBlocks(hashes)
        if (fresh.length === 0) return
        await log.noteBlocks(
          open.whose,
          fresh.map((each) => Buffer.from(each, 'hex')),
        )
        open.noted(fresh)
      },
      share: (events: readonly SessionEvent[]) => shareEdits(log, events),
      runBuiltIns: (bodies: readonly EventBody[]) => this.#runBuiltIns(open, bodies),
    }
  }

  async #runBuiltIns(open: OpenSession, bodies: readonly EventBody[]): Promise<readonly NewEvent[]> {
    const { log, ports, options } = this.#deps
    const events: NewEvent[] = []
    for (const body of bodies) {
      if (body.kind !== 'tool_call' || !open.fold.builtIns.has(body.name)) continue
      const made = await runBuiltIn(body, {
        result: (locator) => storedResult(open, log, locator),
        memory: (label) => open.fold.memory.get(label),
        countTokens: (text) => ports.countTokens(open.record.model, text),
        memoryTokens: options.memoryTokens,
        readChars: options.readChars,
      })
      events.push(...made)
    }
    return events
  }

  #policyDeps({ record }: OpenSession) {
    const { log, ports, sources } = this.#deps
    return { log, sources, retention: ports.model(record.model).retention }
  }

  /** The policy of now, in the log; what may not be seen any more is erased where it was kept. */
  async #settled(open: OpenSession) {
    const deps = this.#policyDeps(open)
    const now = await currentPolicy(open, deps)
    const fresh = freshlyRevoked(open.fold, now)
    if (fresh.length === 0) return settled(open, now)
    await this.#deps.erasure.revokeHeld(open, fresh)
    // Shared memory may have been emptied for it.
    return settledPolicy(open, deps)
  }

  async #attempted(
    open: OpenSession,
    { turn, ...how }: Omit<AttemptEvent, 'kind' | 'turn'> & { readonly turn: number | undefined },
  ): Promise<void> {
    const body: AttemptEvent = { kind: 'attempt', ...how, ...(turn !== undefined && { turn }) }
    try {
      await open.append([{ body }])
    } catch (error) {
      // The turn's own failure is what the client must hear; a session that is being erased takes nothing any more.
      const text = `an attempt of ${open.record.id} could not be logged: ${(error as Error).message}`
      note.publish({ level: 'warn', text })
    }
  }
}

function isOverflow(error: unknown): boolean {
  return error instanceof RefrainError && error.code === 'context_length_exceeded'
}

/** The error as it came, and where the context is too long, what helps: the log keeps what was said, so the next turn fails too. */
function wayOut(error: unknown, { record: { id } }: OpenSession): unknown {
  if (!(error instanceof RefrainError) || !isOverflow(error)) return error
  const { code, message, param } = error
  const ways =
    `Every turn of session '${id}' will be too long until it is shortened: POST /v1/sessions/${id}/reset begins anew, ` +
    ".../fork with 'at' goes on from before what is too long, .../compact shortens what was answered already."
  return new RefrainError(code, `${message} ${ways}`, { ...(param !== undefined && { param }), cause: error })
}

const REASON_CHARS = 500

function reasonOf(error: unknown): string {
  const code = error instanceof RefrainError ? `${error.code}: ` : ''
  return (code + (error instanceof Error ? error.message : String(error))).slice(0, REASON_CHARS)
}

/** @throws RefrainError `conflict` where the key is there and names another turn. */
function keepToKey({ fold, events }: OpenSession, asked: GenerateRequest): void {
  const { key } = asked.logged ?? {}
  const at = key === undefined ? undefined : fold.keys.get(key)
  if (at === undefined) return
  checkKeyed(
    newMessages(asked, fold).bodies,
    events.find(({ position }) => position === at),
  )
}

/** The answer to a turn of that key; undefined: there is none. */
function answeredBefore(open: OpenSession, key: string | undefined): Iterable<GenerateEvent> | undefined {
  const at = key === undefined ? undefined : open.fold.keys.get(key)
  if (at === undefined || open.fold.usage === undefined || open.fold.usageAt < at) return undefined
  const { events } = open
  const behind = events.slice(events.findIndex(({ position }) => position === at) + 1).map(({ body }) => body)
  const sent = behind.findIndex(({ kind }) => kind === 'turn')
  const next = behind.findIndex((body, i) => i > sent && isFromClient(body))
  const answer = behind.slice(sent, next < 0 ? undefined : next)
  const bodies = answer.filter((body) => body.kind !== 'tool_call' || !open.fold.builtIns.has(body.name))
  const usage = answer.findLast((body) => body.kind === 'usage')
  return usage?.kind === 'usage' ? toldAgain(bodies, usage) : undefined
}

function isFromClient(body: EventBody): boolean {
  return body.kind === 'user' || (body.kind === 'note' && body.tail === 'kept')
}
