// Sessions and where they live: by the key that a client sends, or by their prompt where it sends none. Invariant: bounded
// by count and age; a session that is forgotten costs hits, never an answer. Members' shares of what active sessions ask
// of them are kept as running sums, so that a decision looks at no session but its own.

export interface SessionTableOptions {
  readonly max: number
  readonly ttlMs: number
  /** A session counts as active so long after its last turn. */
  readonly activeMs: number
}

export interface Session {
  readonly key: string
  /** Id of the member that it lives on. */
  member: string
  scope: string
  /** Names the head of its prompts, for all sessions that share it. */
  head: string
  /** Hash of its last prompt as a whole. */
  tail: string
  /** Of its last prompt. */
  tokens: number
  usedAt: number
  /** `usedAt` when it got its place among the others. */
  placedAt: number
  inFlight: number
  turns: number
  /** New tokens of a turn, smoothed. */
  step: number
  /** Of the time between its turns, how much it waits for first content: 1 is a client that asks again at once. */
  share: number
  sentAt: number
  /** From the last turn's sending to its first content. */
  waitedMs: number | undefined
  /** Tokens that it counts for at its member, while it is active. */
  demand: number
}

/** What active sessions ask of one member. */
export interface Residents {
  sessions: number
  /** Sum of their demands: tokens that a newcomer must expect in front of it, turn by turn. */
  demand: number
  /** How many of them have each head. */
  readonly heads: Map<string, number>
}

/** Between two looks at who is still active. */
const SWEEP_MS = 500
const SWEEP_STEPS = 1024
/** A bound that is passed is met again with room for one in so many. */
const BATCHES = 16
/** Sessions that are looked at for each that is to go. */
const STEPS = 8
const BATCH = 64
/** New tokens of a turn, before any was seen. */
const FIRST_STEP_TOKENS = 330

export class SessionTable {
  readonly #options: SessionTableOptions
  /** In the order of use as it was when each was last looked at: to keep it all along costs more than a decision. */
  readonly #sessions = new Map<string, Session>()
  /** The same. */
  readonly #active = new Set<Session>()
  readonly #residents = new Map<string, Residents>()
  /** Told of each session that is dropped. */
  readonly #dropped: (session: Session) => void

  /** New tokens of anybody's turn: what a new session is expected to ask. */
  #typicalStep = FIRST_STEP_TOKENS
  #sweptAt = 0
  #boundAt = 0

  constructor(options: SessionTableOptions, dropped: (session: Session) => void = () => undefined) {
    this.#options = options
    this.#dropped = dropped
  }

  get size(): number {
    return this.#sessions.size
  }

  all(): IterableIterator<Session> {
    return this.#sessions.values()
  }

