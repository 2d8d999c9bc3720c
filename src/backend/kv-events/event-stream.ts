// One publisher's numbered batches -> applied once each and in order, or known to be incomplete. Gaps, restarts and late joins
// are told by numbers and by what was seen under them. Invariant: an index that may be wrong is dropped before anything
// else is applied; what follows it counts as incomplete until it began at batch 0 or the engine said that all is cleared.
//
//   live:     last + 1                     applied
//             <= last, the same bytes      a repetition, left out
//             <= last, other bytes         a restart
//             > last + 1                   a gap
//   healing:  batches are asked for from the last known one on; if that one comes back the same, the process is the same
//             and what follows is applied; else all is dropped and asked for from 0 on. Live batches wait meanwhile.

import type { Clock } from '../../core/clock.js'
import type { KvTurned } from '../../core/signals.js'

/** The batches that a publisher still has, from `from` on, in order; `take` false: no more are wanted. */
export interface ReplaySource {
  /** 'end': it has no more. 'failed': no answer, a broken one, or one that stopped. */
  ask(from: number, take: (seq: number, payload: Uint8Array) => boolean): Promise<'end' | 'stopped' | 'failed'>
}

export type StreamEvent = KvTurned['what']

export interface StreamParts {
  readonly clock: Clock
  /** Undefined: none is offered. */
  readonly replay: ReplaySource | undefined
  /** Applies a batch; true: it cleared everything, so that all is known. */
  apply(payload: Uint8Array): boolean
  /** Forget all that this stream told. */
  drop(): void
  /** Completeness changed, or something happened to the stream. */
  tell(event: StreamEvent | undefined): void
}

/** Payloads of which it is remembered what they looked like. */
const SEEN = 1024
/** Live batches that wait while older ones are asked for, and their bytes; the oldest go first, which leaves a gap. */
const WAITING = 10_000
const WAITING_BYTES = 64 * 1024 * 1024
/** Answers in a row that bring nothing new before it is given up. */
const ATTEMPTS = 3
/** Waits before a replay that failed is tried again. */
const RETRY_MS = [1000, 5000, 15_000, 60_000]

interface Message {
  readonly seq: number
  readonly payload: Uint8Array
}

type Healing = 'healed' | 'failed'

export class EventStream {
  readonly #parts: StreamParts
  /** The number of the last applied batch. */
  #last: number | undefined
  readonly #seen = new Uint32Array(SEEN)
  #complete = false
  /** Live batches were applied while what came before them could not be asked for. */
  #isPatchy = false
  /** The connection is new: who speaks may be another process. */
  #isNew = true
  #waiting: Message[] | undefined
  #waitingBytes = 0
  /** The connection broke while batches were asked for. */
  #isOvertaken = false
  /** A replay failed, and none is asked for before its time. */
  #cancelRetry: (() => void) | undefined
  #failures = 0
  /** Replays since the last live batch that followed. */
  #replays = 0
  #closed = false

  constructor(parts: StreamParts) {
    this.#parts = parts
  }

  /** Everything that the publisher's engine holds is known; not while batches are asked for. */
  get complete(): boolean {
    return this.#complete && this.#waiting === undefined
  }

  /** The number of the last applied batch. */
  get last(): number | undefined {
    return this.#last
  }

  /** A connection came about, the first or one after a break. What is there already is asked for. */
  connected(): void {
    this.#isNew = true
    if (this.#parts.replay === undefined) return
    if (this.#waiting === undefined) {
      this.#startHealing()
      return
    }
    // What waits, and what was answered so far, may be of a process that is gone.
    this.#waiting = []
    this.#waitingBytes = 0
    this.#isOvertaken = true
  }

  receive(seq: number, payload: Uint8Array): void {
    if (this.#waiting === undefined) this.#take({ seq, payload })
    else this.#wait({ seq, payload })
  }

  close(): void {
    this.#closed = true
    this.#cancelRetry?.()
  }

  #wait(message: Message): void {
    const waiting = this.#waiting as Message[]
    waiting.push(message)
    this.#waitingBytes += message.payload.length
    while (waiting.length > WAITING || this.#waitingBytes > WAITING_BYTES) {
      this.#waitingBytes -= (waiting.shift() as Message).payload.length
    }
  }

  #take(message: Message): void {
    const { seq, payload } = message
    const last = this.#last
    const isNext = last === undefined ? seq === 0 : seq === last + 1
    if (isNext && !this.#isNew) {
      if (last === undefined) this.#setComplete(true)
      this.#replays = 0
      this.#apply(message)
      return
    }
    if (last !== undefined && seq <= last && this.#isRepetition(seq, last, payload)) return
    const what = last === undefined ? 'late-join' : seq <= last ? 'restart' : isNext ? 'reconnect' : 'gap'
    if (last !== undefined || seq > 0) this.#parts.tell(what)
    if (this.#mayAsk && this.#replays < ATTEMPTS) {
      this.#startHealing()
      this.#wait(message)
      return
    }
    // Nothing proves that what is known is still true. A replay that does not lead to the batch is as good as none.
    if (this.#mayAsk) this.#failed()
    else if (last !== undefined) this.#lose()
    this.#isNew = false
    this.#replays = 0
    this.#setComplete(seq === 0)
    this.#apply(message)
  }

  get #mayAsk(): boolean {
    return this.#parts.replay !== undefined && this.#cancelRetry === undefined
  }

  #isRepetition(seq: number, last: number, payload: Uint8Array): boolean {
    return last - seq < SEEN && this.#seen[seq % SEEN] === digestOf(payload)
  }

