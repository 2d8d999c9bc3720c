// A scorer says what one thing about a member costs a request, in milliseconds; the router adds them up by the weights of
// the config. Pure: it sees counts, never a prompt, and changes nothing.

/** What is known of one member for one request, while it is scored. Tokens are in the unit of the request's own estimate. */
export interface Prospect {
  readonly member: string
  readonly request: string
  readonly promptTokens: number
  /** Of the front, what is believed to be there, less what it costs to bring up. */
  readonly savedTokens: number
  /** Prefill, tokens a second. */
  readonly rate: number
  /** To be computed there before this request's own. */
  readonly waitTokens: number
  /** Requests that wait there and are not of this router. */
  readonly reportedQueue: number
  readonly inFlight: number
  /** New tokens a turn of the sessions that live there. */
  readonly residentTokens: number
  /** The session's home, or its parent's where it has none of its own; undefined: it has neither. */
  readonly isHome: boolean | undefined
}

/** Numbers of the config that scorers take. */
export interface ScorerOptions {
  /** router.streamMs */
  readonly streamMs: number
  /** router.affinityMs */
  readonly affinityMs: number
}

export interface Scorer {
  /** Milliseconds, at least 0. */
  score(prospect: Prospect, options: ScorerOptions): number
}
