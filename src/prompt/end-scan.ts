// Looks for the end of a marked part in text that comes in pieces. Invariant: each unit is looked at a bounded number of
// times however small the pieces are, and a closing tag inside of a region (a JSON string, a value in tags) is text.

import { partialTag } from './held-text.js'

export interface Look {
  /** Units of the text that are settled and need not be given again: up to the end and with its tag, if it was found. */
  readonly seen: number
  /** `broken`: this can't become what was looked for. */
  readonly state: 'open' | 'ended' | 'broken'
  /** Length of the closing tag at the end of what was seen. */
  readonly tag?: number
}

export interface EndScan {
  /** Looks through `text`: what was not `seen` before, and what came since. */
  look(text: string): Look
}

/** A stretch in which closing tags are text. In an `escaped` one a backslash takes the meaning of what follows it. */
export interface Region {
  readonly open: string
  readonly close: string
  readonly escaped?: true
}

export const JSON_STRING: Region = { open: '"', close: '"', escaped: true }

/** The tags that end a part, and the regions that they have no meaning in. */
export class EndTags {
  readonly #close: readonly string[]
  readonly #regions: readonly Region[]
  readonly #outside: RegExp
  readonly #outsideTags: readonly string[]

  /** `ahead`: what ends a part too, but belongs to what comes next. */
  constructor(close: readonly string[], regions: readonly Region[] = [], ahead: readonly string[] = []) {
    this.#close = close
    this.#regions = regions
    this.#outsideTags = [...close, ...ahead, ...regions.map(({ open }) => open)]
    this.#outside = anyOf(this.#outsideTags)
  }

  scan(): EndScan {
    let region: Region | undefined
    const outside = (text: string, from: number): Look | number => {
      this.#outside.lastIndex = from
      const found = this.#outside.exec(text)
      if (found === null) {
        return { seen: text.length - partialTag(text.slice(from), this.#outsideTags), state: 'open' }
      }
      const [tag] = found
      region = this.#regions.find(({ open }) => open === tag)
      if (region !== undefined) return found.index + tag.length
      const length = this.#close.includes(tag) ? tag.length : 0
      return { seen: found.index + length, state: 'ended', tag: length }
    }
    const inside = (text: string, from: number, { close, escaped }: Region): Look | number => {
      const end = escaped ? unescapedEnd(text, from, close) : text.indexOf(close, from)
      if (end >= 0) {
        region = undefined
        return end + close.length
      }
      const held = escaped ? -1 - end : partialTag(text.slice(from), [close])
      return { seen: text.length - held, state: 'open' }
    }
    return {
      look(text) {
        for (let at = 0; ; ) {
          const next = region === undefined ? outside(text, at) : inside(text, at, region)
          if (typeof next !== 'number') return next
          at = next
        }
      },
    }
  }
}

/** Where the one-unit tag `close` stands without a backslash before it; below 0: nowhere, -2 where a backslash is last. */
function unescapedEnd(text: string, from: number, close: string): number {
  for (let at = from; at < text.length; at++) {
    const unit = text[at]
    if (unit === close) return at
    if (unit === '\\' && ++at === text.length) return -2
  }
  return -1
}

/** Finds the first of `tags`, the longest where several begin; keeps its place (`g`). */
export function anyOf(tags: readonly string[]): RegExp {
  const sorted = [...tags].sort((a, b) => b.length - a.length)
  return new RegExp(sorted.map((tag) => tag.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')).join('|'), 'g')
}
