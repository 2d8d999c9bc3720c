// Cuts text at the tokens that are spelled out in it (<|im_start|> and the like), before anything else looks at it.
// Invariant: the leftmost match wins, the longest of those; what lies between is tokenized on its own, which is what
// makes tokenizer.ts's memo by segment exact.

/** A token that is matched as a whole, in front of all merging. */
export interface AddedToken {
  readonly id: number
  readonly content: string
  /** Control token: it has no text of its own. */
  readonly special: boolean
  /** Swallows the white space before it, after it. */
  readonly lstrip: boolean
  readonly rstrip: boolean
}

interface Node {
  readonly children: Map<number, Node>
  token: AddedToken | undefined
}

/** A token in a text. */
export interface FoundToken {
  readonly token: AddedToken
  /** Where the text behind it begins. */
  readonly end: number
}

/** Splits by one set of tokens; built once, a trie over UTF-16 units behind an expression that finds their first ones. */
export class SpecialSplitter {
  readonly #root: Node = { children: new Map(), token: undefined }
  /** Finds the next unit that any token starts with. */
  readonly #start: RegExp | undefined
  /** Units of the longest token. */
  readonly longest: number

  constructor(tokens: Iterable<AddedToken>) {
    let longest = 0
    for (const token of tokens) {
      let node = this.#root
      for (let i = 0; i < token.content.length; i++) {
        const unit = token.content.charCodeAt(i)
        const child = node.children.get(unit) ?? { children: new Map(), token: undefined }
        node.children.set(unit, child)
        node = child
      }
      if (node === this.#root) continue
      node.token = token
      longest = Math.max(longest, token.content.length)
    }
    this.longest = longest
    const starts = Array.from(this.#root.children.keys(), (unit) => `\\u${unit.toString(16).padStart(4, '0')}`)
    if (starts.length > 0) this.#start = new RegExp(`[${starts.join('')}]`, 'g')
  }

  /** Segments of plain text (never empty) and tokens of `text` behind `from`, in order. */
  split(text: string, from = 0): (string | FoundToken)[] {
    const parts: (string | FoundToken)[] = []
    let start = from
    for (let at = this.#nextStart(text, from); at >= 0; ) {
      const token = this.#longestAt(text, at)
      if (token === undefined) {
        at = this.#nextStart(text, at + 1)
        continue
      }
      const before = token.lstrip ? text.slice(start, at).trimEnd() : text.slice(start, at)
      if (before !== '') parts.push(before)
      start = at + token.content.length
      if (token.rstrip) start = text.length - text.slice(start).trimStart().length
      parts.push({ token, end: start })
      at = this.#nextStart(text, start)
    }
    if (start < text.length) parts.push(text.slice(start))
    return parts
  }

  #nextStart(text: string, from: number): number {
    if (this.#start === undefined) return -1
    this.#start.lastIndex = from
    return this.#start.test(text) ? this.#start.lastIndex - 1 : -1
  }

  #longestAt(text: string, start: number): AddedToken | undefined {
    let node: Node | undefined = this.#root
    let found: AddedToken | undefined
    for (let at = start; at < text.length; at++) {
      node = node.children.get(text.charCodeAt(at))
      if (node === undefined) break
      if (node.token !== undefined) found = node.token
    }
    return found
  }
}
