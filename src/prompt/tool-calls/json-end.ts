// Finds the end of a JSON value in text that comes in pieces, by its brackets: for forms whose calls have no closing tag.

import type { EndScan, Look } from '../end-scan.js'
import { partialTag } from '../held-text.js'

/** Units that may stand before the value; a function's name and an id fit. */
const HEADER_UNITS = 400

const IN_VALUE = /["{}[\]]/g
const IN_STRING = /["\\]/g

/**
 * Ends behind the bracket that closes the first one. `depth`: brackets that are open already. `header`: tags that may
 * stand before the value and are no brackets of it.
 */
export function jsonEnd({
  depth = 0,
  header = [],
}: {
  readonly depth?: number
  readonly header?: readonly string[]
}): EndScan {
  let open = depth
  let inString = false
  let before = 0
  const value = (text: string, from: number): Look => {
    for (let at = from; ; ) {
      const pattern = inString ? IN_STRING : IN_VALUE
      pattern.lastIndex = at
      const found = pattern.exec(text)
      if (found === null) return { seen: text.length, state: 'open' }
      at = found.index + 1
      const unit = found[0]
      if (unit === '\\') {
        // What it takes the meaning of is still to come.
        if (at === text.length) return { seen: found.index, state: 'open' }
        at++
      } else if (unit === '"') inString = !inString
      else open += unit === '{' || unit === '[' ? 1 : -1
      if (open === 0) return { seen: at, state: 'ended' }
    }
  }
  return {
    look(text) {
      if (open > 0) return value(text, 0)
      for (let at = 0; at < text.length; at++) {
        const tag = header.find((candidate) => text.startsWith(candidate, at))
        if (tag !== undefined) at += tag.length - 1
        else if (partialTag(text.slice(at), header) === text.length - at) {
          before += at
          return { seen: at, state: 'open' }
        } else if (text[at] === '{' || text[at] === '[') return value(text, at)
        if (before + at >= HEADER_UNITS) return { seen: at, state: 'broken' }
      }
      before += text.length
      return { seen: text.length, state: 'open' }
    },
  }
}
