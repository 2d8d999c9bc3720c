// A session's turns: what the next one is compared with, what came back again and again. Invariant: a main turn is compared
// with the main turn before it of the same model, side requests with that too, and they leave it in its place.

import type { Reason, SessionView } from './contract.js'
import type { Difference } from './difference.js'
import { repeatSentence } from './sentences.js'
import { SideSum } from './side.js'
import type { Spellings, TokenLine } from './token-line.js'
import { MARK_BYTES, TURN_BYTES, type Turn } from './turn.js'

/** The last main turn that went to a model. */
export interface Latest {
  readonly line: TokenLine
  turn: Turn
  /** Its answer began with reasoning. */
  reasoned: boolean
  /** When it ended, or began. */
  usedMs: number
  readonly spellings: Spellings
}

interface Repeat {
  readonly reason: Reason
  changed: number
  /** Turns that were compared before the first of them. */
  readonly since: number
  at: number
  isNumber: boolean
  difference: Difference['view']
}

/** Models that a session goes back and forth between. */
const MODELS = 4
/** Places that are counted. */
const REPEATS = 32
/** A clock's digits begin to differ within so many bytes of each other. */
const SAME_PLACE = 32
/** So many changes at one place are no accident. */
const TOLD_FROM = 3

export class Session {
  readonly tenant: string
  readonly key: string
  readonly byContent: boolean
  readonly turns: Turn[] = []
  /** By model. */
  readonly latest = new Map<string, Latest>()
  /** The last main turn, whatever its model. */
  last: Turn | undefined
  count = 0
  promptTokens = 0
  reusedTokens = 0
  missedTokens = 0
  /** Of its turns, all together. */
  ownMarks = 0
  /** What it is accounted for. */
  bytes = 0
  /** Main turns that were compared with one before. */
  compared = 0
  epoch: number | undefined
  /** The next change is made on purpose. */
  intent: 'compaction' | 'revocation' | undefined
  readonly side = new SideSum()
  readonly #repeats = new Map<string, Repeat>()

  constructor(tenant: string, key: string, byContent: boolean) {
    this.tenant = tenant
    this.key = key
    this.byContent = byContent
  }

  setLatest(model: string, latest: Latest): void {
    this.latest.delete(model)
    this.latest.set(model, latest)
    for (const old of this.latest.keys()) {
      if (this.latest.size <= MODELS) return
      this.latest.delete(old)
    }
  }

  /** Counts a difference; what is told once it has come back often enough. */
  repeated(difference: Difference): { changed: number; compared: number; sentence: string } | undefined {
    const { reason, place, at, isNumber, view } = difference
    const known = this.#repeats.get(place)
    const isThere = known !== undefined && Math.abs(known.at - at) <= SAME_PLACE
    const repeat: Repeat = isThere
      ? known
      : { reason, changed: 0, since: this.compared - 1, at, isNumber, difference: view }
    repeat.changed++
    repeat.at = Math.min(repeat.at, at)
    repeat.isNumber &&= isNumber
    repeat.difference = view
    this.#repeats.delete(place)
    this.#repeats.set(place, repeat)
    const [oldest] = this.#repeats.keys()
    if (this.#repeats.size > REPEATS && oldest !== undefined) this.#repeats.delete(oldest)
    return this.#told(repeat)
  }

  #told(repeat: Repeat) {
    const { reason, changed, since, at, isNumber, difference } = repeat
    if (changed < TOLD_FROM) return undefined
    const compared = this.compared - since
    return {
      changed,
      compared,
      sentence: repeatSentence(reason, { changed, compared, byte: at, isNumber, difference }),
    }
  }

  /** About, as it is now. */
  measure(): number {
    let bytes = 1000 + 2 * this.key.length + this.turns.length * TURN_BYTES + this.ownMarks * MARK_BYTES
    for (const { line } of this.latest.values()) bytes += line.bytes + line.chain.hashes.length * 64
    return bytes
  }

  view(): SessionView {
    const repeats = [...this.#repeats.values()].flatMap((repeat) => {
      const told = this.#told(repeat)
      return told === undefined ? [] : [{ reason: repeat.reason, changed: told.changed, sentence: told.sentence }]
    })
    const { tenant, byContent, promptTokens, reusedTokens, missedTokens } = this
    const side = this.side.view()
    return {
      session: this.key,
      ...{ tenant, byContent, promptTokens, reusedTokens, missedTokens },
      turns: this.count,
      at: this.turns.at(-1)?.at ?? 0,
      ...(side && { side }),
      repeats: repeats.sort((a, b) => b.changed - a.changed),
    }
  }
}
