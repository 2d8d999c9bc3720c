// Values as Python's str() prints them, which some templates show models in the history: read where JSON is asked for.

const WORDS: ReadonlyMap<string, string> = new Map([
  ['True', 'true'],
  ['False', 'false'],
  ['None', 'null'],
])

const PART = /'([^'\\]*(?:\\[\s\S][^'\\]*)*)'|"([^"\\]*(?:\\[\s\S][^"\\]*)*)"|[A-Za-z]+|[^'"A-Za-z]+|['"]/g
const ESCAPE = /\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([\s\S]))/g
const SIMPLE: Readonly<Record<string, string>> = { n: '\n', r: '\r', t: '\t', '\n': '' }

/** `text` with Python's words and strings written as JSON's; what comes out is JSON only if `text` was a value. */
export function jsonOfPython(text: string): string {
  return text.replace(PART, (part, single: string | undefined, double: string | undefined) => {
    const inner = single ?? double
    return inner === undefined ? (WORDS.get(part) ?? part) : JSON.stringify(unescaped(inner))
  })
}

function unescaped(text: string): string {
  return text.replace(ESCAPE, (_, byte: string | undefined, unit: string | undefined, other: string) => {
    const code = byte ?? unit
    return code === undefined ? (SIMPLE[other] ?? other) : String.fromCharCode(Number.parseInt(code, 16))
  })
}