  get(key: string, now: number): Session | undefined {
    const session = this.#sessions.get(key)
    if (session === undefined) return undefined
    if (session.inFlight > 0 || now - session.usedAt <= this.#options.ttlMs) return session
    this.remove(key)
    return undefined
  }

  /** Whether `session` is still the one of its key. */
  has(session: Session): boolean {
    return this.#sessions.get(session.key) === session
  }

  add(fields: Pick<Session, 'key' | 'member' | 'scope' | 'head' | 'tail' | 'tokens' | 'usedAt'>): Session {
    this.remove(fields.key)
    const { key, member, scope, head, tail, tokens, usedAt } = fields
    const session: Session = {
      key,
      member,
      scope,
      head,
      tail,
      tokens,
      usedAt,
      placedAt: usedAt,
      inFlight: 0,
      turns: 0,
      step: this.#typicalStep,
      share: 1,
      sentAt: fields.usedAt,
      waitedMs: undefined,
      demand: 0,
    }
    this.#sessions.set(session.key, session)
    this.#bound(fields.usedAt)
    return session
  }

  remove(key: string): boolean {
    const session = this.#sessions.get(key)
    if (session === undefined) return false
    this.#sessions.delete(key)
    this.#rest(session)
    this.#dropped(session)
    return true
  }

  /** A turn of `session` goes to `member`, which is its home from now on. */
  turn(
    session: Session,
    member: string,
    { now, tail, tokens, head }: { now: number } & Pick<Session, 'tail' | 'tokens' | 'head'>,
  ): void {
    // A turn that is sent once more, to another member, teaches nothing.
    if (session.turns > 0 && tail !== session.tail) {
      const interval = now - session.sentAt
      const waited = session.waitedMs ?? interval
      const share = interval > 0 ? Math.min(1, waited / interval) : 1
      session.share += (share - session.share) / 2
      // What it grew by; a prompt that is computed anew elsewhere is no habit.
      const grown = Math.max(1, tokens - session.tokens)
      session.step = session.turns === 1 ? grown : session.step + (grown - session.step) / 4
      this.#typicalStep += (grown - this.#typicalStep) / 32
    }
    if (this.#active.has(session)) this.#part(session)
    else this.#active.add(session)
    session.turns++
    session.inFlight++
    session.usedAt = now
    session.sentAt = now
    session.waitedMs = undefined
    session.member = member
    session.head = head
    session.tail = tail
    session.tokens = tokens
    session.demand = session.step * session.share
    this.#join(session)
  }

  /** A turn that is under way goes to a second member as well; each of the two is told to be over. */
  beside(session: Session): void {
    session.inFlight++
  }

  /** The second one answers: it is the home from now on. */
  moved(session: Session, member: string): void {
    const isActive = this.#active.has(session)
    if (isActive) this.#part(session)
    session.member = member
    if (isActive) this.#join(session)
  }

  over(session: Session, now: number): void {
    session.inFlight = Math.max(0, session.inFlight - 1)
    session.usedAt = now
  }

  /** Of `member`; call `sweep` before a round of it. */
  residents(member: string): Residents {
    return this.#residentsOf(member)
  }

  #residentsOf(member: string): Residents {
    let residents = this.#residents.get(member)
    if (residents === undefined) {
      residents = { sessions: 0, demand: 0, heads: new Map() }
      this.#residents.set(member, residents)
    }
    return residents
  }

  #rest(session: Session): void {
    if (this.#active.delete(session)) this.#part(session)
  }

  #join({ member, demand, head }: Session): void {
    const residents = this.#residentsOf(member)
    residents.sessions++
    residents.demand += demand
    residents.heads.set(head, (residents.heads.get(head) ?? 0) + 1)
  }

  /** It counts no longer at its member. */
  #part(session: Session): void {
    const residents = this.#residentsOf(session.member)
    residents.sessions--
    residents.demand = residents.sessions === 0 ? 0 : residents.demand - session.demand
    const others = (residents.heads.get(session.head) ?? 1) - 1
    if (others > 0) residents.heads.set(session.head, others)
    else residents.heads.delete(session.head)
  }

  /** Puts sessions to rest that had no turn for long, of as many as are looked at in one go: now and then. */
  sweep(now: number): void {
    if (now - this.#sweptAt < SWEEP_MS) return
    this.#sweptAt = now
    let steps = Math.min(this.#active.size, SWEEP_STEPS)
    for (const session of this.#active) {
      if (steps-- <= 0) return
      if (session.inFlight === 0 && now - session.usedAt > this.#options.activeMs) this.#rest(session)
      else {
        // It is looked at again after the others.
        this.#active.delete(session)
        this.#active.add(session)
      }
    }
  }

  /** Lets go of the oldest in batches: the first of a map that changes takes a search. */
  #bound(now: number): void {
    const { max, ttlMs } = this.#options
    if (this.#sessions.size <= max && now - this.#boundAt < ttlMs / BATCHES) return
    this.#boundAt = now
    const target = this.#sessions.size <= max ? max : Math.floor(max * (1 - 1 / BATCHES))
    let steps = STEPS * Math.max(BATCH, this.#sessions.size - target)
    for (const session of this.#sessions.values()) {
      if (steps-- <= 0) return
      if (session.usedAt > session.placedAt && now - session.usedAt <= ttlMs) {
        session.placedAt = session.usedAt
        this.#sessions.delete(session.key)
        this.#sessions.set(session.key, session)
      } else {
        if (this.#sessions.size <= target && now - session.usedAt <= ttlMs) return
        if (session.inFlight === 0 || this.#sessions.size > 2 * max) this.remove(session.key)
      }
    }
  }
}
