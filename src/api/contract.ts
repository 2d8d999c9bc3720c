// What the HTTP side needs of the rest, and nothing of how it is made: the service (serve.ts implements it) and the
// options that compose.ts hands over. Invariant: no route sees a block, a chain or a backend's name but in /v1/cache.

import type { Backend } from '../backend/backend.js'
import type { Clock } from '../core/clock.js'
import type { GenerateEvent } from '../core/events.js'
import type { Aside, QuickAsk, QuickResult, QuickTask } from '../core/quick.js'
import type { GenerateRequest, Prompt, Tenant } from '../core/request.js'
import type { Dashboard } from '../dashboard/contract.js'
import type { TurnArchive } from '../explain/contract.js'
import type { MemberPlacement, RouteQuery } from '../router/contract.js'
import type { Sessions } from '../session/contract.js'
import type { MissReason } from './dialect/contract.js'

/** A model as clients see it. */
export interface ServedModel {
  readonly name: string
  readonly contextLength: number
  /** Unix seconds. */
  readonly created: number
  /** Whether it reasons by itself, and what of it a request can set. Absent: not known. */
  readonly reasoning?: { readonly written: boolean; readonly switches: readonly ('thinking' | 'effort')[] }
}

export interface Service {
  /** The first is the default. */
  readonly models: readonly ServedModel[]
  /**
   * The model that `name` or an alias pattern means; undefined: the default.
   * @throws RefrainError `model_not_found`.
   */
  resolve(name: string | undefined): ServedModel
  /**
   * Runs one request; see `Backend.generate` for the events, the signal and leaving early.
   * @throws RefrainError from the loop.
   */
  generate(request: GenerateRequest, signal: AbortSignal): AsyncIterable<GenerateEvent>
  /** Token ids of plain text, or of a chat as it would be rendered for an answer. */
  tokenize(model: ServedModel, input: TokenizeInput): Promise<Int32Array>
  /** Tokens of a piece of plain text, at once. */
  countTokens(model: ServedModel, text: string): number
  detokenize(model: ServedModel, ids: readonly number[]): string
  /** How one token is spelled in the vocabulary. */
  spellingOf(model: ServedModel, id: number): string
  /**
   * Why `request` could not reuse the prefix of the one whose answer had the id `previousId` (with its API's prefix);
   * undefined: it could. Absent: nobody compares.
   */
  explainMiss?(request: GenerateRequest, previousId: string): MissReason | undefined
}

export type TokenizeInput =
  | { readonly kind: 'text'; readonly text: string; readonly bos: 'add' | 'none' }
  | Extract<Prompt, { kind: 'chat' }>

/** The slice of config `limits` that the HTTP side holds. */
export interface ApiLimits {
  readonly bodyBytes: number
  readonly receiveMs: number
  readonly unsentBytes: number
  readonly n: number
  readonly prompts: number
  readonly stopStrings: number
  readonly stopChars: number
  readonly logitBias: number
  readonly jsonDepth: number
  readonly pinMs: number
  readonly quickTasks?: number
  readonly quickChoices?: number
  readonly quickTokens?: number
}

/** Who may come in: keys by tenant; none means that everybody is `default`. */
export interface ApiAccess {
  readonly tenants: readonly (Tenant & { readonly key: string })[]
  /** The address that is listened on: decides the loopback rules. */
  readonly host: string
}

export interface ApiOptions {
  readonly service: Service
  readonly fleet: readonly Backend[]
  readonly limits: ApiLimits
  readonly access: ApiAccess
  readonly clock: Clock
  /** Silence after which a status line, then a comment is sent. */
  readonly keepaliveMs: number
  /** Where a session's key is looked for, in this order; see session-signal.ts. */
  readonly sessionSignals: readonly string[]
  /** Usage in streams that did not ask for it. */
  readonly forceUsage: boolean
  /** server.reasoningField */
  readonly reasoningField?: 'reasoning_content' | 'reasoning'
  readonly version: string
  /** The text of /metrics and its content type. */
  readonly metrics: () => Promise<{ readonly type: string; readonly text: string }>
  /** Turns of sessions and why they missed; absent: nobody takes them down. */
  readonly turns?: TurnArchive
  /** Sessions that are logged; absent: none are. */
  readonly sessions?: Sessions
  /** Answers of the Responses API are kept where `store` is absent. */
  readonly storesResponses?: boolean
  /** The page; absent: there is none. */
  readonly dashboard?: Dashboard | undefined
}

