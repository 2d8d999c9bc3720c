// The tokenizer's own thread, seen from the one that serves: long new text is tokenized there, so that a first request of
// 400 KB does not keep everybody's tokens waiting. Invariant: it changes where ids are worked out, never which; a thread
// that fails costs its requests nothing but the time to work them out in place.
//
//   tokenizer.ts  -- segments -->  tokenizer-worker.ts: the same SegmentEncoder over the same tokenizer.json
//                 <--   ids   --

import { Worker } from 'node:worker_threads'

/** What the thread is started with. */
export interface ThreadSetup {
  readonly tokenizerJson: string
}

export interface ThreadRequest {
  readonly id: number
  readonly segments: readonly string[]
}

export interface ThreadReply {
  readonly id: number
  /** One for each segment. */
  readonly ids: readonly Int32Array[]
}

/** The thread holds a vocabulary of its own; it ends when it had nothing to do for so long. */
const IDLE_MS = 300_000

type Settle = (reply: readonly Int32Array[] | undefined) => void

export class TokenizerThread {
  readonly #url: URL
  readonly #setup: ThreadSetup
  readonly #idleMs: number
  readonly #running = new Map<number, Settle>()
  #worker: Worker | undefined
  #idle: NodeJS.Timeout | undefined
  #next = 0
  #closed = false

  /** `url` is the compiled tokenizer-worker.js; it is started with the first work. */
  constructor(url: URL, tokenizerJson: string, idleMs: number = IDLE_MS) {
    this.#url = url
    this.#setup = { tokenizerJson }
    this.#idleMs = idleMs
  }

  /** Ids by segment; undefined: the thread failed, and the caller works them out. */
  async encode(segments: readonly string[]): Promise<ReadonlyMap<string, Int32Array> | undefined> {
    if (this.#closed) return undefined
    clearTimeout(this.#idle)
    const worker = this.#start()
    const id = this.#next++
    const ids = await new Promise<readonly Int32Array[] | undefined>((settle) => {
      this.#running.set(id, settle)
      worker.ref()
      worker.postMessage({ id, segments } satisfies ThreadRequest)
    })
    return ids && new Map(segments.map((segment, i) => [segment, ids[i]!]))
  }

  /** What is still running is worked out by its caller. */
  async close(): Promise<void> {
    this.#closed = true
    await this.#stop()
  }

  #start(): Worker {
    if (this.#worker !== undefined) return this.#worker
    const worker = new Worker(this.#url, { workerData: this.#setup, name: 'refrain-tokenizer' })
    worker.on('message', ({ id, ids }: ThreadReply) => {
      const settle = this.#running.get(id)
      this.#running.delete(id)
      if (this.#running.size === 0) this.#rest()
      settle?.(ids)
    })
    const lost = () => {
      if (this.#worker === worker) void this.#stop()
    }
    worker.on('error', lost)
    worker.on('exit', lost)
    this.#worker = worker
    return worker
  }

  #rest(): void {
    this.#worker?.unref()
    this.#idle = setTimeout(() => void this.#stop(), this.#idleMs)
    this.#idle.unref()
  }

  async #stop(): Promise<void> {
    clearTimeout(this.#idle)
    const worker = this.#worker
    this.#worker = undefined
    const lost = [...this.#running.values()]
    this.#running.clear()
    for (const settle of lost) settle(undefined)
    await worker?.terminate()
  }
}
