// Where one text stands in its grammar. Invariant: `mask` allows a token exactly when `accept` takes it; a matcher is
// at the end once nothing but an end token may follow. Called by the engine between two steps, from its thread alone.

import { RefrainError } from '../core/errors.js'
import { type Lengths, MAX_COUNTED } from './grammar-json.js'
import { isClosable, STRING_START, type StringPosition, type StringTokens, type TokenMask } from './grammar-string.js'
import type { Handle, MatcherHandle, XgrammarBinding } from './grammar-wasm.js'

export interface Matcher {
  /** Allowed tokens, bit `id & 31` of word `id >> 5`; undefined once finished. Not to be changed. */
  mask(): TokenMask | undefined
  /** Takes a token of the text, or an end token; false when the mask forbids it, and then nothing changes. */
  accept(id: number): boolean
  /** The text is complete: only an end token could follow, or came. */
  readonly finished: boolean
  /** A matcher at the same place that goes its own way. */
  fork(): Matcher
  /** Frees it; matchers that are forgotten are freed by and by. */
  dispose(): void
}

export interface MatcherParts {
  readonly binding: XgrammarBinding
  readonly grammar: Handle
  readonly vocabSize: number
  readonly eosTokenIds: readonly number[]
  readonly counted: readonly Lengths[]
  readonly strings: StringTokens
}

/** Inside a string that is counted here; the native matcher stands behind its content already. */
interface CountedString {
  readonly lengths: Lengths
  readonly position: StringPosition
  /** What may come when the string is long enough: tokens that begin with its closing quote. */
  readonly closing: TokenMask
}

/** What native code may take for a text: so much, and so much for each token. Ambiguous regexes grow with every token. */
const BUDGET_MS = 2000
const TOKEN_MS = 20

const forgotten = new FinalizationRegistry<MatcherHandle>((native) => native.delete())

export function createMatcher(parts: MatcherParts): GrammarMatcher {
  return new GrammarMatcher(parts)
}

class GrammarMatcher implements Matcher {
  readonly #parts: MatcherParts
  readonly #native: MatcherHandle
  /** What the native matcher took, for forks. */
  readonly #taken: number[] = []
  #string: CountedString | undefined
  #mask: TokenMask | undefined
  #ended = false
  #spentMs = 0

  constructor(parts: MatcherParts) {
    this.#parts = parts
    this.#native = guarded(() => new parts.binding.GrammarMatcher(parts.grammar, undefined, false, -1))
    forgotten.register(this, this.#native, this)
  }

  get finished(): boolean {
    return this.#ended || this.#onlyEnds(this.#allowed())
  }

  mask(): TokenMask | undefined {
    return this.#ended ? undefined : this.#allowed()
  }

  /** Whether anything may stand here at all. */
  isPossible(): boolean {
    return this.#next().some((word) => word !== 0)
  }

  accept(id: number): boolean {
    if (this.#ended) return false
    const allowed = this.#allowed()
    if (((allowed[id >> 5] ?? 0) & (1 << (id & 31))) === 0) return false
    this.#mask = undefined
    const string = this.#string
    if (string !== undefined) {
      const position = this.#parts.strings.after(string.position, id, leftOf(string))
      if (position !== undefined) {
        this.#string = { ...string, position }
        return true
      }
      this.#string = undefined
    }
    this.#take(id)
    this.#ended = this.#parts.eosTokenIds.includes(id)
    return true
  }

  fork(): Matcher {
    const other = new GrammarMatcher(this.#parts)
    for (const id of this.#taken) other.#take(id)
    other.#string = this.#string
    other.#mask = this.#mask
    other.#ended = this.#ended
    return other
  }

  dispose(): void {
    forgotten.unregister(this)
    this.#native.delete()
  }

  #take(id: number): void {
    if (!this.#timed(() => this.#native.AcceptToken(id, false))) {
      throw new Error(`the grammar allows token ${id} and refuses it`)
    }
    this.#taken.push(id)
  }

  #timed<T>(call: () => T): T {
    const started = performance.now()
    const result = guarded(call)
    this.#spentMs += performance.now() - started
    if (this.#spentMs > BUDGET_MS + TOKEN_MS * this.#taken.length) {
      throw unusable(`it took ${Math.round(this.#spentMs)} ms for ${this.#taken.length} tokens, which is too slow`)
    }
    return result
  }

  #allowed(): TokenMask {
    this.#mask ??= this.#next()
    if (!this.#mask.some((word) => word !== 0)) {
      throw unusable('it has come to a place that no token leads out of')
    }
    return this.#mask
  }

  /** The mask at this place; steps into a counted string where one begins. */
  #next(): TokenMask {
    if (this.#string !== undefined) return this.#inside(this.#string)
    const wide = this.#nativeMask()
    const index = this.#beginning(wide)
    if (index === undefined) return this.#narrow(wide)
    const lengths = this.#parts.counted[index]!
    this.#take(this.#parts.vocabSize + index)
    this.#string = { lengths, position: STRING_START, closing: this.#narrow(this.#nativeMask()) }
    return this.#inside(this.#string)
  }

  #inside(string: CountedString): TokenMask {
    const { lengths, position, closing } = string
    const content = this.#parts.strings.mask(position, leftOf(string))
    if (!isClosable(position) || position.count < lengths.min) return content
    return content.map((word, i) => word | closing[i]!)
  }

  /** The first pseudo-token that is allowed: a counted string begins. Where others could too, they are left out. */
  #beginning(wide: Int32Array): number | undefined {
    const { counted, vocabSize } = this.#parts
    for (let index = 0; index < counted.length; index++) {
      const id = vocabSize + index
      if ((wide[id >> 5]! >>> (id & 31)) & 1) return index
    }
    return undefined
  }

  /** Native masks go on with the pseudo-tokens. */
  #narrow(wide: Int32Array): TokenMask {
    const { vocabSize } = this.#parts
    const mask = wide.subarray(0, (vocabSize + 31) >> 5)
    const over = vocabSize & 31
    if (over !== 0) mask[mask.length - 1]! &= (1 << over) - 1
    return mask
  }

  #nativeMask(): Int32Array {
    const { binding, vocabSize } = this.#parts
    return this.#timed(() => {
      const vector = this.#native.GetNextTokenBitmask(vocabSize + MAX_COUNTED)
      const mask = binding.vecIntToView(vector).slice()
      vector.delete()
      return mask
    })
  }

  #onlyEnds(mask: TokenMask): boolean {
    const { eosTokenIds } = this.#parts
    if (this.#string !== undefined || eosTokenIds.every((id) => ((mask[id >> 5]! >>> (id & 31)) & 1) === 0))
      return false
    return mask.every((word, i) => {
      const ends = eosTokenIds.reduce((bits, id) => (id >> 5 === i ? bits | (1 << (id & 31)) : bits), 0)
      return (word & ~ends) === 0
    })
  }
}

function leftOf({ lengths, position }: CountedString): number | undefined {
  return lengths.max === undefined ? undefined : lengths.max - position.count
}

/** A trap of the WebAssembly code is the fault of the grammar that it was given, not of the engine. */
function guarded<T>(call: () => T): T {
  try {
    return call()
  } catch (cause) {
    throw unusable(String(cause), cause)
  }
}

function unusable(what: string, cause?: unknown): RefrainError {
  const message = `the grammar failed while it was used: ${what}`
  return new RefrainError('invalid_grammar', message, { param: 'response_format', cause })
}
