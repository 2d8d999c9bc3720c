// The embedded backend: the engine in a worker thread, seen from the HTTP side. Invariant: when the worker dies, every
// request in it fails with `engine_failed`, once, and a new worker takes over; the cache comes back from its disk tier.

import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads'
import type { CacheErased, PrefixTree } from '../cache/contract.js'
import { Channel } from '../core/channel.js'
import { RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'
import type { Job } from '../core/request.js'
import { blockPlaced, cacheMoved, note, phasesTimed, stepDone } from '../core/signals.js'
import type { Backend, BackendHealth, CacheControl, CacheStatus } from './backend.js'
import {
  type CacheCall,
  decodeError,
  type FromCall,
  type FromJob,
  type FromWorker,
  type ToWorker,
  type WorkerSetup,
} from './embedded-protocol.js'

export interface EmbeddedOptions {
  readonly name: string
  readonly model: string
  /** The compiled worker.js; a file URL. */
  readonly workerUrl: URL
  readonly setup: WorkerSetup
}

/** Waits between restarts of a worker that keeps dying, in ms. */
const RESTART_MS = [0, 1000, 5000, 15_000, 60_000]
/** A worker that lived so long starts from the first wait again. */
const STABLE_MS = 60_000

/** Starts the worker. @throws Error when the model or the cache folder can't be opened; the sentence says why. */
export async function createEmbeddedBackend(options: EmbeddedOptions): Promise<Backend> {
  const backend = new EmbeddedBackend(options)
  await backend.start()
  return backend
}

class EmbeddedBackend implements Backend {
  readonly name: string
  readonly model: string
  readonly cache: CacheControl
  readonly #options: EmbeddedOptions
  #worker: Worker | undefined
  #state: { running: number; waiting: number; notes: readonly string[] } = { running: 0, waiting: 0, notes: [] }
  #deaths = 0
  #closing = false
  #why = 'the engine is starting'

  constructor(options: EmbeddedOptions) {
    this.#options = options
    this.name = options.name
    this.model = options.model
    this.cache = {
      status: () => this.#call<CacheStatus>({ name: 'status' }),
      unpin: (id) => this.#call<boolean>({ name: 'unpin', id }),
      clear: () => this.#call<number>({ name: 'clear' }),
      erase: (ask) => this.#call<CacheErased>({ name: 'erase', ask }),
      tree: (ask) => this.#call<PrefixTree>({ name: 'tree', ask }),
    }
  }

  async start(): Promise<void> {
    const worker = new Worker(this.#options.workerUrl, { workerData: this.#options.setup })
    const startedAt = performance.now()
    await new Promise<void>((resolve, reject) => {
      let up = false
      worker.on('message', (message: FromWorker) => {
        if (message.type === 'ready') {
          up = true
          this.#worker = worker
          resolve()
        } else if (message.type === 'refused') reject(new Error(message.message))
        else this.#receive(message)
      })
      worker.on('error', (fault) => {
        this.#why = `the engine failed: ${fault.message}`
        if (!up) reject(fault)
      })
      worker.on('exit', (code) => {
        if (!up) reject(new Error(`the engine's worker exited with code ${code} while it started`))
        else if (!this.#closing) this.#revive(performance.now() - startedAt)
      })
    })
  }

  generate(job: Job, signal: AbortSignal): AsyncIterable<GenerateEvent> {
    const { port1, port2 } = new MessageChannel()
    const events = new Channel<GenerateEvent>(() => abandon(port1))
    const worker = this.#worker
    if (worker === undefined || signal.aborted) {
      events.fail(worker === undefined ? this.#unavailable() : signal.reason)
      return events
    }
    const onAbort = () => {
      abandon(port1)
      events.fail(signal.reason)
    }
    signal.addEventListener('abort', onAbort, { once: true })
    port1.on('message', (message: FromJob) => {
      if (message.type === 'events') for (const event of message.events) events.push(event)
      else {
        if (message.type === 'end') events.end()
        else events.fail(decodeError(message.error))
        port1.close()
      }
    })
    port1.on('close', () => {
      signal.removeEventListener('abort', onAbort)
      events.fail(this.#unavailable())
    })
    worker.postMessage({ type: 'generate', job, port: port2 } satisfies ToWorker, [port2])
    return events
  }

  health(): BackendHealth {
    const { running, waiting, notes } = this.#state
    const ready = this.#worker !== undefined && !this.#closing
    return { ready, notes: ready ? notes : [this.#why, ...notes], running, waiting }
  }

  async close(): Promise<void> {
    this.#closing = true
    this.#why = 'the engine is shutting down'
    const worker = this.#worker
    this.#worker = undefined
    if (worker === undefined) return
    await ask(worker, (port) => ({ type: 'close', port }))
    await worker.terminate()
  }

  async #call<T>(call: CacheCall): Promise<T> {
    const worker = this.#worker
    if (worker === undefined) throw this.#unavailable()
    return (await ask(worker, (port) => ({ type: 'cache', call, port }))) as T
  }

  #unavailable(): RefrainError {
    return new RefrainError('engine_failed', this.#why, { retryAfterMs: 2000 })
  }

  #receive(message: Exclude<FromWorker, { type: 'ready' | 'refused' }>): void {
    if (message.type === 'state') {
      this.#state = message
      return
    }
    if (message.type === 'blocks') {
      for (const block of message.blocks) blockPlaced.publish(block)
      return
    }
    for (const [name, payload] of message.signals) {
      if (name === 'stepDone') stepDone.publish(payload as never)
      else if (name === 'cacheMoved') cacheMoved.publish(payload as never)
      else if (name === 'phasesTimed') phasesTimed.publish(payload as never)
      else note.publish(payload as never)
    }
  }

  #revive(livedMs: number): void {
    this.#worker = undefined
    this.#state = { running: 0, waiting: 0, notes: [] }
    blockPlaced.publish({ what: 'cleared' })
    this.#deaths = livedMs > STABLE_MS ? 1 : this.#deaths + 1
    const waitMs = RESTART_MS[Math.min(this.#deaths, RESTART_MS.length) - 1] as number
    note.publish({ level: 'error', text: `${this.#why}; it starts again`, detail: { waitMs, deaths: this.#deaths } })
    setTimeout(() => {
      if (this.#closing) return
      this.start().catch((fault: Error) => {
        this.#why = `the engine does not start: ${fault.message}`
        this.#revive(0)
      })
    }, waitMs)
  }
}

/** One message with a port for the answer. */
async function ask(worker: Worker, message: (port: MessagePort) => ToWorker): Promise<unknown> {
  const { port1, port2 } = new MessageChannel()
  return new Promise((resolve, reject) => {
    port1.on('message', (answer: FromCall) => {
      if (answer.type === 'value') resolve(answer.value)
      else reject(decodeError(answer.error))
      port1.close()
    })
    port1.on('close', () => reject(new RefrainError('engine_failed', 'the engine went away')))
    worker.postMessage(message(port2), [port2])
  })
}

/** Tells the worker that nobody listens any more. */
function abandon(port: MessagePort): void {
  port.postMessage({ type: 'abort' })
  port.close()
}
