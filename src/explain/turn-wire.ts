// Turns on their way from the router process that had them to the one that keeps those of all. Of a prompt's chain goes
// along what is new since the turn that it goes on from; the other end puts the rest in front. Invariant: both ends
// remember the same chains, since both do the same with the same batches in the same order; whoever loses a batch says so,
// and tells whole chains from there on.

import type { SegmentChain } from '../router/contract.js'
import type { SentTurn, SettledTurn, TurnEars } from './turn-ears.js'

/** As structures can be cloned. */
export type ToldTurn =
  | readonly [what: 'sent', turn: Omit<SentTurn, 'segments'>, chain: ToldChain]
  | readonly [what: 'settled', turn: SettledTurn]

interface ToldChain extends SegmentChain {
  /** The last hash of the chain that it goes on from; `hashes` and `tokens` are what stands behind. Undefined: they are all. */
  readonly base?: string
  /** Tokens of that chain, as this one estimates them. */
  readonly baseTokens?: number
}

/** Chains that are remembered; prompts that go on from others are told whole. */
const CHAINS = 1000
/** Of one process; an end may be lost on its way. */
const RUNNING = 20_000

/** In the process that has the turns. */
export class TurnTeller implements TurnEars {
  readonly #chains = new Chains()
  #pending: (readonly ['sent', SentTurn] | readonly ['settled', SettledTurn])[] = []

  sent(turn: SentTurn): void {
    this.#pending.push(['sent', turn])
  }

  settled(turn: SettledTurn): void {
    this.#pending.push(['settled', turn])
  }

  /** What has happened since; whoever takes it sees to it that it arrives, or says that it is lost. */
  take(): ToldTurn[] {
    const pending = this.#pending
    if (pending.length === 0) return []
    this.#pending = []
    return pending.map((told) => {
      if (told[0] === 'settled') return told
      const { segments, ...turn } = told[1]
      return ['sent', turn, this.#told(segments)]
    })
  }

  /** What was taken will not arrive. */
  lost(): void {
    this.#chains.clear()
  }

  #told(chain: SegmentChain): ToldChain {
    const { hashes, tokens, head, parts } = chain
    const base = this.#chains.before(chain)
    this.#chains.put(chain, base)
    if (base === undefined) return chain
    const from = base.hashes.length
    return {
      base: tailOf(base) as string,
      baseTokens: tokens[from - 1] as number,
      hashes: hashes.slice(from),
      tokens: tokens.slice(from),
      head,
      ...(parts && { parts }),
    }
  }
}

/** Of one process, in the one that keeps turns. */
export class TurnHearer {
  readonly #ears: TurnEars & { lost(key: string): void }
  readonly #chains = new Chains()
  /** Keys of what is under way there. */
  readonly #running = new Set<string>()

  constructor(ears: TurnEars & { lost(key: string): void }) {
    this.#ears = ears
  }

  hear(told: readonly ToldTurn[]): void {
    for (const each of told) {
      if (each[0] === 'settled') this.#settled(each[1])
      else this.#sent(each[1], each[2])
    }
  }

  /** That process is no more. */
  gone(): void {
    for (const key of this.#running) this.#ears.lost(key)
    this.#running.clear()
  }

  #sent(turn: Omit<SentTurn, 'segments'>, told: ToldChain): void {
    const segments = this.#whole(told)
    if (segments === undefined) return
    this.#running.add(turn.key)
    const [oldest] = this.#running
    if (this.#running.size > RUNNING && oldest !== undefined) this.#running.delete(oldest)
    this.#ears.sent({ segments, ...turn })
  }

  #settled(turn: SettledTurn): void {
    // One that failed may be sent again.
    if (!turn.failed) this.#running.delete(turn.key)
    this.#ears.settled(turn)
  }

  /** Undefined: what it goes on from is not known, so that nothing can be said of it. */
  #whole({ base: tail, baseTokens = 0, ...rest }: ToldChain): SegmentChain | undefined {
    if (tail === undefined) {
      this.#chains.put(rest, undefined)
      return rest
    }
    const base = this.#chains.get(tail)
    if (base === undefined) return undefined
    // A process learns how long tokens are: what it estimated before is told in the measure of now.
    const scale = baseTokens / Math.max(1, base.tokens.at(-1) ?? 1)
    const chain = {
      ...rest,
      hashes: [...base.hashes, ...rest.hashes],
      tokens: [...base.tokens.map((tokens) => Math.ceil(tokens * scale)), ...rest.tokens],
    }
    this.#chains.put(chain, base)
    return chain
  }
}

/** The last prompt of each conversation, by its last hash; least recently used first. */
class Chains {
  readonly #byTail = new Map<string, SegmentChain>()

  get(tail: string): SegmentChain | undefined {
    return this.#byTail.get(tail)
  }

  /** The longest that `chain` goes on from. */
  before({ hashes }: SegmentChain): SegmentChain | undefined {
    for (let i = hashes.length - 1; i >= 0; i--) {
      const found = this.#byTail.get(hashes[i] as string)
      if (found?.hashes.length === i + 1) return found
    }
    return undefined
  }

  /** `chain` takes the place of what it goes on from. */
  put(chain: SegmentChain, base: SegmentChain | undefined): void {
    const tail = tailOf(chain)
    if (tail === undefined) return
    if (base !== undefined) this.#byTail.delete(tailOf(base) as string)
    this.#byTail.delete(tail)
    this.#byTail.set(tail, chain)
    const [oldest] = this.#byTail.keys()
    if (this.#byTail.size > CHAINS && oldest !== undefined) this.#byTail.delete(oldest)
  }

  clear(): void {
    this.#byTail.clear()
  }
}

function tailOf({ hashes }: SegmentChain): string | undefined {
  return hashes.at(-1)
}
