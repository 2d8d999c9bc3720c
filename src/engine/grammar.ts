// Constrained output: what must be JSON, fit a schema or match a regular expression, as a mask of allowed tokens for each
// step. The only door to xgrammar. Invariant: a token that the mask forbids never becomes part of the text, and once the
// text is complete nothing but an end token is allowed. Compiling happens in another thread; masks are made in this one.

import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { LRUCache } from 'lru-cache'
import type { Constraint } from '../core/request.js'
import { GrammarCompiler } from './grammar-compiler.js'
import { type Lengths, MAX_COUNTED } from './grammar-json.js'
import { createMatcher, type Matcher, type MatcherParts } from './grammar-matcher.js'
import { anyObjectGrammar, schemaGrammar, type WrittenGrammar } from './grammar-schema.js'
import { StringTokens, type Vocabulary } from './grammar-string.js'
import { fieldOf, isInvalid, relaxedGrammar, structureGrammar } from './grammar-structure.js'
import { invalidGrammar } from './grammar-text.js'
import type { GrammarImage } from './grammar-thread.js'
import { evaluateXgrammar, type Handle, type ModuleFactory, openInstance } from './grammar-wasm.js'

export type { Matcher } from './grammar-matcher.js'

const MEGABYTE = 1024 * 1024

/** What of the model's tokenizer is needed. */
export interface GrammarVocabulary extends Vocabulary {
  readonly eosTokenIds: readonly number[]
  /** How a special token is spelled. */
  spellingOf(id: number): string
}

export interface GrammarLimits {
  /** A grammar that takes longer to compile is refused. */
  readonly compileMs: number
  /** Memory of compiled grammars that are kept for the next request; they are evicted least recently used first. */
  readonly cacheBytes: number
  /** Memory of one grammar, compiling or compiled. */
  readonly grammarBytes: number
  /** A grammar that takes longer to match one token is refused; what a text may take is in grammar-matcher.ts. */
  readonly tokenMs: number
  /** The compiler's thread ends after so long without work. */
  readonly idleMs: number
  /** Grammars that may wait to be compiled. */
  readonly maxWaiting: number
}

export const GRAMMAR_LIMITS: GrammarLimits = {
  compileMs: 20_000,
  cacheBytes: 256 * MEGABYTE,
  grammarBytes: 512 * MEGABYTE,
  tokenMs: 250,
  idleMs: 60_000,
  maxWaiting: 32,
}

export interface CompiledGrammar {
  /** A matcher at the beginning of a text; one for each sequence. */
  matcher(): Matcher
}

export interface Grammars {
  /**
   * Compiles, or finds compiled already; requests for the same constraint wait for one compilation. `visible` special
   * tokens are allowed where the text that they are spelled with is; end tokens stay what they are.
   * @throws RefrainError `invalid_grammar`: what is wrong with the schema or regex, or that it takes too long;
   * `queue_full` when too many wait to be compiled.
   */
  compile(constraint: Constraint, visible?: readonly number[]): Promise<CompiledGrammar>
  /** Ends the compiler's thread. Matchers stay usable. */
  close(): Promise<void>
}

/** Grammars over one vocabulary. Nothing is loaded before the first `compile`. */
export function createGrammars(vocabulary: GrammarVocabulary, limits: GrammarLimits = GRAMMAR_LIMITS): Grammars {
  // One for plain text, one for a chat with the model's visible special tokens.
  const engines = new Map<string, GrammarEngine>()
  const compiled = new LRUCache<string, InstalledGrammar>({ maxSize: limits.cacheBytes })
  const pending = new Map<string, Promise<InstalledGrammar>>()
  return {
    compile(constraint, visible = []) {
      const spelled = visible.join()
      const key = `${spelled} ${keyOf(constraint)}`
      const known = compiled.get(key)
      if (known !== undefined) return Promise.resolve(known)
      const waiting = pending.get(key)
      if (waiting !== undefined) return waiting
      const started = (async () => {
        const engine = engines.get(spelled) ?? new GrammarEngine(withSpecials(vocabulary, visible), limits)
        engines.set(spelled, engine)
        const grammar = await make(engine, constraint)
        compiled.set(key, grammar, { size: grammar.bytes })
        return grammar
      })().finally(() => pending.delete(key))
      pending.set(key, started)
      return started
    },
    async close() {
      await Promise.all(Array.from(engines.values(), (engine) => engine.close()))
    },
  }
}

/** The same with `visible` special tokens spelled out. */
function withSpecials(vocabulary: GrammarVocabulary, visible: readonly number[]): GrammarVocabulary {
  if (visible.length === 0) return vocabulary
  const { vocabSize, eosTokenIds } = vocabulary
  const encoder = new TextEncoder()
  const shown = visible.filter((id) => !eosTokenIds.includes(id))
  const bytes = new Map(shown.map((id) => [id, encoder.encode(vocabulary.spellingOf(id))]))
  return {
    vocabSize,
    eosTokenIds,
    spellingOf: (id) => vocabulary.spellingOf(id),
    bytesOf: (id) => bytes.get(id) ?? vocabulary.bytesOf(id),
  }
}

