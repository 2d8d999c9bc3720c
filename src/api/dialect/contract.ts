// A dialect is a wire API: it turns a body into GenerateRequests and events into that API's bytes. Invariant: JSON goes
// no further than here, and a dialect sees neither a block nor a backend's name. Steps 2 and 12 of a request's path.

import type { GenerateEvent } from '../../core/events.js'
import type { GenerateRequest, LoggedAsk, Priority, RequestClass, Tenant } from '../../core/request.js'

/** A body that is a JSON object, beside the very text that was sent. */
export interface RawBody {
  readonly text: string
  readonly value: Readonly<Record<string, unknown>>
}

/** What the envelope says of a request: headers, key and limits. */
export interface Envelope {
  /** Unique; names the request everywhere. */
  readonly id: string
  readonly tenant: Tenant
  readonly session: string | undefined
  /** Present: `session` is one whose log is kept here, and this is a turn of it. */
  readonly logged?: LoggedAsk
  /** The answer is kept under its id. */
  readonly stored?: Storing
  /** The session that a sub-agent was started from. */
  readonly parentSession?: string
  /** Undefined: an ordinary turn. */
  readonly requestClass?: RequestClass
  readonly contextEpoch?: number | 'new'
  readonly priority: Priority
  readonly limits: {
    readonly n: number
    readonly prompts: number
    readonly stopStrings: number
    readonly stopChars: number
    readonly logitBias: number
    readonly jsonDepth: number
    /** Absent, as in tests: the defaults of quick-field.ts. */
    readonly quickTasks?: number
    readonly quickChoices?: number
    readonly quickTokens?: number
  }
  /**
   * Tokens of a plain text, for what is decided by them before a prompt is rendered. Absent: characters tell.
   * @throws RefrainError `model_not_found`.
   */
  countTokens?(model: string | undefined, text: string): number
}

/** What a body says of keeping its answer. */
export interface Storing {
  readonly keeps: boolean
  /** The answer that it goes on from. */
  readonly previousId?: string
}

/** Why a prompt could not reuse what an earlier one left, in the words of Anthropic's cache diagnostics. */
export interface MissReason {
  readonly type:
    | 'model_changed'
    | 'system_changed'
    | 'tools_changed'
    | 'messages_changed'
    | 'previous_message_not_found'
    | 'unavailable'
  /** Tokens of the prompt that would have been reused. */
  readonly missedTokens?: number
}

/** What an encoder repeats in every chunk. */
export interface About {
  readonly id: string
  /** The model's own name. */
  readonly model: string
  /** Unix seconds. */
  readonly created: number
  /** Usage in a stream even where it was not asked for. */
  readonly forceUsage: boolean
  /** What chat completions call reasoning; undefined: `reasoning_content`. */
  readonly reasoningField?: 'reasoning_content' | 'reasoning'
  /**
   * What became of the prefix of the request whose answer had the id `previousId`; undefined: nothing was missed.
   * Absent: nobody compares.
   */
  missReason?(previousId: string): MissReason | undefined
}

/** Server-sent events, one request long. Comments (keepalives) may stand between any two. */
export interface StreamEncoder {
  /** '' where an event shows nothing. */
  event(event: GenerateEvent): string
  /** In-band, after which the stream is closed without `ending`. */
  failure(error: unknown): string
  /** What is sent after a silence, where it is more than a comment: some clients count only events as life. */
  keepalive?(): string
  readonly ending: string
}

/** One body, after `finish`. */
export interface BodyEncoder {
  event(event: GenerateEvent): void
  body(): string
}

export interface Decoded {
  /** One per prompt; their choices are counted through. */
  readonly requests: readonly [GenerateRequest, ...GenerateRequest[]]
  readonly stream: boolean
  /** Paths of fields that were not understood, or that have no effect here. */
  readonly ignored: readonly string[]
  streamEncoder(about: About): StreamEncoder
  bodyEncoder(about: About): BodyEncoder
}

export interface Dialect {
  readonly name: string
  readonly path: string
  /** Prefix of the ids that answers carry. */
  readonly idPrefix: string
  /** JSON Schema of the body. */
  readonly schema: Readonly<Record<string, unknown>>
  /** Where errors are not of OpenAI's shape. */
  readonly errors?: {
    /** The header that this API's clients send with every request: where no path tells whose an error is. */
    readonly header: string
    /** What is no RefrainError is our own fault and says nothing of itself. */
    body(error: unknown, requestId: string): string
    /** JSON Schema of such a body. */
    readonly schema: Readonly<Record<string, unknown>>
  }
  /** Answers of this API are kept under their ids; undefined: this body asks for no such thing. */
  storing?(raw: RawBody): Storing | undefined
  /** @throws RefrainError that names the field. */
  decode(raw: RawBody, envelope: Envelope): Decoded
}

/** What every request takes from its envelope. */
export function envelopeRequest(
  envelope: Envelope,
): Pick<
  GenerateRequest,
  'id' | 'tenant' | 'session' | 'logged' | 'parentSession' | 'requestClass' | 'contextEpoch' | 'priority'
> {
  const { id, tenant, session, logged, parentSession, requestClass, contextEpoch, priority } = envelope
  return {
    id,
    tenant,
    priority,
    ...(session !== undefined && { session }),
    ...(logged !== undefined && { logged }),
    ...(parentSession !== undefined && { parentSession }),
    ...(requestClass !== undefined && { requestClass }),
    ...(contextEpoch !== undefined && { contextEpoch }),
  }
}
