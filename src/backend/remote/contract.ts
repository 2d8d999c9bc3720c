// What a backend elsewhere is to the rest: a door that bytes go out of and come back through, and what it says of itself
// when it is asked. Invariant: a failure of one exchange is told once, to that exchange alone; a status is no failure.

import type { Clock } from '../../core/clock.js'
import type { GenerateEvent } from '../../core/events.js'
import type { Aside } from '../../core/quick.js'
import type { Priority } from '../../core/request.js'
import type { MemberKind } from '../../router/contract.js'
import type { EventsOptions } from '../kv-events/contract.js'

/** One entry of config `backends`, complete. */
export interface RemoteOptions {
  /** Names the member; undefined: its URL without credentials, and its rank. */
  readonly name?: string
  /** Scheme, host and port, and a path in front of `/v1` where there is one. */
  readonly url: string
  /** `auto`: found out by asking. */
  readonly kind: MemberKind | 'auto'
  /** Its host is a name that resolves to many: each address is a backend. */
  readonly resolve?: boolean
  /** Sent as a bearer token. */
  readonly apiKey?: string
  /** Sends on what the client authenticated with, where there is no `apiKey`. */
  readonly forwardAuthorization: boolean
  /** Sent with every request. */
  readonly headers: Readonly<Record<string, string>>
  /** A backend that cannot part its cache by tenant serves several all the same. */
  readonly shared: boolean
  /** The one tenant that such a backend serves; undefined: the first of the config. */
  readonly tenant?: string
  /** It schedules by `priority` (vLLM: --scheduling-policy priority). */
  readonly priority: boolean
  readonly dataParallelRank?: number
  /** Names that clients send -> the model's name there. */
  readonly models: Readonly<Record<string, string>>
  readonly tls?: RemoteTls
  /** Where it publishes what its cache does. */
  readonly events?: EventsOptions
  /** Folder of its model's tokenizer and chat template. */
  readonly tokenizer?: string
  /** Its template renders DeepSeek's `task` on the last message: side questions are asked by special token. */
  readonly tasks?: boolean
}

export interface RemoteTls {
  /** Files in PEM. */
  readonly ca?: string
  readonly cert?: string
  readonly key?: string
  readonly serverName?: string
  /** False: any certificate is taken. */
  readonly verify?: boolean
}

/** What all remotes are bounded by; config `fleet`. */
export interface RemoteLimits {
  readonly connectMs: number
  /** For an answer to a question of our own (health, models). */
  readonly askMs: number
}

/** A model as its server describes it. */
export interface RemoteModel {
  readonly id: string
  readonly contextLength?: number
  /** It is an adapter (LoRA) on another model of the server: the KV of its prompts is its own. */
  readonly isAdapter?: true
  /** The object of /v1/models, as JSON text. */
  readonly json: string
}

/** What a server said of itself. */
export interface RemoteFacts {
  readonly kind: MemberKind
  readonly version?: string
  readonly models: readonly RemoteModel[]
  /** Paths of dialects that it has no route for; requests for them are translated to chat. */
  readonly lacks: readonly string[]
  /** llama-server: how many sequences it holds. */
  readonly slots?: number
}

export interface Outgoing {
  readonly method: string
  /** With the query; stands behind the remote's own path. */
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  readonly body?: Buffer
}

export type IncomingHeaders = Readonly<Record<string, string | string[] | undefined>>

/** Hears of one exchange: `head`, `data`..., then `end` or `fail`; or `fail` alone. Nothing after an abort. */
export interface Incoming {
  head(status: number, headers: IncomingHeaders): void
  data(bytes: Buffer): void
  end(): void
  fail(fault: RemoteFault): void
}

/** Why an exchange came to nothing. */
export class RemoteFault extends Error {
  /** Whether the server may have seen the request: false where no connection came about. */
  readonly sent: boolean
  readonly code: string | undefined

  constructor(message: string, more: { sent: boolean; code?: string | undefined; cause?: unknown }) {
    super(message, { cause: more.cause })
    this.name = 'RemoteFault'
    this.sent = more.sent
    this.code = more.code
  }
}

/** The connections to one server. */
export interface ClientOptions {
  readonly url: URL
  readonly connectMs: number
  readonly tls?: RemoteTls
}

export interface Client {
  /** Starts an exchange; the function ends it. */
  send(out: Outgoing, into: Incoming): () => void
  close(): Promise<void>
}

export interface Remote {
  /** Stable over restarts; the id of its member. */
  readonly id: string
  readonly options: RemoteOptions
  /** Undefined: it was not asked yet, or did not answer. */
  readonly facts: RemoteFacts | undefined
  /** Asks for kind, models and paths. @throws RemoteFault where it does not answer or is not ready. */
  ask(signal?: AbortSignal): Promise<RemoteFacts>
  /** Whether it answers and is ready, by the cheapest question that it takes. @throws RemoteFault */
  ping(signal?: AbortSignal): Promise<void>
  /** Starts an exchange; the function ends it. */
  send(out: Outgoing, into: Incoming): () => void
  /** A small question: the status and the parsed body (undefined where it is no JSON). @throws RemoteFault */
  call(method: string, path: string, more?: CallOptions): Promise<{ readonly status: number; readonly value: unknown }>
  close(): Promise<void>
}

