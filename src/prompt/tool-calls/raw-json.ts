// Reads the outermost members of a JSON object as the text that they were written in, which JSON.parse does not keep.

/** Raw text of each member's value by key, or undefined when `text` is not one JSON object. */
export function rawMembers(text: string): Map<string, string> | undefined {
  const trimmed = text.trim()
  if (!trimmed.startsWith('{') || !isJson(trimmed)) return undefined
  const members = new Map<string, string>()
  let at = 1
  for (;;) {
    at = skip(trimmed, at, /[\s,]*/y)
    if (trimmed[at] === '}') return members
    const keyEnd = skip(trimmed, at, STRING)
    const key = JSON.parse(trimmed.slice(at, keyEnd)) as string
    const start = skip(trimmed, keyEnd, /\s*:\s*/y)
    at = valueEnd(trimmed, start)
    members.set(key, trimmed.slice(start, at).trimEnd())
  }
}

/** Follows a growing JSON text: is a string open at its end? */
export class StringScan {
  #open = false
  #escaped = false

  /** Reads on; true when `text` ends inside of a string. */
  read(text: string): boolean {
    for (const char of text) {
      if (this.#escaped) this.#escaped = false
      else if (char === '"') this.#open = !this.#open
      else if (this.#open && char === '\\') this.#escaped = true
    }
    return this.#open
  }
}

const STRING = /"[^"\\]*(?:\\.[^"\\]*)*"/y

// Where the value that begins at `start` of valid JSON ends: at a comma or bracket of the enclosing object.
function valueEnd(text: string, start: number): number {
  let depth = 0
  for (let at = start; at < text.length; at++) {
    const char = text[at]!
    if (char === '"') at = skip(text, at, STRING) - 1
    else if (char === '{' || char === '[') depth++
    else if (char === '}' || char === ']') {
      if (depth === 0) return at
      depth--
    } else if (char === ',' && depth === 0) return at
  }
  return text.length
}

function skip(text: string, from: number, pattern: RegExp): number {
  pattern.lastIndex = from
  return pattern.test(text) ? pattern.lastIndex : from
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch (error) {
    if (error instanceof SyntaxError) return false
    throw error
  }
}
