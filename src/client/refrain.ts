// A Refrain server, as a client sees it. Invariant: it holds no state but where the server is and how it is asked.

import { Session } from './session.js'
import { type CallOptions, Transport, type TransportOptions } from './transport.js'
import type {
  ExplainedSession,
  ExplainedTurn,
  MemoryBlock,
  Message,
  NewSession,
  QuickAnswer,
  QuickTask,
  SessionRecord,
  SessionState,
  Source,
  ToolDefinition,
  Turn,
} from './types.js'

interface List<T> {
  readonly data: readonly T[]
  readonly has_more?: boolean
}

export type RefrainOptions = TransportOptions

const PAGE = 100
const QUICK_MS = 600_000

export class Refrain {
  readonly sessions: Sessions
  readonly sources: Sources
  readonly memory: Memory
  readonly explain: Explain
  readonly #transport: Transport

  /** `baseUrl`: with or without `/v1`. */
  constructor(options: RefrainOptions) {
    const transport = new Transport(options)
    this.#transport = transport
    this.sessions = new Sessions(transport)
    this.sources = new Sources(transport)
    this.memory = new Memory(transport)
    this.explain = new Explain(transport)
  }

  /** Side questions about a chat that is sent along; of a session's, see `Session.quick`. */
  quick(
    ask: {
      readonly model?: string
      readonly messages: readonly Message[]
      readonly tools?: readonly ToolDefinition[]
      readonly tasks: readonly QuickTask[]
    },
    options: CallOptions = {},
  ): Promise<QuickAnswer> {
    const call = { timeoutMs: QUICK_MS, ...options, method: 'POST', path: '/v1/quick', again: 'twice', body: ask }
    return this.#transport.json({ ...call, method: 'POST', again: 'twice' })
  }
}

class Sessions {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  async create(session: NewSession = {}, options: CallOptions = {}): Promise<Session> {
    const call = { ...options, method: 'POST', path: '/v1/sessions', again: 'refused', body: session } as const
    return this.open((await this.#transport.json<SessionState>(call)).id)
  }

  /** One that is there; nothing is asked. */
  open(id: string): Session {
    return new Session(this.#transport, id)
  }

  /** @throws RefrainError `not_found`, `erased`. */
  get(id: string, options: CallOptions = {}): Promise<SessionState> {
    return this.open(id).get(options)
  }

  delete(id: string, options: CallOptions = {}): Promise<void> {
    return this.open(id).delete(options)
  }

  /** The latest first, page by page. */
  async *list({
    page = PAGE,
    ...options
  }: CallOptions & { readonly page?: number } = {}): AsyncGenerator<SessionRecord, void> {
    for (let before: number | undefined; ; ) {
      const query = { limit: page, before }
      const call = { ...options, method: 'GET', path: '/v1/sessions', again: 'twice', query } as const
      const { data, has_more } = await this.#transport.json<List<SessionRecord>>(call)
      yield* data
      const last = data.at(-1)
      if (has_more !== true || last === undefined) return
      before = last.created_ms
    }
  }
}

/** What tool results and uploads come from. */
class Sources {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  get(id: string, options: CallOptions = {}): Promise<Source> {
    return this.#transport.json({ ...options, method: 'GET', path: pathOf('sources', id), again: 'twice' })
  }

  grant(id: string, options: CallOptions = {}): Promise<Source> {
    return this.#put(id, 'granted', options)
  }

  /** What rests on it is dropped from every session, and erased. The answer names layers to roll back to. */
  revoke(id: string, options: CallOptions = {}): Promise<Source> {
    return this.#put(id, 'revoked', options)
  }

  #put(id: string, state: Source['state'], options: CallOptions): Promise<Source> {
    const call = { ...options, method: 'PUT', path: pathOf('sources', id), again: 'twice', body: { state } } as const
    return this.#transport.json(call)
  }
}

/** Memory blocks that sessions share. */
class Memory {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  async list(options: CallOptions = {}): Promise<readonly MemoryBlock[]> {
    const call = { ...options, method: 'GET', path: '/v1/memory', again: 'twice' } as const
    return (await this.#transport.json<List<MemoryBlock>>(call)).data
  }

  get(id: string, options: CallOptions = {}): Promise<MemoryBlock> {
    return this.#transport.json({ ...options, method: 'GET', path: pathOf('memory', id), again: 'twice' })
  }

  /** @throws RefrainError `memory_limit`. */
  put({ id, ...block }: MemoryBlock, options: CallOptions = {}): Promise<MemoryBlock> {
    return this.#transport.json({ ...options, method: 'PUT', path: pathOf('memory', id), again: 'twice', body: block })
  }
}

/** Why turns missed the cache; of a logged session also by `Session.turns`. */
class Explain {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  async sessions(options: CallOptions = {}): Promise<readonly ExplainedSession[]> {
    const call = { ...options, method: 'GET', path: '/v1/explain/sessions', again: 'twice' } as const
    return (await this.#transport.json<List<ExplainedSession>>(call)).data
  }

  /** `session`: its key, whichever signal gave it. */
  turns(session: string, options: CallOptions = {}): Promise<readonly Turn[]> {
    return new Session(this.#transport, session).turns(options)
  }

  turn(session: string, n: number, options: CallOptions = {}): Promise<ExplainedTurn> {
    return new Session(this.#transport, session).turn(n, options)
  }
}

function pathOf(what: string, id: string): string {
  return `/v1/${what}/${encodeURIComponent(id)}`
}
