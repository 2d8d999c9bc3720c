// Reads the outermost members of a JSON object or array as the text that they were written in, which JSON.parse does
// not keep, and the shapes that calls have in JSON.

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

/** Raw text of each element, or undefined when `text` is not one JSON array. */
export function rawElements(text: string): string[] | undefined {
  const trimmed = text.trim()
  if (!trimmed.startsWith('[') || !isJson(trimmed)) return undefined
  const elements: string[] = []
  for (let at = 1; ; ) {
    at = skip(trimmed, at, /[\s,]*/y)
    if (trimmed[at] === ']') return elements
    const end = valueEnd(trimmed, at)
    elements.push(trimmed.slice(at, end).trimEnd())
    at = end
  }
}

/**
 * A call that is written as an object with a name and arguments under one of `keys`; undefined when `text` is none. No
 * arguments are an empty object; some models write the object as a string.
 */
export function namedCall(
  text: string,
  ...keys: readonly string[]
): { name: string; arguments: string; id?: string } | undefined {
  const members = rawMembers(text)
  if (members === undefined) return undefined
  const name = stringOf(members.get('name'))
  const key = keys.find((candidate) => members.has(candidate))
  const argumentsText = objectText(key === undefined ? '{}' : members.get(key)!)
  if (name === undefined || name === '' || argumentsText === undefined) return undefined
  const id = stringOf(members.get('id'))
  return { name, arguments: argumentsText, ...(id === undefined ? {} : { id }) }
}

/** The raw text of a JSON object, or of the one in a JSON string; undefined: it is neither. */
export function objectText(raw: string): string | undefined {
  const inner = raw.startsWith('"') ? stringOf(raw) : raw
  return inner === undefined || rawMembers(inner) === undefined ? undefined : inner
}

function stringOf(raw: string | undefined): string | undefined {
  return raw?.startsWith('"') && isJson(raw) ? (JSON.parse(raw) as string) : undefined
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

export function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch (error) {
    if (error instanceof SyntaxError) return false
    throw error
  }
}
