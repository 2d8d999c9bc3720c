// Names with `*` in them, as clients narrow what may be called: `browser_*`. Invariant: a pattern without `*` is that very
// name; looking a name up costs as much as there are patterns with `*`, of which there are few.

/** Patterns with `*` in one set at most; names are not counted. */
export const MAX_PATTERNS = 256

/** A set of names and patterns. */
export class NamePatterns {
  readonly #names: ReadonlySet<string>
  readonly #patterns: readonly string[]

  /** What is beyond `MAX_PATTERNS` is left out: who takes them from a client refuses them before. */
  constructor(list: readonly string[]) {
    this.#names = new Set(list.filter((each) => !isPattern(each)))
    this.#patterns = [...new Set(list.filter(isPattern))].slice(0, MAX_PATTERNS)
  }

  has(name: string): boolean {
    return this.#names.has(name) || this.#patterns.some((pattern) => matchesPattern(pattern, name))
  }
}

/** Whether `name` fits `pattern`, in which `*` stands for any run of characters and nothing else is special. */
export function matchesPattern(pattern: string, name: string): boolean {
  const [head = '', ...rest] = pattern.split('*')
  if (rest.length === 0) return pattern === name
  if (!name.startsWith(head)) return false
  const tail = rest.pop() as string
  let at = head.length
  for (const part of rest) {
    const found = name.indexOf(part, at)
    if (found < 0) return false
    at = found + part.length
  }
  return name.length - tail.length >= at && name.endsWith(tail)
}

export function isPattern(name: string): boolean {
  return name.includes('*')
}
