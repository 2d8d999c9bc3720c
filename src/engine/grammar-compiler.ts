// Compiles grammars in a thread of its own, one after the other, each within a time limit: it takes from milliseconds to
// for ever, holds its thread meanwhile, and the step loop must not wait. Invariant: a grammar that fails, or takes too
// long, costs its own request and a restart of the thread, nothing else.
//
// A compiled grammar cannot leave its WebAssembly memory, so the memory travels: the thread sends an image of it, and the
// engine's thread puts it into a fresh instance. Images start from one memory that holds the vocabulary alone:
//
//   thread: [vocabulary | 0 0 0]  -- compile -->  [vocabulary | grammar | 0]  -- image: all but the zeros -->  engine's thread
//                  ^------------------ put back before the next one ---'

import { Worker } from 'node:worker_threads'
import { RefrainError } from '../core/errors.js'
import { invalidGrammar } from './grammar-text.js'
import { type GrammarImage, type Reply, serve, type ThreadSetup, tryOut } from './grammar-thread.js'
import { evaluateXgrammar, openInstance, usedMemory, wasmBytes } from './grammar-wasm.js'

export interface CompilerOptions extends Omit<ThreadSetup, 'module'> {
  readonly limitMs: number
  /** The thread ends when it had nothing to do for so long. */
  readonly idleMs: number
  readonly maxWaiting: number
}

interface Waiting {
  readonly ebnf: string
  resolve(image: GrammarImage): void
  reject(error: unknown): void
}

export class GrammarCompiler {
  readonly #options: CompilerOptions
  readonly #waiting: Waiting[] = []
  #module: Promise<WebAssembly.Module> | undefined
  #worker: Worker | undefined
  #running: Waiting | undefined
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: CompilerOptions) {
    this.#options = options
  }

  /** The module, compiled once for all instances of both threads. */
  module(): Promise<WebAssembly.Module> {
    this.#module ??= WebAssembly.compile(wasmBytes(this.#options.source))
    return this.#module
  }

  /** @throws RefrainError `invalid_grammar` with xgrammar's sentence or when it takes too long, `queue_full` behind too many. */
  async compile(ebnf: string): Promise<GrammarImage> {
    const module = await this.module()
    if (this.#closed) throw new Error('the grammar compiler is closed')
    if (this.#waiting.length >= this.#options.maxWaiting) {
      throw new RefrainError('queue_full', `${this.#waiting.length} grammars are waiting to be compiled already`, {
        retryAfterMs: 1000,
      })
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ ebnf, resolve, reject })
      this.#next(module)
    })
  }

  /** Ends the thread; what is waiting or running fails. */
  async close(): Promise<void> {
    this.#closed = true
    const lost = [...this.#waiting.splice(0), ...(this.#running === undefined ? [] : [this.#running])]
    await this.#stop()
    for (const { reject } of lost) reject(new Error('the grammar compiler is closed'))
  }

  #next(module: WebAssembly.Module): void {
    if (this.#running !== undefined || this.#closed) return
    clearTimeout(this.#timer)
    const job = this.#waiting.shift()
    if (job === undefined) {
      this.#timer = setTimeout(() => void this.#stop(), this.#options.idleMs)
      this.#timer.unref()
      return
    }
    this.#running = job
    const worker = this.#start(module)
    const settle = (act: () => void, thread: 'keep' | 'end') => {
      clearTimeout(this.#timer)
      for (const [event, listener] of Object.entries(listeners)) worker.off(event, listener)
      this.#running = undefined
      const ended = thread === 'keep' ? Promise.resolve() : this.#stop()
      act()
      void ended.then(() => this.#next(module))
    }
    const { limitMs } = this.#options
    this.#timer = setTimeout(() => {
      settle(() => job.reject(invalidGrammar(`it takes longer than ${limitMs / 1000} s to compile`)), 'end')
    }, limitMs)
    const listeners = {
      message: (reply: Reply) => {
        const act = () =>
          'image' in reply ? job.resolve(reply.image) : job.reject(invalidGrammar(sentence(reply.error)))
        settle(act, reply.last === 'yes' ? 'end' : 'keep')
      },
      error: (error: Error) => settle(() => job.reject(error), 'end'),
      exit: (code: number) => settle(() => job.reject(new Error(`the grammar thread ended with ${code}`)), 'end'),
    }
    for (const [event, listener] of Object.entries(listeners)) worker.on(event, listener)
    worker.postMessage(job.ebnf)
  }

  #start(module: WebAssembly.Module): Worker {
    if (this.#worker !== undefined) return this.#worker
    const { source, file, bytes, offsets, stopTokenIds, limitBytes, limitTokenMs } = this.#options
    const setup: ThreadSetup = { source, file, module, bytes, offsets, stopTokenIds, limitBytes, limitTokenMs }
    const parts = { evaluate: evaluateXgrammar, open: openInstance, used: usedMemory, attempt: tryOut }
    const texts = Object.entries(parts).map(([name, part]) => `${name}: ${part.toString()}`)
    const code = `(${serve.toString()})(require, { ${texts.join(', ')} })`
    this.#worker = new Worker(code, { eval: true, workerData: setup, name: 'refrain-grammar' })
    this.#worker.unref()
    return this.#worker
  }

  async #stop(): Promise<void> {
    clearTimeout(this.#timer)
    const worker = this.#worker
    this.#worker = undefined
    await worker?.terminate()
  }
}

/** xgrammar's sentence without its source line and the check that failed. */
function sentence(text: string): string {
  const plain = text.replace(/^\[\w+\] \S+:\d+: /, '').replace(/^Check failed: \(.*?\) is false: /, '')
  return plain.trim().slice(0, 300) || 'it cannot be compiled'
}
