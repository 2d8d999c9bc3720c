// How template values become text: str() where a template prints, repr() inside printed containers, json.dumps() where it
// asks for JSON. Invariant: keys stay in their order and numbers keep the spelling that the client sent.

import { compareText, Float, isList, JsonDict, TemplateFault, Tuple, typeName, type Value } from './values.js'

/** Python's str(). Undefined prints nothing. */
export function str(value: Value): string {
  if (typeof value === 'string') return value
  return value === undefined ? '' : repr(value)
}

/** Python's repr(). */
export function repr(value: Value): string {
  if (typeof value === 'string') return quoted(value)
  if (value === undefined) return 'Undefined'
  if (value === null) return 'None'
  if (value === true) return 'True'
  if (value === false) return 'False'
  if (value instanceof Float) return spelled(value)
  if (value instanceof Tuple) return value.length === 1 ? `(${repr(value[0])},)` : `(${value.map(repr).join(', ')})`
  if (isList(value)) return `[${value.map(repr).join(', ')}]`
  if (value instanceof Map) return `{${[...value].map(([key, item]) => `${repr(key)}: ${repr(item)}`).join(', ')}}`
  if (typeof value === 'number' || typeof value === 'bigint') return String(value)
  return `<${typeName(value)}>`
}

export interface JsonStyle {
  /** Undefined: on one line. */
  readonly indent?: string
  readonly itemSeparator: string
  readonly keySeparator: string
  readonly sortKeys?: boolean
  readonly ensureAscii?: boolean
}

export const JSON_LINE: JsonStyle = { itemSeparator: ', ', keySeparator: ': ' }

/** json.dumps(); @throws TemplateFault for a value that JSON cannot hold. */
export function json(value: Value, style: JsonStyle = JSON_LINE, margin = '\n'): string {
  const printed = value instanceof JsonDict ? value.printed : undefined
  if (printed === undefined) return printJson(value, style, margin)
  const key = JSON.stringify([style, margin])
  const text = printed.get(key) ?? printJson(value, style, margin)
  printed.set(key, text)
  return text
}

function printJson(value: Value, style: JsonStyle, margin: string): string {
  if (value === null) return 'null'
  if (typeof value === 'boolean' || typeof value === 'number' || typeof value === 'bigint') return String(value)
  if (typeof value === 'string') return jsonString(value, style)
  if (value instanceof Float) return spelled(value)
  const inner = style.indent === undefined ? '' : margin + style.indent
  const end = style.indent === undefined ? '' : margin
  const innerMargin = margin + (style.indent ?? '')
  if (isList(value)) {
    if (value.length === 0) return '[]'
    return `[${inner}${value.map((item) => json(item, style, innerMargin)).join(style.itemSeparator + inner)}${end}]`
  }
  if (value instanceof Map) {
    if (value.size === 0) return '{}'
    const entries = [...value].map(([key, item]) => [str(key), item] as const)
    if (style.sortKeys === true) entries.sort(([a], [b]) => compareText(a, b))
    const fields = entries.map(
      ([key, item]) => `${jsonString(key, style)}${style.keySeparator}${json(item, style, innerMargin)}`,
    )
    return `{${inner}${fields.join(style.itemSeparator + inner)}${end}}`
  }
  throw new TemplateFault(`Object of type ${typeName(value)} is not JSON serializable`)
}

function jsonString(text: string, style: JsonStyle): string {
  const quotedText = JSON.stringify(text)
  if (style.ensureAscii !== true) return quotedText
  return quotedText.replace(/[\x7f-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

function spelled(float: Float): string {
  if (float.spelling !== undefined) return float.spelling
  if (!Number.isFinite(float.value)) return Number.isNaN(float.value) ? 'nan' : float.value > 0 ? 'inf' : '-inf'
  return Number.isInteger(float.value) && Math.abs(float.value) < 1e16 ? float.value.toFixed(1) : String(float.value)
}

const ESCAPES: Readonly<Record<string, string>> = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' }

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'"
  const escaped = text.replace(/[\\\n\r\t\x00-\x1f\x7f-\xa0\xad]|'/g, (char) => {
    if (char === "'") return quote === "'" ? "\\'" : char
    return ESCAPES[char] ?? `\\x${char.charCodeAt(0).toString(16).padStart(2, '0')}`
  })
  return quote + escaped + quote
}
