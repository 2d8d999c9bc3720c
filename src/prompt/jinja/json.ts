// Parses a client's JSON for a template: keys in their order (JavaScript objects move integer keys to the front), numbers
// with their spelling (1.0 stays 1.0, long ints stay exact). Used for tool definitions and for arguments of tool calls.

import { Float, JsonDict, type Value } from './values.js'

/** Deepest nesting that is read; printing recurses, and no real schema comes near. */
const DEPTH = 200

/** The value of `text`, which no template can change. @throws SyntaxError for what is not JSON, or nested over 200 deep. */
export function parseJson(text: string): Value {
  // The platform's parser is the judge of what is JSON; below, only valid text is read.
  JSON.parse(text)
  const value = new Reader(text).value(0)
  if (value instanceof JsonDict) value.printed = new Map()
  return value
}

class Reader {
  readonly #text: string
  #at = 0

  constructor(text: string) {
    this.#text = text
  }

  value(depth: number): Value {
    if (depth > DEPTH) throw new SyntaxError(`JSON is nested deeper than ${DEPTH} levels`)
    this.#space()
    const first = this.#text[this.#at]
    if (first === '{') return this.#object(depth)
    if (first === '[') return this.#array(depth)
    if (first === '"') return this.#string()
    const word = this.#match(/[^\s,\]}]+/y)
    if (word === 'true') return true
    if (word === 'false') return false
    if (word === 'null') return null
    if (/[.eE]/.test(word)) return new Float(Number(word), word)
    const int = Number(word)
    return Number.isSafeInteger(int) ? int : BigInt(word)
  }

  #object(depth: number): JsonDict {
    const dict = new JsonDict()
    this.#at++
    for (this.#space(); this.#text[this.#at] !== '}'; this.#space()) {
      const key = this.#string()
      this.#space()
      this.#at++
      dict.set(key, this.value(depth + 1))
      this.#space()
      if (this.#text[this.#at] === ',') this.#at++
    }
    this.#at++
    return dict
  }

  #array(depth: number): readonly Value[] {
    const list: Value[] = []
    this.#at++
    for (this.#space(); this.#text[this.#at] !== ']'; this.#space()) {
      list.push(this.value(depth + 1))
      this.#space()
      if (this.#text[this.#at] === ',') this.#at++
    }
    this.#at++
    return Object.freeze(list)
  }

  #string(): string {
    return JSON.parse(this.#match(/"[^"\\]*(?:\\.[^"\\]*)*"/y)) as string
  }

  #space(): void {
    this.#match(/\s*/y)
  }

  #match(pattern: RegExp): string {
    pattern.lastIndex = this.#at
    const found = pattern.exec(this.#text)?.[0] ?? ''
    this.#at += found.length
    return found
  }
}
