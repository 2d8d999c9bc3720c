// xgrammar's WebAssembly module as this project uses it: one instance for the compiler's thread, one for each compiled
// grammar. Invariant: these functions use nothing from outside of themselves but their arguments and what every JavaScript
// thread has, because their text is also evaluated in the compiler's thread, where no module of this project is loaded.

// What is used of WebAssembly's interface, which neither Node's types nor the ECMAScript library declare.
declare global {
  namespace WebAssembly {
    type Module = object
    type Imports = Readonly<Record<string, unknown>>
    interface Instance {
      readonly exports: Readonly<Record<string, unknown>>
    }
    class Memory {
      readonly buffer: ArrayBuffer
      grow(pages: number): number
    }
    class RuntimeError extends Error {}
    function compile(bytes: Uint8Array): Promise<Module>
    function instantiate(module: Module, imports: Imports): Promise<Instance>
  }
}

/** What is used of xgrammar's classes. Objects are freed with `delete`. */
export interface XgrammarBinding {
  readonly HEAPU8: Uint8Array
  vecStringFromJSArray(items: readonly (string | Uint8Array)[]): Handle
  vecIntFromJSArray(items: readonly number[]): Handle
  vecIntToView(vector: Handle): Int32Array
  readonly Grammar: { FromEBNF(ebnf: string, root: string): Handle }
  readonly TokenizerInfo: new (
    vocabulary: Handle,
    kind: 'RAW',
    size: number,
    stops: Handle,
    prependSpace: boolean,
  ) => Handle
  readonly GrammarCompiler: new (tokenizer: Handle, threads: number, cached: boolean) => CompilerHandle
  readonly GrammarMatcher: new (
    grammar: Handle,
    stops: undefined,
    endsWithoutStop: boolean,
    maxRollback: number,
  ) => MatcherHandle
}

export interface Handle {
  /** Where the C++ object is. Emscripten's own field, pinned by the exact version in package.json. */
  readonly $$: { ptr: number }
  delete(): void
}

export interface CompilerHandle extends Handle {
  CompileGrammar(grammar: Handle): Handle
}

export interface MatcherHandle extends Handle {
  AcceptToken(id: number, verbose: boolean): boolean
  GetNextTokenBitmask(vocabSize: number): Handle
}

/** The options of an Emscripten module that are used. */
interface ModuleOptions {
  /** Lies in memory; would be the thread's own. */
  readonly thisProgram: string
  print(line: string): void
  printErr(line: string): void
  instantiateWasm(imports: WebAssembly.Imports, receive: (instance: WebAssembly.Instance) => void): object
}

export type ModuleFactory = (options: ModuleOptions) => Promise<XgrammarBinding>

export interface Instance {
  readonly binding: XgrammarBinding
  /** What the C++ code printed: its errors. */
  readonly lines: string[]
}

/**
 * Evaluates the package's file as CommonJS: it is a UMD file that its package marks as ESM, so that Node loads it neither
 * way. Of its exports only the module's factory is taken, which the file keeps to itself.
 */
export function evaluateXgrammar(source: string, file: string, require: NodeJS.Require): ModuleFactory {
  const mark = 'exports.default = index;'
  if (!source.includes(mark)) throw new Error('web-xgrammar: not the file that this version knows')
  const exports: { factory?: ModuleFactory } = {}
  // Text that is evaluated has no dynamic import where the caller's module system has not provided for it.
  const code = source
    .replace(mark, `${mark} exports.factory = Module;`)
    .replaceAll("await import('module')", "require('module')")
  new Function('exports', 'require', 'module', '__filename', '__dirname', code)(exports, require, { exports }, file, '')
  if (exports.factory === undefined) throw new Error('web-xgrammar: no module factory')
  return exports.factory
}

/** An instance whose memory has `bytes` from the start and never more than `limitBytes`: allocation fails then. */
export function openInstance(
  factory: ModuleFactory,
  module: WebAssembly.Module,
  bytes: number,
  limitBytes: number,
): Promise<Instance> {
  const page = 65536
  return new Promise((resolve, reject) => {
    const lines: string[] = []
    const print = (line: string) => {
      if (lines.length < 20) lines.push(line)
    }
    const connect = async (imports: WebAssembly.Imports, receive: (instance: WebAssembly.Instance) => void) => {
      const instance = await WebAssembly.instantiate(module, imports)
      const memory = Object.values(instance.exports).find((item) => item instanceof WebAssembly.Memory)
      if (memory === undefined) throw new Error('web-xgrammar: no memory')
      // Before the module looks at it, for its views are made then.
      if (bytes > memory.buffer.byteLength) memory.grow(Math.ceil((bytes - memory.buffer.byteLength) / page))
      memory.grow = (pages) => {
        if (memory.buffer.byteLength + pages * page > limitBytes)
          throw new RangeError('the grammar needs too much memory')
        return WebAssembly.Memory.prototype.grow.call(memory, pages)
      }
      receive(instance)
    }
    const instantiateWasm: ModuleOptions['instantiateWasm'] = (imports, receive) => {
      connect(imports, receive).catch(reject)
      return {}
    }
    factory({ thisProgram: 'refrain', print, printErr: print, instantiateWasm }).then(
      (binding) => resolve({ binding, lines }),
      reject,
    )
  })
}

/** A copy of an instance's memory without the zeros at its end. */
export function usedMemory(heap: Uint8Array): Uint8Array {
  const words = new Float64Array(heap.buffer as ArrayBuffer)
  let end = words.length
  while (end > 0 && Object.is(words[end - 1], 0)) end--
  return heap.slice(0, end * 8)
}

/** The module's bytes, which the file carries as a data URL. */
export function wasmBytes(source: string): Uint8Array {
  const found = /data:application\/octet-stream;base64,([A-Za-z0-9+/=]{1000,})/.exec(source)
  if (found === null) throw new Error('web-xgrammar: no WebAssembly in the file')
  return Buffer.from(found[1]!, 'base64')
}