// --- a fleet ---------------------------------------------------------------------------------------------------------

/** A model of a fleet as clients see it. */
export interface FleetModel {
  readonly name: string
  /** The object of /v1/models as the first member that has it writes it. */
  readonly json: string
  readonly contextLength?: number
}

/** A top-level member that a body gets, in place of one of that name where there is one. */
export interface BodySetting {
  readonly key: string
  /** Raw text. */
  readonly json: string
}

/** A body that is sent on as it came but for what is set; nothing of it is parsed for that. */
export interface ForwardBody {
  /** The raw text of a top-level member. */
  member(key: string): string | undefined
  /** `appended`: raw text of a message that is added behind the others. */
  edited(settings: readonly BodySetting[], appended?: string): Buffer
}

/** A request in another dialect than some backends have: how it is asked as a chat, and its answer told in its own. */
export interface Translation {
  readonly body: ForwardBody
  /** What the encoder says to events of the answer. */
  event(event: GenerateEvent): string
  /** Behind the last event: of a stream its ending, else the whole body. */
  end(): string
  /** Paths of fields that have no effect here. */
  readonly ignored: readonly string[]
  /** In-band, in place of what would have come. */
  failure(error: unknown): string
}

/** A request on its way to a backend elsewhere. */
export interface Forward {
  readonly query: RouteQuery
  readonly tenant: Tenant
  readonly method: string
  /** Without the query. */
  readonly path: string
  /** With it, as it was sent. */
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  /** What the client authenticated with. */
  readonly credentials: Readonly<Record<string, string>>
  readonly body: ForwardBody
  readonly stream: boolean
  /** Usage goes to the client although it did not ask for it. */
  readonly forceUsage: boolean
  /** Undefined: there is no other dialect to ask in. @throws RefrainError where the body is refused. */
  translate?(): Translation
  /** Its conversation, where it is a chat that backends render as it is. */
  readonly chat?: ForwardChat
  /** It is a side question: what its answer must be. */
  readonly aside?: Aside
  /** It has side questions in its own body. */
  readonly beside?: ForwardBeside
}

/** How one side question is put. */
export interface AsideWords {
  readonly aside: Aside
  /** In words behind the chat. */
  readonly said?: string
  /** As `task` on the last message. */
  readonly task?: string
  /** The words end the last message, which is the user's, where a template takes no two of them in a row. */
  readonly joined?: boolean
}

/** Side questions about a chat that is on its way to backends elsewhere. */
export interface QuickForward {
  readonly tasks: readonly QuickTask[]
  /** The call as it came, for a backend that is a Refrain. */
  readonly whole: Forward
  /** The chat with one question. */
  chat(question: AsideWords): Forward
  /** The last message is the user's, and a text that words can be put behind. */
  readonly isJoinable: boolean
}

/** What became of them. */
export type QuickForwarded =
  | { readonly kind: 'whole'; readonly answer: Extract<Forwarded, { kind: 'whole' }> }
  | { readonly kind: 'results'; readonly results: readonly QuickResult[]; readonly usage: ForwardUsage }

/** Side questions in a chat's own body. A Refrain gets them as they came. */
export interface ForwardBeside {
  /** They are all of the call: DeepSeek's `task` on the last message. */
  readonly isTask: boolean
  /** What they ask, read once. @throws RefrainError by field. */
  asked(): BesideAsked
}

