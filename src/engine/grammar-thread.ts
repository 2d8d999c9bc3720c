// The compiler's thread. Invariant: these functions use nothing but their arguments, because their text is what runs
// there: Node 20 has no TypeScript, and a thread's file would have to be built before tests could run.

import type { evaluateXgrammar, Handle, openInstance, usedMemory, XgrammarBinding } from './grammar-wasm.js'

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
export interface ThreadSetup {
  readonly source: string
  readonly file: string
  readonly module: WebAssembly.Module
  readonly bytes: Uint8Array
  readonly offsets: Uint32Array
  readonly stopTokenIds: readonly number[]
  readonly limitBytes: number
  /** What one token may take to match. */
  readonly limitTokenMs: number
}

export type Reply = ({ readonly image: GrammarImage } | { readonly error: string }) & { readonly last: 'yes' | 'no' }

/** Functions that the thread gets as text, too. */
export interface ThreadParts {
  readonly evaluate: typeof evaluateXgrammar
  readonly open: typeof openInstance
  readonly used: typeof usedMemory
  readonly attempt: typeof tryOut
}

/** The thread. Its text is evaluated there: it may use its arguments only. */
export function serve(require: NodeJS.Require, parts: ThreadParts): void {
  const { evaluate, open, used, attempt } = parts
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
    const image = { memory: used(binding.HEAPU8), pointer: compiled.$$.ptr, fresh }
    const slowest = attempt(setup, binding, compiled)
    if (slowest > setup.limitTokenMs)
      lines.push(`one token takes ${Math.round(slowest)} ms to match, which is too slow`)
    if (lines.length > 0) throw new Error(lines[0])
    return image
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

/** Takes a few tokens at random; milliseconds of the slowest. The engine's thread would stand still for so long. */
export function tryOut(setup: ThreadSetup, binding: XgrammarBinding, compiled: Handle): number {
  const size = setup.offsets.length - 1
  const matcher = new binding.GrammarMatcher(compiled, undefined, false, -1)
  let slowest = 0
  let at = 0
  for (let step = 0; step < 12; step++) {
    const timed = () => {
      const started = performance.now()
      const vector = matcher.GetNextTokenBitmask(size)
      const mask = binding.vecIntToView(vector).slice()
      vector.delete()
      return { mask, ms: performance.now() - started }
    }
    let { mask, ms } = timed()
    // The machine may have been busy.
    if (ms > setup.limitTokenMs) ms = Math.min(ms, timed().ms)
    slowest = Math.max(slowest, ms)
    let left = size
    for (at = (at + 7919 * step) % size; left > 0 && ((mask[at >> 5]! >>> (at & 31)) & 1) === 0; left--) {
      at = (at + 1) % size
    }
    if (left === 0 || slowest > setup.limitTokenMs || setup.stopTokenIds.includes(at)) break
    const started = performance.now()
    matcher.AcceptToken(at, false)
    slowest = Math.max(slowest, performance.now() - started)
  }
  return slowest
}
