// Finds stop strings in text that arrives in pieces. Invariant: what comes out does not depend on how the text was cut
// into pieces; no character of a stop string that matches is ever visible, and nothing is held back that cannot become one.
//
//   stops: ["\nUser:"]      push("Hi.\nUs") -> "Hi."     push("er") -> ""     push(": yes") -> "", stopped "\nUser:"
//                                                        push("ing") -> "\nUsing"

export interface StopStep {
  /** Text that can be shown now. */
  readonly visible: string
  /** The stop string that was found. Nothing after it is looked at. */
  readonly stopped?: string
}

export interface StopScanner {
  push(text: string): StopStep
  /** The text that is still held back, when nothing more will come. */
  end(): string
}

/** One stop string, matched by Knuth, Morris and Pratt's algorithm: `fallback[i]` is the longest border of its first i characters. */
interface Pattern {
  readonly text: string
  readonly fallback: Int32Array
  /** How many of its characters the text so far ends with. */
  matched: number
}

/**
 * A scanner for `stops`; empty ones are left out. As if characters came one by one: the first string that is complete
 * wins, the longest of those that are complete at once.
 */
export function createStopScanner(stops: readonly string[]): StopScanner {
  const patterns = stops.filter((stop) => stop !== '').map(patternOf)
  if (patterns.length === 0) return { push: (visible) => ({ visible }), end: () => '' }
  let held = ''
  return {
    push(text) {
      const all = held + text
      for (let i = held.length; i < all.length; i++) {
        const found = longestComplete(patterns, all.charCodeAt(i))
        if (found === undefined) continue
        held = ''
        return { visible: all.slice(0, i + 1 - found.length), stopped: found }
      }
      const keep = Math.max(...patterns.map((pattern) => pattern.matched))
      held = all.slice(all.length - keep)
      return { visible: all.slice(0, all.length - keep) }
    },
    end() {
      const rest = held
      held = ''
      return rest
    },
  }
}

/** Takes every pattern one character further; returns the longest stop string that ends with it. */
function longestComplete(patterns: readonly Pattern[], unit: number): string | undefined {
  let found: string | undefined
  for (const pattern of patterns) {
    const { text, fallback } = pattern
    let { matched } = pattern
    while (matched > 0 && text.charCodeAt(matched) !== unit) matched = fallback[matched]!
    if (text.charCodeAt(matched) === unit) matched++
    pattern.matched = matched
    if (matched === text.length && text.length > (found?.length ?? 0)) found = text
  }
  return found
}

function patternOf(text: string): Pattern {
  const fallback = new Int32Array(text.length + 1)
  for (let i = 1, border = 0; i < text.length; i++) {
    while (border > 0 && text[border] !== text[i]) border = fallback[border]!
    if (text[border] === text[i]) border++
    fallback[i + 1] = border
  }
  return { text, fallback, matched: 0 }
}