export interface BesideAsked extends QuickAsk {
  /** What goes on without them. */
  readonly body: ForwardBody
  /** The last message is the user's, and a text that words can be put behind. */
  readonly isJoinable: boolean
  /** The questions' prompt is, as text, that of the request: what holds the one holds the other. */
  readonly isSamePrompt: boolean
  /** The chat with one question, behind `reply` (raw JSON of a message) where there is one. `part` numbers it. */
  chat(question: AsideWords, at: { readonly part: number; readonly reply?: string | undefined }): Forward
  /** For the answer of one call. */
  answer(): BesideAnswer
  /** The whole answer of a call that is a task: a body, or all events. @throws RefrainError where the task failed. */
  taskAnswer(results: readonly QuickResult[], usage: ForwardUsage): string
}

/** An answer on its way to the client that gets the results in it before it ends. */
export interface BesideAnswer {
  /** Of whole events, those that go on at once; the others wait for `rest`. */
  pass(bytes: Buffer): Buffer
  /** What waited, with the results. */
  rest(results: readonly QuickResult[]): Buffer
  /** A body with the results. */
  whole(body: Buffer, results: readonly QuickResult[]): Buffer
  /** What was said, by the events that passed or by `body`: a chat's message as raw JSON. */
  reply(body?: Buffer): string
}

/** Side questions in fleet mode (serve-quick.ts and serve-beside.ts implement it). */
export interface FleetQuick {
  /** `routed` hears where they went. @throws RefrainError where none of them could be asked, the signal's reason. */
  ask(asked: QuickForward, routed: (route: string) => void, signal: AbortSignal): Promise<QuickForwarded>
  /** As `FleetService.forward`, for what has side questions in its own body. */
  beside(asked: Forward & Required<Pick<Forward, 'beside'>>, sink: ForwardSink, signal: AbortSignal): Promise<Forwarded>
}

/** Messages that are looked at one by one, where they are new. */
export interface ForwardChat {
  readonly count: number
  /** Raw JSON. */
  message(index: number): string
  role(index: number): string
  readonly tools: string | undefined
  /** `chat_template_kwargs` */
  readonly values: string | undefined
}

/** Where a stream goes. */
export interface ForwardSink {
  /** Where the request was sent, for a header, and to which member; again when it is sent to another. */
  routed(route: string, member: string): void
  /** The first content is about to come. */
  begin(headers: Readonly<Record<string, string>>): void
  write(bytes: Buffer | string): void
  /** It was sent to a second backend as well: whether that one answers, as far as is known. */
  hedged?(outcome: 'won' | 'lost'): void
  /** How a failure is told in-band from now on, where not as the dialect of the path does. */
  failsWith(failure: (error: unknown) => string): void
}

/** What a backend counted. */
export interface ForwardUsage {
  readonly promptTokens: number
  readonly completionTokens: number
  /** Undefined: it does not say. */
  readonly cachedTokens?: number
}

export type Forwarded = {
  /** What side questions in the request's own body came to. */
  readonly quick?: readonly QuickResult[]
} & (
  | { readonly kind: 'stream'; readonly usage?: ForwardUsage }
  | {
      readonly kind: 'whole'
      readonly status: number
      readonly headers: Readonly<Record<string, string>>
      readonly body: Buffer
      readonly usage?: ForwardUsage
    }
)

/** What the HTTP side needs of a fleet (serve-fleet.ts implements it). */
export interface FleetService {
  models(): readonly FleetModel[]
  /**
   * The name that a model has at its members; undefined: the first.
   * @throws RefrainError `model_not_found`.
   */
  resolve(name: string | undefined): string
  /** Tokens that a byte of a prompt for the model is worth, as observed. */
  tokensPerByte(model: string): number
  /** Where the request would go now; nothing is sent. @throws RefrainError as the router does. */
  place(query: RouteQuery): MemberPlacement
  /**
   * Sends a request to where its prefix is warm. @throws RefrainError, the signal's reason.
   * What was written to the sink before a throw is whole events.
   */
  forward(asked: Forward, sink: ForwardSink, signal: AbortSignal): Promise<Forwarded>
}