function keyOf(constraint: Constraint): string {
  if (constraint.kind === 'json') return 'json'
  if (constraint.kind === 'structure') return `structure ${JSON.stringify(constraint.structure)}`
  return constraint.kind === 'regex' ? `regex ${constraint.regex}` : `schema ${constraint.schema}`
}

/** Compiles; a structure that is too much as a whole is tried once more without what is lenient in it. */
async function make(engine: GrammarEngine, constraint: Constraint): Promise<InstalledGrammar> {
  if (constraint.kind !== 'structure') return engine.make(write(constraint))
  const { structure } = constraint
  try {
    return await engine.make(structureGrammar(structure))
  } catch (error) {
    if (!isInvalid(error)) throw error
    const relaxed = relaxedGrammar(structure)
    if (relaxed !== undefined) return engine.make(relaxed)
    const field = fieldOf(structure)
    throw field === undefined ? error : invalidGrammar(error.message, field)
  }
}

function write(constraint: Constraint): WrittenGrammar {
  if (constraint.kind === 'json') return anyObjectGrammar()
  if (constraint.kind === 'json-schema') return schemaGrammar(constraint.schema)
  return structureGrammar(constraint.kind === 'structure' ? constraint.structure : constraint)
}

interface InstalledGrammar extends CompiledGrammar {
  readonly bytes: number
}

/** The loaded module and the compiler for one vocabulary. */
class GrammarEngine {
  readonly #compiler: GrammarCompiler
  readonly #factory: ModuleFactory
  readonly #strings: StringTokens
  readonly #vocabulary: GrammarVocabulary
  readonly #limits: GrammarLimits

  constructor(vocabulary: GrammarVocabulary, limits: GrammarLimits) {
    const require = createRequire(import.meta.url)
    const file = require.resolve('@mlc-ai/web-xgrammar')
    const source = readFileSync(file, 'utf8')
    this.#factory = evaluateXgrammar(source, file, require)
    this.#strings = new StringTokens(vocabulary)
    this.#vocabulary = vocabulary
    this.#limits = limits
    const { compileMs: limitMs, grammarBytes: limitBytes, tokenMs: limitTokenMs, idleMs, maxWaiting } = limits
    const stopTokenIds = vocabulary.eosTokenIds
    const settings = { source, file, stopTokenIds, limitMs, limitBytes, limitTokenMs, idleMs, maxWaiting }
    this.#compiler = new GrammarCompiler({ ...settings, ...spell(vocabulary) })
  }

  close(): Promise<void> {
    return this.#compiler.close()
  }

  async make({ ebnf, counted }: WrittenGrammar): Promise<InstalledGrammar> {
    const image = await this.#compiler.compile(ebnf)
    const parts = await this.#install(image, counted)
    const first = createMatcher(parts)
    const possible = first.isPossible()
    first.dispose()
    if (!possible) throw invalidGrammar('no text satisfies it')
    return { matcher: () => createMatcher(parts), bytes: image.memory.length + MEGABYTE }
  }

  /** Puts a compiled grammar's memory into an instance of this thread. */
  async #install(image: GrammarImage, counted: readonly Lengths[]): Promise<MatcherParts> {
    const { grammarBytes } = this.#limits
    const module = await this.#compiler.module()
    const { binding } = await openInstance(this.#factory, module, image.memory.length, grammarBytes)
    if (Buffer.compare(image.fresh, binding.HEAPU8.subarray(0, image.fresh.length)) !== 0) {
      throw new Error("web-xgrammar: the compiler's thread and this one start from different memories")
    }
    // A handle of the right class comes from compiling something; then memory and pointer are replaced.
    const nothing = binding.vecStringFromJSArray(['a'])
    const tokenizer = new binding.TokenizerInfo(nothing, 'RAW', 1, binding.vecIntFromJSArray([]), false)
    const compiler = new binding.GrammarCompiler(tokenizer, 1, false)
    const grammar: Handle = compiler.CompileGrammar(binding.Grammar.FromEBNF('root ::= "a"', 'root'))
    // What that left behind the image's end is far less than this; the rest is zero, and stays untouched.
    binding.HEAPU8.fill(0, image.memory.length, image.memory.length + MEGABYTE)
    binding.HEAPU8.set(image.memory)
    grammar.$$.ptr = image.pointer
    const { vocabSize, eosTokenIds } = this.#vocabulary
    return { binding, grammar, vocabSize, eosTokenIds, counted, strings: this.#strings }
  }
}

/** The vocabulary's bytes end to end, then those of the pseudo-tokens for counted strings. */
function spell(vocabulary: GrammarVocabulary): { bytes: Uint8Array; offsets: Uint32Array } {
  const { vocabSize } = vocabulary
  const stops = new Set(vocabulary.eosTokenIds)
  const tokens: Uint8Array[] = []
  for (let id = 0; id < vocabSize; id++) tokens.push(stops.has(id) ? new Uint8Array() : vocabulary.bytesOf(id))
  for (let k = 0; k < MAX_COUNTED; k++) tokens.push(Uint8Array.of(0xff, 0x80 + k))
  const offsets = new Uint32Array(tokens.length + 1)
  for (const [i, { length }] of tokens.entries()) offsets[i + 1] = offsets[i]! + length
  const bytes = new Uint8Array(offsets.at(-1)!)
  for (const [i, token] of tokens.entries()) bytes.set(token, offsets[i])
  return { bytes, offsets }
}