export interface CallOptions {
  /** Sent as JSON. */
  readonly body?: unknown
  readonly signal?: AbortSignal
  /** The answer's text as it is, in place of what it says as JSON. */
  readonly asText?: boolean
  /** Undefined: the limit for questions. */
  readonly timeoutMs?: number
}

// --- an attempt ------------------------------------------------------------------------------------------------------

/** What a backend counted; see usage.ts. */
export interface RemoteUsage {
  /** All of the prompt, what was cached included. */
  readonly promptTokens: number
  readonly completionTokens: number
  /** Undefined: it does not say. */
  readonly cachedTokens?: number
}

/** One attempt at one backend; see exchange.ts. The fleet listens in by what is not read-only. */
export interface ExchangeRequest {
  readonly remote: Remote
  readonly out: Outgoing
  /** The path without the query: says how the answer is to be read. */
  readonly path: string
  /** Whether the answer is one of the dialects': others go through as they come. */
  readonly isRead: boolean
  /** A stream was asked for. */
  readonly stream: boolean
  /** Choices that a stream must complete. */
  readonly choices: number
  /** The client did not ask for usage: it is taken out of the stream. */
  readonly hidesUsage: boolean
  readonly clock: Clock
  readonly signal: AbortSignal
  /** The first content of a stream came. */
  readonly onFirst: (headers: IncomingHeaders) => void
  /** Whole events of a stream. */
  readonly onEvents: (bytes: Buffer) => void
}

/** Who watches an exchange beside the one who asks. */
export interface ExchangeWatch {
  /** The first content of a stream came. */
  begun(): void
  /** `lose` ends it as a fault of `LOST`: its backend is known to be down. */
  losable(lose: (why: string) => void): void
}

/** Code of the fault of an exchange that was given up because its backend went down. */
export const LOST = 'LOST'

export type Ending =
  /** An answer that is no stream: a body, or any status that is no success. */
  | {
      readonly kind: 'whole'
      readonly status: number
      readonly headers: IncomingHeaders
      readonly body: Buffer
      readonly usage?: RemoteUsage
    }
  | { readonly kind: 'stream'; readonly usage?: RemoteUsage }
  | {
      readonly kind: 'fault'
      readonly fault: RemoteFault
      /** Content had come. */
      readonly begun: boolean
      /** Likely an idle connection that was closed just then, and no more than that. */
      readonly stale: boolean
      readonly usage?: RemoteUsage
    }

/** A chat stream read as a backend's events; see chat-events.ts. */
export interface ChatReader {
  /** Events of whole SSE events. */
  add(bytes: Buffer): GenerateEvent[]
  /** What is said once the stream has ended. */
  finish(usage: RemoteUsage | undefined): GenerateEvent[]
}

/** A chat stream that may break off and be continued elsewhere; see broken-answer.ts. */
export interface BrokenChat {
  /** Whole events on their way to the client. */
  keep(bytes: Buffer): void
  /** The answer so far as a message, in JSON, and its tokens; undefined: it cannot be continued. */
  soFar(): { readonly message: string; readonly tokens: number } | undefined
  /** Events of the server that goes on, as the rest of the first one's. */
  continued(bytes: Buffer): Buffer
}

// --- kinds -----------------------------------------------------------------------------------------------------------

/** What a kind looks at of a request that is about to be sent to it. */
export interface Sending {
  /** The path at the remote, without the query. */
  readonly path: string
  readonly options: RemoteOptions
  /** Parts the caches of tenants; undefined: there is but one. */
  readonly salt: string | undefined
  readonly priority: Priority
  readonly session: string | undefined
  /** It stands for a request of another dialect, whose clients are told the prompt's length at once. */
  readonly isTranslated: boolean
  /** Raw JSON of a top-level member of the body, as it was sent. */
  member(key: string): string | undefined
}

/** A top-level member that is set in the body, beside or in place of what was sent; `json` is its raw text. */
export interface Setting {
  readonly key: string
  readonly json: string
}

/** Requests that a new one waits for, whoever sent them. */
export interface WaitingThere {
  readonly requests: number
  /** Those that run are among them. */
  readonly withRunning: boolean
}

export interface WaitingQuestion {
  readonly path: string
  /** Undefined: the answer does not say. */
  read(text: string, options: RemoteOptions): WaitingThere | undefined
}

/** One kind of server: how it is told from others, and what it takes to make a request aware of its cache. */
export interface RemoteKind {
  readonly kind: MemberKind
  /** `owned_by` of its models. */
  readonly owner?: string
  /** A question that only this kind answers with 200, where `owned_by` says nothing. */
  readonly sign?: string
  /** It parts its cache by `cache_salt`. */
  readonly salted: boolean
  settings(sending: Sending): readonly Setting[]
  headers?(sending: Sending): Readonly<Record<string, string>>
  /** What a side question sets; undefined: it cannot hold an answer to that form. */
  aside(asked: Aside, sending: Sending): readonly Setting[] | undefined
  /** How it is asked how many requests wait there; the first that it answers. */
  readonly waiting?: readonly WaitingQuestion[]
  /** What makes it go on where the last message, the assistant's, stops; undefined: it cannot. */
  readonly continuation?: readonly Setting[]
}