  #apply({ seq, payload }: Message): void {
    this.#last = seq
    this.#seen[seq % SEEN] = digestOf(payload)
    if (this.#parts.apply(payload)) this.#setComplete(true)
  }

  #lose(): void {
    this.#last = undefined
    this.#seen.fill(0)
    this.#setComplete(false)
    this.#parts.drop()
  }

  #setComplete(complete: boolean): void {
    if (this.#complete === complete) return
    this.#complete = complete
    this.#parts.tell(undefined)
  }

  #startHealing(): void {
    if (this.#waiting !== undefined || this.#closed) return
    this.#waiting = []
    this.#replays++
    this.#cancelRetry?.()
    this.#cancelRetry = undefined
    this.#parts.tell(undefined)
    // Our own fault in here is a crash, like everywhere.
    void this.#heal()
  }

  async #heal(): Promise<void> {
    const replay = this.#parts.replay as ReplaySource
    let outcome: Healing | 'again' = this.#last === undefined || this.#isPatchy ? 'again' : await this.#goOn(replay)
    if (outcome === 'again') outcome = await this.#startOver(replay)
    if (this.#closed) return
    if (this.#isOvertaken) {
      this.#isOvertaken = false
      await this.#heal()
      return
    }
    this.#isNew = false
    if (outcome === 'failed') this.#failed()
    else {
      this.#failures = 0
      this.#isPatchy = false
      this.#parts.tell('replayed')
    }
    const waiting = this.#waiting ?? []
    this.#waiting = undefined
    this.#waitingBytes = 0
    this.#parts.tell(undefined)
    for (const { seq, payload } of waiting) this.receive(seq, payload)
  }

  /** From the last batch on, if it is the same one. 'again': it is not, all is to be asked for. */
  async #goOn(replay: ReplaySource): Promise<Healing | 'again'> {
    let isSame: boolean | undefined
    const from = () => this.#last as number
    const outcome = await this.#askAll(replay, from, (seq, payload) => {
      const last = this.#last as number
      if (isSame === undefined) {
        isSame = seq === last && this.#isRepetition(seq, last, payload)
        return isSame ? 'known' : 'stop'
      }
      return seq <= last ? 'known' : seq === last + 1 ? 'take' : 'hole'
    })
    if (isSame === true && outcome === 'end') return 'healed'
    if (outcome === 'failed' && isSame === undefined) return 'failed'
    if (outcome !== 'failed') this.#parts.tell('restart')
    return 'again'
  }

  /** Drops what is known when the first batch of the answer is there, and takes all that there is. */
  async #startOver(replay: ReplaySource): Promise<Healing> {
    let hasBegun = false
    const from = () => (hasBegun ? (this.#last ?? 0) : 0)
    const outcome = await this.#askAll(replay, from, (seq) => {
      const last = this.#last
      if (!hasBegun) {
        hasBegun = true
        if (last !== undefined) this.#lose()
        this.#setComplete(seq === 0)
        return 'take'
      }
      if (last === undefined || seq > last + 1) return 'hole'
      return seq <= last ? 'known' : 'take'
    })
    if (outcome !== 'end') return 'failed'
    // It has published nothing: there is nothing to know.
    if (!hasBegun && this.#last !== undefined) this.#lose()
    if (!hasBegun) this.#setComplete(true)
    if (!this.#complete) this.#parts.tell('late-join')
    return 'healed'
  }

  /** Asks on from where an answer had a hole: a publisher drops what its socket can't take. */
  async #askAll(
    replay: ReplaySource,
    from: () => number,
    judge: (seq: number, payload: Uint8Array) => 'take' | 'known' | 'hole' | 'stop',
  ): Promise<'end' | 'stopped' | 'failed'> {
    for (let idle = 0; idle < ATTEMPTS; ) {
      const before = this.#last
      let hasHole = false
      const outcome = await replay.ask(from(), (seq, payload) => {
        if (this.#closed) return false
        const verdict = judge(seq, payload)
        if (verdict === 'take') this.#apply({ seq, payload })
        hasHole = verdict === 'hole'
        return verdict === 'take' || verdict === 'known'
      })
      if (this.#closed || !hasHole) return outcome
      idle = this.#last === before ? idle + 1 : 0
    }
    return 'failed'
  }

  /** Live batches are all that there is for now. */
  #failed(): void {
    if (this.#last !== undefined) this.#lose()
    this.#isPatchy = true
    this.#parts.tell('replay-failed')
    const waitMs = RETRY_MS[Math.min(this.#failures++, RETRY_MS.length - 1)] as number
    this.#cancelRetry = this.#parts.clock.after(waitMs, () => {
      this.#cancelRetry = undefined
      this.#startHealing()
    })
  }
}

/** Tells payloads of one number apart, by their beginning, which holds the time, and their length. */
function digestOf(payload: Uint8Array): number {
  let hash = 0x811c9dc5 ^ payload.length
  const end = Math.min(payload.length, 128)
  for (let i = 0; i < end; i++) hash = Math.imul(hash ^ (payload[i] as number), 0x01000193)
  return hash >>> 0
}
