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
import { evaluateXgrammar, openInstance, usedMemory, wasmBytes } from './grammar-wasm.js'

/** The state of an instance in which a grammar was compiled. */
export interface GrammarImage {
  readonly memory: Uint8Array
  /** Where in it the compiled grammar is. */
  readonly pointer: number
  /**
   * The thread's memory before anything was done: JavaScript holds pointers into it, so only an instance that starts with
   * the same bytes can take the image.
   */
  readonly fresh: Uint8Array
}

/** What the thread is started with. Tokens' bytes lie end to end, token i at `[offsets[i], offsets[i + 1])`. */
interface ThreadSetup {
  readonly source: string
  readonly file: string
  readonly module: WebAssembly.Module
  readonly bytes: Uint8Array
  readonly offsets: Uint32Array
  readonly stopTokenIds: readonly number[]
  readonly limitBytes: number
}

type Reply = ({ readonly image: GrammarImage } | { readonly error: string }) & { readonly last: 'yes' | 'no' }

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
    const { source, file, bytes, offsets, stopTokenIds, limitBytes } = this.#options
    const setup: ThreadSetup = { source, file, module, bytes, offsets, stopTokenIds, limitBytes }
    const code = `(${serve.toString()})(require, ${evaluateXgrammar.toString()}, ${openInstance.toString()}, ${usedMemory.toString()})`
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

/** The thread. Its text is evaluated there: it may use its arguments only. */
function serve(
  require: NodeJS.Require,
  evaluate: typeof evaluateXgrammar,
  open: typeof openInstance,
  used: typeof usedMemory,
): void {
  const { parentPort, workerData } = require('node:worker_threads') as typeof import('node:worker_threads')
  const setup = workerData as ThreadSetup

  /** An instance that knows the vocabulary, and its memory as it is then. */
  const prepare = async () => {
    const factory = evaluate(setup.source, setup.file, require)
    const { binding, lines } = await open(factory, setup.module, 0, setup.limitBytes)
    const fresh = used(binding.HEAPU8)
    const tokens: Uint8Array[] = []
    for (let i = 0; i + 1 < setup.offsets.length; i++) {
      tokens.push(setup.bytes.subarray(setup.offsets[i], setup.offsets[i + 1]))
    }
    const vocabulary = binding.vecStringFromJSArray(tokens)
    const stops = binding.vecIntFromJSArray(setup.stopTokenIds)
    const tokenizer = new binding.TokenizerInfo(vocabulary, 'RAW', tokens.length, stops, false)
    vocabulary.delete()
    stops.delete()
    const compiler = new binding.GrammarCompiler(tokenizer, 1, false)
    return { binding, lines, compiler, fresh, base: used(binding.HEAPU8) }
  }

  let prepared: ReturnType<typeof prepare> | undefined
  const compile = async (ebnf: string): Promise<GrammarImage> => {
    prepared ??= prepare()
    const { binding, lines, compiler, fresh, base } = await prepared
    lines.length = 0
    binding.HEAPU8.fill(0, base.length)
    binding.HEAPU8.set(base)
    const compiled = compiler.CompileGrammar(binding.Grammar.FromEBNF(ebnf, 'root'))
    // A warning is something that would be ignored.
    if (lines.length > 0) throw new Error(lines[0])
    return { memory: used(binding.HEAPU8), pointer: compiled.$$.ptr, fresh }
  }

  parentPort?.on('message', async (ebnf: string) => {
    try {
      const image = await compile(ebnf)
      parentPort.postMessage({ image, last: 'no' } satisfies Reply, [image.memory.buffer as ArrayBuffer])
    } catch (error) {
      const lines = (await prepared)?.lines ?? []
      // A trap, a C++ exception (a number), no memory: the grammar's. Anything else ends the thread with an error: ours.
      const isTrap =
        error instanceof WebAssembly.RuntimeError || error instanceof RangeError || typeof error === 'number'
      if (lines.length === 0 && !isTrap) throw error
      // The stack of the instance is not what it was: a new thread serves the next.
      parentPort.postMessage({ error: lines[0] ?? String(error), last: 'yes' } satisfies Reply)
    }
  })
}
