// One session: its turns, its events, what is made of it. Invariant: nothing is kept here but its id; the log on the server
// is the truth. A conflict is told with the position at which the log stands.

import {
  type Delta,
  type Reply,
  randomKey,
  streamedTurn,
  type TurnAsk,
  type TurnCallOptions,
  type TurnOptions,
  wholeTurn,
} from './chat.js'
import { RefrainError } from './error.js'
import type { Call, CallOptions, Transport } from './transport.js'
import type {
  Compaction,
  ExplainedTurn,
  Message,
  NewEvent,
  QuickAnswer,
  QuickTask,
  Resumed,
  SeriesStep,
  SessionContext,
  SessionEvent,
  SessionState,
  StoredResult,
  Turn,
} from './types.js'

interface List<T> {
  readonly data: readonly T[]
  readonly has_more?: boolean
}

/** Events of one page. */
const PAGE = 200
/** Summaries are written meanwhile, prompts computed. */
const SLOW_MS = 600_000

export class Session {
  readonly id: string
  readonly #transport: Transport
  readonly #path: string

  constructor(transport: Transport, id: string) {
    this.id = id
    this.#transport = transport
    this.#path = `/v1/sessions/${encodeURIComponent(id)}`
  }

  get(options: CallOptions = {}): Promise<SessionState> {
    return this.#json({ ...options, method: 'GET', path: '', again: 'twice' })
  }

  /** Erases it, once and for all. @throws RefrainError `conflict` while it has forks. */
  async delete(options: CallOptions = {}): Promise<void> {
    await this.#json({ ...options, method: 'DELETE', path: '', again: 'twice' })
  }

