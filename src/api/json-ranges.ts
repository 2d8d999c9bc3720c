// Where the values of a JSON text stand, so that tools, arguments and schemas travel on as they were sent: key order,
// spacing and number forms kept. For text that JSON.parse has accepted; on anything else it finds nothing, in linear
// time. Invariant: where a key is repeated the last one counts, as it does for JSON.parse.

/** Half-open: `text.slice(start, end)` is the value. */
export interface Range {
  readonly start: number
  readonly end: number
}

const QUOTE = 34
const BACKSLASH = 92
const COMMA = 44
const COLON = 58

interface Member extends Range {
  readonly key: string
  /** Where the quote of the key stands. */
  readonly keyStart: number
}

/** The members of the object that starts at or after `at`, by key; undefined when none starts there. */
export function memberRanges(text: string, at: number): Map<string, Range> | undefined {
  const members = membersOf(text, at)
  return members && new Map(members.map((member) => [member.key, member]))
}

function membersOf(text: string, at: number): Member[] | undefined {
  let i = skipSpace(text, at)
  if (text[i] !== '{') return undefined
  const members: Member[] = []
  i = skipSpace(text, i + 1)
  while (text.charCodeAt(i) === QUOTE) {
    const keyStart = i
    const keyEnd = skipString(text, i)
    const key = keyOf(text.slice(keyStart, keyEnd))
    i = skipSpace(text, keyEnd)
    if (text.charCodeAt(i) !== COLON || key === undefined) return members
    const start = skipSpace(text, i + 1)
    const end = skipValue(text, start)
    members.push({ key, keyStart, start, end })
    i = skipSpace(text, end)
    if (text.charCodeAt(i) !== COMMA) return members
    i = skipSpace(text, i + 1)
  }
  return members
}

/** The elements of the array that starts at or after `at`; undefined when none starts there. */
export function elementRanges(text: string, at: number): Range[] | undefined {
  let i = skipSpace(text, at)
  if (text[i] !== '[') return undefined
  const elements: Range[] = []
  i = skipSpace(text, i + 1)
  while (i < text.length && text[i] !== ']') {
    const end = skipValue(text, i)
    if (end === i) return elements
    elements.push({ start: i, end })
    i = skipSpace(text, end)
    if (text.charCodeAt(i) !== COMMA) return elements
    i = skipSpace(text, i + 1)
  }
  return elements
}

/** Raw values of one text by path. Every container on the way is scanned once, however many values are asked for. */
export class RawIndex {
  readonly text: string
  readonly #members = new Map<string, Map<string, Range> | undefined>()
  readonly #elements = new Map<string, Range[] | undefined>()

  constructor(text: string) {
    this.text = text
  }

  /** The raw text of the value at `path`; undefined when there is none. */
  at(path: readonly (string | number)[]): string | undefined {
    let range: Range | undefined = { start: skipSpace(this.text, 0), end: this.text.length }
    let name = ''
    for (const step of path) {
      if (range === undefined) return undefined
      range = typeof step === 'string' ? this.#membersAt(name, range)?.get(step) : this.#elementsAt(name, range)?.[step]
      name += typeof step === 'string' ? `.${JSON.stringify(step)}` : `[${step}]`
    }
    return range === undefined ? undefined : this.text.slice(range.start, range.end)
  }

  #membersAt(name: string, range: Range): Map<string, Range> | undefined {
    if (!this.#members.has(name)) this.#members.set(name, memberRanges(this.text, range.start))
    return this.#members.get(name)
  }

  #elementsAt(name: string, range: Range): Range[] | undefined {
    if (!this.#elements.has(name)) this.#elements.set(name, elementRanges(this.text, range.start))
    return this.#elements.get(name)
  }
}

/** The text of an object without its members called `key`; the others stay as they were written. */
export function withoutMember(object: string, key: string): string {
  const members = membersOf(object, 0) ?? []
  if (!members.some((member) => member.key === key)) return object
  let text = object.slice(0, members[0]?.keyStart)
  let isFirst = true
  members.forEach((member, i) => {
    if (member.key === key) return
    const from = isFirst || i === 0 ? member.keyStart : (members[i - 1] as Member).end
    text += object.slice(from, member.end)
    isFirst = false
  })
  return text + object.slice(members.at(-1)?.end)
}

/** How deep arrays and objects are nested in `text`, counted no further than `limit + 1`. */
export function depthOf(text: string, limit: number): number {
  let depth = 0
  let deepest = 0
  for (let i = 0; i < text.length; ) {
    const c = text.charCodeAt(i)
    if (c === QUOTE) {
      i = skipString(text, i)
      continue
    }
    if (opens(c)) deepest = Math.max(deepest, ++depth)
    else if (closes(c)) depth--
    if (deepest > limit) return deepest
    i++
  }
  return deepest
}

function keyOf(quoted: string): string | undefined {
  if (!quoted.includes('\\')) return quoted.slice(1, -1)
  try {
    return JSON.parse(quoted)
  } catch {
    return undefined
  }
}

function skipSpace(text: string, at: number): number {
  let i = at
  for (;;) {
    const c = text.charCodeAt(i)
    if (c !== 32 && c !== 10 && c !== 13 && c !== 9) return i
    i++
  }
}

/** The end of the string whose quote stands at `at`. */
function skipString(text: string, at: number): number {
  let i = at + 1
  for (;;) {
    const quote = text.indexOf('"', i)
    if (quote < 0) return text.length
    let before = quote - 1
    while (before >= i && text.charCodeAt(before) === BACKSLASH) before--
    if ((quote - before) % 2 === 1) return quote + 1
    i = quote + 1
  }
}

function skipValue(text: string, at: number): number {
  const first = text.charCodeAt(at)
  if (first === QUOTE) return skipString(text, at)
  let i = at
  let depth = 0
  while (i < text.length) {
    const c = text.charCodeAt(i)
    if (c === QUOTE) {
      i = skipString(text, i)
      continue
    }
    if (opens(c)) depth++
    else if (closes(c)) {
      if (depth === 0) return i
      if (--depth === 0) return i + 1
    } else if (depth === 0 && (c === COMMA || c === 32 || c === 10 || c === 13 || c === 9)) return i
    i++
  }
  return i
}

function opens(c: number): boolean {
  return c === 123 || c === 91
}

function closes(c: number): boolean {
  return c === 125 || c === 93
}
