// The head of a request as nearly all clients write it: POST, HTTP/1.1, a length, each header once. Invariant: whatever is
// unusual, let alone ambiguous, is not read here but left to Node's parser; nothing is guessed.

import { headerName, isHeaderValue } from '../core/header-text.js'

export interface Head {
  /** With the query. */
  readonly url: string
  /** Names in lower case. The same object for heads of one connection that say the same. */
  readonly headers: Readonly<Record<string, string>>
  /** Of the body. */
  readonly length: number
  /** The client wants no other answer on the connection. */
  readonly closes: boolean
  /** Behind the blank line. */
  readonly end: number
}

/** Node's own limit is 16 KiB, which it tells. */
const HEAD_BYTES = 8192
const HEAD_END = Buffer.from('\r\n\r\n')
const POST = Buffer.from('POST /')

const URL = /^\/[\x21-\x7e]*$/
const LENGTH = /^\d{1,15}$/
const LENGTH_NAME = 'content-length'

/** They change how a body is read, or what the connection is for. */
const UNUSUAL = new Set(['transfer-encoding', 'expect', 'upgrade', 'proxy-connection', 'set-cookie', 'trailer', 'te'])

/** Reads heads of one connection, which are much alike. */
export class HeadReader {
  /** The text of the last head, up to the digits of its length and behind them. */
  #front = ''
  #back = ''
  #last: Omit<Head, 'length' | 'end'> | undefined

  /** Undefined: it is not for us, or not here yet. */
  read(bytes: Buffer): Head | undefined {
    if (bytes.length < POST.length || bytes.compare(POST, 0, POST.length, 0, POST.length) !== 0) return undefined
    const stop = bytes.indexOf(HEAD_END)
    if (stop < 0 || stop > HEAD_BYTES) return undefined
    const text = bytes.toString('latin1', 0, stop)
    const end = stop + HEAD_END.length
    return this.#known(text, end) ?? this.#read(text, end)
  }

  #known(text: string, end: number): Head | undefined {
    const last = this.#last
    if (last === undefined || !text.startsWith(this.#front) || !text.endsWith(this.#back)) return undefined
    const from = this.#front.length
    const to = text.length - this.#back.length
    if (to <= from || to - from > 15) return undefined
    let length = 0
    for (let i = from; i < to; i++) {
      const digit = text.charCodeAt(i) - 48
      if (digit < 0 || digit > 9) return undefined
      length = length * 10 + digit
    }
    return { url: last.url, headers: last.headers, closes: last.closes, length, end }
  }

  #read(text: string, end: number): Head | undefined {
    const lineEnd = text.indexOf('\r\n')
    const line = lineEnd < 0 ? text : text.slice(0, lineEnd)
    if (lineEnd < 0 || !line.endsWith(' HTTP/1.1')) return undefined
    const url = line.slice('POST '.length, -' HTTP/1.1'.length)
    if (!URL.test(url)) return undefined
    const headers: Record<string, string> = {}
    // It differs from request to request, and is told apart.
    let length: string | undefined
    let lengthAt = 0
    for (let at = lineEnd + 2; at < text.length; ) {
      const next = text.indexOf('\r\n', at)
      const stop = next < 0 ? text.length : next
      const colon = text.indexOf(':', at)
      if (colon < 0 || colon > stop) return undefined
      const name = headerName(text.slice(at, colon))
      if (name === undefined || name === '' || name in headers || UNUSUAL.has(name)) return undefined
      const value = text.slice(colon + 1, stop)
      if (!isHeaderValue(value)) return undefined
      if (name === LENGTH_NAME) {
        if (length !== undefined) return undefined
        length = trimmed(value)
        lengthAt = colon + 1 + value.indexOf(length)
      } else headers[name] = trimmed(value)
      at = stop + 2
    }
    const { host, connection } = headers
    if (length === undefined || !LENGTH.test(length) || host === undefined || host === '') return undefined
    const says = connection === undefined ? 'keep-alive' : connection.toLowerCase()
    if (says !== 'keep-alive' && says !== 'close') return undefined
    this.#last = { url, headers, closes: says === 'close' }
    this.#front = text.slice(0, lengthAt)
    this.#back = text.slice(lengthAt + length.length)
    return { url, headers, closes: this.#last.closes, length: Number(length), end }
  }
}

/** Without the blanks around it: of these two kinds alone. */
function trimmed(value: string): string {
  let start = 0
  let end = value.length
  while (start < end && isBlank(value.charCodeAt(start))) start++
  while (end > start && isBlank(value.charCodeAt(end - 1))) end--
  return value.slice(start, end)
}

function isBlank(c: number): boolean {
  return c === 32 || c === 9
}