  /**
   * All events or none; those without a key get one, so that they may be sent again.
   * @throws RefrainError `conflict` where the log does not stand at `expected_position`, or a turn is running.
   */
  async append(
    events: readonly NewEvent[],
    { expected_position, ...options }: CallOptions & { readonly expected_position?: number } = {},
  ): Promise<readonly SessionEvent[]> {
    const body = {
      events: events.map((event) => ({ key: randomKey(), ...event })),
      ...(expected_position !== undefined && { expected_position }),
    }
    const { data } = await this.#json<List<SessionEvent>>({
      ...{ ...options, method: 'POST', path: '/events', again: 'twice', body },
    })
    return data
  }

  /** From a position on, page by page. */
  async *events({
    from = 1,
    page = PAGE,
    ...options
  }: CallOptions & { readonly from?: number; readonly page?: number } = {}): AsyncGenerator<SessionEvent, void> {
    for (let at = from; ; ) {
      const query = { from: at, limit: page }
      const { data, has_more } = await this.#json<List<SessionEvent>>({
        ...{ ...options, method: 'GET', path: '/events', again: 'twice', query },
      })
      yield* data
      const last = data.at(-1)
      if (has_more !== true || last === undefined) return
      at = last.position + 1
    }
  }

  /** A turn, whole. No messages: the model goes on from what is logged. */
  chat(
    messages: string | readonly Message[] = [],
    options: TurnOptions = {},
    call: TurnCallOptions = {},
  ): Promise<Reply> {
    const ask: TurnAsk = { session: this.id, messages, options, call }
    return this.#placed(() => wholeTurn(this.#transport, ask))
  }

  /** A turn, in pieces; the last has the whole. Leaving the loop ends the turn. */
  async *stream(
    messages: string | readonly Message[] = [],
    options: TurnOptions = {},
    call: TurnCallOptions = {},
  ): AsyncGenerator<Delta, void> {
    const pieces = streamedTurn(this.#transport, { session: this.id, messages, options, call })
    try {
      for (;;) {
        const { value, done } = await this.#placed(() => pieces.next())
        if (done) return
        yield value
      }
    } finally {
      await pieces.return()
    }
  }

  /** What the model saw at a turn, byte for byte; without one, what it would see next. */
  context(turn?: number, options: CallOptions = {}): Promise<SessionContext> {
    return this.#json({ ...options, method: 'GET', path: '/context', again: 'twice', query: { at: turn } })
  }

  async series(options: CallOptions = {}): Promise<readonly SeriesStep[]> {
    const { data } = await this.#json<List<SeriesStep>>({
      ...{ ...options, method: 'GET', path: '/series', again: 'twice' },
    })
    return data
  }

  /** `n` sessions that share all up to the event at position `at`; without it, up to the last. */
  async fork({
    n = 1,
    at,
    ...options
  }: CallOptions & { readonly n?: number; readonly at?: number } = {}): Promise<readonly Session[]> {
    const { data } = await this.#json<List<SessionState>>({
      ...{ ...options, method: 'POST', path: '/fork', again: 'refused' },
      body: { n, ...(at !== undefined && { at }) },
    })
    return data.map(({ id }) => new Session(this.#transport, id))
  }

  /** @throws RefrainError `compaction_rejected` where nothing would be shorter. */
  compact({ strategy, ...options }: CallOptions & { readonly strategy?: string } = {}): Promise<Compaction> {
    const body = { ...(strategy !== undefined && { strategy }) }
    const call = { timeoutMs: SLOW_MS, ...options, method: 'POST', path: '/compact', again: 'refused', body } as const
    return this.#json(call)
  }

  /** The body begins anew; memory blocks stay, and of stored results those whose locators are named. */
  reset({
    artifacts = [],
    ...options
  }: CallOptions & { readonly artifacts?: readonly string[] } = {}): Promise<SessionEvent> {
    return this.#json({ ...options, method: 'POST', path: '/reset', again: 'refused', body: { artifacts } })
  }

  /** Has the KV of its context ready for the next turn. */
  resume(options: CallOptions = {}): Promise<Resumed> {
    return this.#json({ timeoutMs: SLOW_MS, ...options, method: 'POST', path: '/resume', again: 'twice', body: {} })
  }

  /** A state of the harness's sandbox, and what it rests on. */
  layer(
    layer: { readonly id: string; readonly parent?: string; readonly sources?: readonly string[] },
    options: CallOptions = {},
  ): Promise<SessionEvent> {
    return this.#json({ ...options, method: 'POST', path: '/layers', again: 'refused', body: layer })
  }

  /** Of a result that was too long to be shown whole. */
  result(
    locator: string,
    { offset, length, ...options }: CallOptions & { readonly offset?: number; readonly length?: number } = {},
  ): Promise<StoredResult> {
    const path = `/results/${encodeURIComponent(locator)}`
    return this.#json({ ...options, method: 'GET', path, again: 'twice', query: { offset, length } })
  }

  /** Side questions about it; none of it is logged. */
  quick(
    tasks: readonly QuickTask[],
    { messages = [], ...options }: CallOptions & { readonly messages?: readonly Message[] } = {},
  ): Promise<QuickAnswer> {
    const body = { session: this.id, messages, tasks }
    const call = { timeoutMs: SLOW_MS, ...options, method: 'POST', path: '/v1/quick', again: 'twice', body } as const
    return this.#placed(() => this.#transport.json(call))
  }

  /** Tokens by where they came from, and why what was missed was missed. @throws RefrainError `not_found` before the first. */
  async turns(options: CallOptions = {}): Promise<readonly Turn[]> {
    return (await this.#json<List<Turn>>({ ...options, method: 'GET', path: '/turns', again: 'twice' })).data
  }

  turn(n: number, options: CallOptions = {}): Promise<ExplainedTurn> {
    return this.#json({ ...options, method: 'GET', path: `/turns/${n}/explain`, again: 'twice' })
  }

  #json<T>(call: Call): Promise<T> {
    return this.#placed(() => this.#transport.json<T>({ ...call, path: this.#path + call.path }))
  }

  async #placed<T>(ask: () => Promise<T>): Promise<T> {
    try {
      return await ask()
    } catch (error) {
      if (!(error instanceof RefrainError) || error.code !== 'conflict') throw error
      throw await this.#withPosition(error)
    }
  }

  async #withPosition(error: RefrainError): Promise<RefrainError> {
    const call = { method: 'GET', path: this.#path, again: 'twice' } as const
    const state = await this.#transport.json<SessionState>(call).catch(() => undefined)
    if (state === undefined) return error
    const { status, code, message, param, retryAfterMs, isRetryable, requestId } = error
    return new RefrainError({
      ...{ status, code, message, cause: error, position: state.position },
      ...(param !== undefined && { param }),
      ...(retryAfterMs !== undefined && { retryAfterMs }),
      ...(isRetryable !== undefined && { isRetryable }),
      ...(requestId !== undefined && { requestId }),
    })
  }
}
