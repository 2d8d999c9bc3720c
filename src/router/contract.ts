// What the parts of a fleet say to each other: members (backends elsewhere), what is known of a request before any of it
// is rendered, and the placement that comes of both. Invariant: hashes and counts only, never a prompt's text.

import type { Priority, RequestClass } from '../core/request.js'

export type MemberKind = 'vllm' | 'sglang' | 'llama-cpp' | 'openai' | 'refrain'

/** How much is known of what a member's cache holds, best first; a model that is often wrong is downgraded. */
export type Knowledge = 'precise' | 'learned' | 'sticky' | 'load'

/** Where an engine block lies, from near to far. */
export type Medium = 'device' | 'host' | 'disk' | 'remote'

export type MemberState = 'up' | 'starting' | 'down' | 'draining'

/** A backend elsewhere, as the router sees it; fleet.ts owns the object and keeps it current. */
export interface Member {
  /** Stable over restarts: the URL without credentials, or the name from the config. */
  readonly id: string
  readonly url: string
  readonly kind: MemberKind
  /** Names as the member says them; a request for one of them may go there. */
  readonly models: readonly string[]
  readonly state: MemberState
  /** 0 to 1: grows again after the member came back (slow start). */
  readonly weight: number
  readonly knowledge: Knowledge
  readonly load: MemberLoad
  readonly rates: MemberRates
}

export interface MemberLoad {
  /** Requests sent there by this router and not over. */
  readonly inFlight: number
  /** Of these, tokens that are still to be prefilled, by prediction. */
  readonly queuedPrefillTokens: number
  /** Of these, streams that have begun. */
  readonly decoding: number
  /** What the member itself reports to be waiting, beyond what this router sent. */
  readonly reportedQueue: number
}

/** Observed, with defaults until then. */
export interface MemberRates {
  readonly prefillTokensPerSecond: number
  /** Restore cost of a token by medium, against computing it: 0 free, 1 as dear as prefill. */
  readonly restoreCost: Readonly<Record<Medium, number>>
}

/**
 * A prompt as a chain of segments (tools, system, each message), before any template: `hashes[i]` covers segments
 * `[0, i]`. Equal hashes: the same canonical text in front.
 */
export interface SegmentChain {
  readonly hashes: readonly string[]
  /** Estimated tokens of segments `[0, i]`. */
  readonly tokens: readonly number[]
  /** How many segments at the front are the head (tools and system). */
  readonly head: number
  /** Names of those of the front that are no messages: `tools`, `system`, `instructions`. */
  readonly parts?: readonly string[]
}

/** Keys of a prompt's full engine blocks of one size (core/block-keys.ts): two words each, low and high. */
export interface PromptBlocks {
  readonly blockTokens: number
  /** Whether the tenant's salt is in them; members whose events do not tell salts have keys without. */
  readonly salted: boolean
  readonly keys: Uint32Array
}

export interface RouteQuery {
  readonly id: string
  /** Of a request that is sent as several at once: which of them. */
  readonly part?: number
  /** It goes on from what the request of its id has had computed, in the very place. */
  readonly isBeside?: boolean
  readonly model: string
  readonly tenant: string
  /** Isolation: hits are shared only inside it. */
  readonly salt: string
  readonly session?: string
  readonly parentSession?: string
  readonly requestClass: RequestClass
  readonly priority: Priority
  readonly segments: SegmentChain
  /** Keys of the tokenized prompt's blocks, in each form that members' events have (precise knowledge). */
  readonly blocks?: readonly PromptBlocks[]
  readonly promptTokens: number
  /** Whether `promptTokens` is an estimate. */
  readonly estimated: boolean
  /** Members that were tried and failed, by id. */
  readonly excluded?: readonly string[]
}

/** Tokens of a prompt's front that a member is believed to hold. */
export interface Overlap {
  readonly tokens: number
  readonly byMedium: Readonly<Partial<Record<Medium, number>>>
  readonly knowledge: Knowledge
}

export interface Score {
  readonly member: string
  /** Estimated milliseconds to the first token there. */
  readonly ttftMs: number
  readonly overlapTokens: number
  /** By scorer's name. */
  readonly parts: Readonly<Record<string, number>>
}

export interface MemberPlacement {
  readonly member: Member
  readonly scores: readonly Score[]
  /** A few words: `session`, `overlap`, `replicated hot head`, `parent's`, `new head`, `only choice`, ... */
  readonly reason: string
  readonly predictedHitTokens: number
  /** How many it was chosen from, where that is known without `scores`. */
  readonly of?: number
}

/** What became of a request, told to the router once. */
export interface RouteOutcome {
  readonly query: RouteQuery
  readonly member: string
  readonly predictedHitTokens: number
  /** From the backend's own usage; undefined: it does not say. */
  readonly cachedTokens?: number
  readonly promptTokens?: number
  readonly completionTokens?: number
  readonly ttftMs?: number
  readonly failed: boolean
}

/** The router's face to the path of a request. Synchronous: a decision never waits. */
export interface FleetRouter {
  /** @throws RefrainError `model_not_found`, `engine_failed` (none is up), `queue_full`. */
  place(query: RouteQuery): MemberPlacement
  /** The request left for `member`; its prefix counts as held there from now on. */
  sent(query: RouteQuery, placement: MemberPlacement): void
  /**
   * A request that is under way at `first` left for another member as well. Whichever gives the first content is its
   * session's home; the other one is settled as failed.
   */
  hedged(query: RouteQuery, placement: MemberPlacement, first: string): void
  /** The first content event came. */
  started(query: RouteQuery, member: string): void
  settled(outcome: RouteOutcome): void
  /** Forgets a session; false: it is unknown. */
  release(tenant: string, session: string): boolean
}

/** A router that knows of caches, and says what it knows. */
export interface CacheAwareRouter extends FleetRouter {
  /** What the router itself knows of a member; a member that it never used is empty and as configured. */
  view(member: Pick<Member, 'id' | 'knowledge' | 'rates'>): MemberView
  /** The member's cache is known to be empty: its server was started anew. */
  emptied(member: string): void
}

/** The router's own books on one member. */
export interface MemberView {
  readonly load: Omit<MemberLoad, 'reportedQueue'>
  readonly prefillTokensPerSecond: number
  /** What decisions go by: no better than the member's own `knowledge`, worse where that was often wrong. */
  readonly knowledge: Knowledge
  /** Mean |predicted - reported hit| as a share of the prompt, of that knowledge; undefined: nothing was reported. */
  readonly predictionError?: number
  /** Active sessions that live there. */
  readonly sessions: number
  /** Tokens that its cache holds, as its own counts have shown; undefined: nothing was seen to go. */
  readonly capacityTokens?: number
}
