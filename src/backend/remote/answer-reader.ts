// Answers of HTTP/1.1 out of the bytes of a connection: status line and headers, then a body by its length, in chunks, or up
// to the close. Invariant: what is ambiguous (two lengths, a folded line, a coding that is not chunks) is a fault, never a
// guess; behind the end of an answer nothing is read. Bytes that are told are copies: the buffer is read into again.

import { headerName } from '../../core/header-text.js'
import { type Incoming, type IncomingHeaders, RemoteFault } from './contract.js'

/** Of a head, and of what stands behind the last chunk. */
const HEAD_BYTES = 65_536
/** More digits than a body can have. */
const SIZE_DIGITS = 12

const HEAD = 0
const LENGTH = 1
const SIZE = 2
const SIZE_REST = 3
const CHUNK = 4
const CHUNK_END = 5
const TRAILER = 6
const UNTIL_CLOSE = 7
const DONE = 8

const RETURN = 13
const LINE = 10
const SEMICOLON = 59
const HEAD_END = Buffer.from('\r\n\r\n')

export class AnswerReader {
  #state = DONE
  #into: Incoming | undefined
  /** A beginning of a head. */
  #held: Buffer | undefined
  /** Bytes that are missing of the body, or of this chunk. */
  #left = 0
  #digits = 0
  /** Of the line that is read behind the chunks. */
  #lineBytes = 0
  #trailerBytes = 0
  #isHead = false
  /** Whether another request may follow on the connection. */
  keepsAlive = false
  /** Milliseconds that the server keeps an idle connection; undefined: it does not say. */
  idleMs: number | undefined
  /** Whether any byte came. */
  begun = false

  /** An answer to a request of `method` comes next. */
  begin(method: string, into: Incoming): void {
    this.#state = HEAD
    this.#into = into
    this.#held = undefined
    this.#isHead = method === 'HEAD'
    this.#trailerBytes = 0
    this.begun = false
  }

  get done(): boolean {
    return this.#state === DONE
  }

  /** Nothing more is told. */
  stop(): void {
    this.#state = DONE
    this.#into = undefined
  }

  /**
   * Takes what came; `bytes` is written to. False: something stands behind the end of the answer.
   * @throws RemoteFault where it is no HTTP.
   */
  read(bytes: Buffer): boolean {
    this.begun = true
    let at = 0
    let all = bytes
    if (this.#state === HEAD) {
      if (this.#held !== undefined) all = Buffer.concat([this.#held, bytes])
      at = this.#heads(all)
      if (this.#state === HEAD) {
        if (all.length - at > HEAD_BYTES) throw broken('its head is too large')
        this.#held = Buffer.from(all.subarray(at))
        return true
      }
      this.#held = undefined
    }
    return this.#body(all, at)
  }

  /** The connection is closed. True: that is how the answer ends. */
  closed(): boolean {
    if (this.#state !== UNTIL_CLOSE) return false
    this.#end()
    return true
  }

  // --- heads ---------------------------------------------------------------------------------------------------------

  /** Reads heads up to that of the answer; gives where what was read ends. */
  #heads(bytes: Buffer): number {
    for (let at = 0; ; ) {
      const end = bytes.indexOf(HEAD_END, at)
      if (end < 0) return at
      if (end - at > HEAD_BYTES) throw broken('its head is too large')
      const isLast = this.#head(bytes.toString('latin1', at, end))
      at = end + 4
      if (isLast) return at
    }
  }

  /** False: it is a word in between (100, 103). */
  #head(text: string): boolean {
    const lineEnd = text.indexOf('\r\n')
    const line = lineEnd < 0 ? text : text.slice(0, lineEnd)
    const status = statusOf(line)
    if (status === undefined) throw broken('it does not begin as an answer of HTTP/1.1')
    if (status === 101) throw broken('it changes the protocol')
    if (status < 200) return false
    const headers = lineEnd < 0 ? {} : headersIn(text, lineEnd + 2)
    this.#frame(status, headers, line.charCodeAt(7) === 49)
    this.#into?.head(status, headers)
    if (this.#state === LENGTH && this.#left === 0) this.#end()
    return true
  }

  /** How long the body is, and whether the connection goes on behind it. */
  #frame(status: number, headers: IncomingHeaders, isNew: boolean): void {
    const { connection, 'transfer-encoding': coding, 'content-length': length, 'keep-alive': idle } = headers
    const says = typeof connection === 'string' ? connection.toLowerCase() : ''
    this.keepsAlive = isNew ? !says.includes('close') : says.includes('keep-alive')
    this.idleMs = idle === undefined ? undefined : idleOf(String(idle))
    if (this.#isHead || status === 204 || status === 304) {
      this.#left = 0
      this.#state = LENGTH
    } else if (coding !== undefined) {
      if (String(coding).toLowerCase() !== 'chunked') throw broken(`its coding is ${String(coding)}`)
      // Who sends both may mean either: RFC 9112, 6.3.
      if (length !== undefined) this.keepsAlive = false
      this.#size()
    } else if (length !== undefined) {
      if (typeof length !== 'string' || !/^\d{1,15}$/.test(length)) throw broken('its length is no number')
      this.#left = Number(length)
      this.#state = LENGTH
    } else {
      this.#state = UNTIL_CLOSE
      this.keepsAlive = false
    }
  }

  // --- bodies --------------------------------------------------------------------------------------------------------

  #body(bytes: Buffer, start: number): boolean {
    let at = start
    const rest = bytes.length - at
    if (this.#state === UNTIL_CLOSE) {
      if (rest > 0) this.#into?.data(Buffer.from(bytes.subarray(at)))
      return true
    }
    if (this.#state === LENGTH) {
      const taken = Math.min(this.#left, rest)
      this.#left -= taken
      if (taken > 0) this.#into?.data(Buffer.from(bytes.subarray(at, at + taken)))
      at += taken
      if (this.#state === LENGTH && this.#left === 0) this.#end()
      return at === bytes.length
    }
    return this.#state === DONE ? rest === 0 : this.#chunks(bytes, at)
  }

  /** Chunks are moved together where they stand, and told as one. */
  #chunks(bytes: Buffer, start: number): boolean {
    const { length } = bytes
    let at = start
    let from = start
    let to = start
    while (at < length && this.#state !== DONE && !this.#isOver) {
      if (this.#state === CHUNK) {
        const taken = Math.min(this.#left, length - at)
        if (to === from) from = to = at
        if (to !== at) bytes.copyWithin(to, at, at + taken)
        to += taken
        at += taken
        this.#left -= taken
        if (this.#left === 0) this.#state = CHUNK_END
      } else this.#mark(bytes[at++] as number)
    }
    if (to > from) this.#into?.data(Buffer.from(bytes.subarray(from, to)))
    if (this.#isOver && this.#state !== DONE) this.#end()
    return at === length
  }

  #isOver = false

  /** One byte of what stands between chunks. @throws RemoteFault */
  #mark(byte: number): void {
    switch (this.#state) {
      case SIZE: {
        const digit = digitOf(byte)
        if (digit >= 0) {
          if (++this.#digits > SIZE_DIGITS) throw broken('a chunk is too large')
          this.#left = this.#left * 16 + digit
          return
        }
        if (this.#digits === 0 || (byte !== RETURN && byte !== SEMICOLON && byte !== 32)) {
          throw broken('a chunk has no size')
        }
        this.#state = SIZE_REST
        this.#lineBytes = 0
        return
      }
      case SIZE_REST:
        if (++this.#lineBytes > HEAD_BYTES) throw broken('a chunk has no size')
        if (byte !== LINE) return
        if (this.#left > 0) this.#state = CHUNK
        else {
          this.#state = TRAILER
          this.#lineBytes = 0
        }
        return
      case CHUNK_END:
        if (byte === RETURN) return
        if (byte !== LINE) throw broken('a chunk does not end')
        this.#size()
        return
      default:
        if (++this.#trailerBytes > HEAD_BYTES) throw broken('what stands behind it is too large')
        if (byte === LINE) {
          if (this.#lineBytes === 0) this.#isOver = true
          this.#lineBytes = 0
        } else if (byte !== RETURN) this.#lineBytes++
    }
  }

  #size(): void {
    this.#state = SIZE
    this.#left = 0
    this.#digits = 0
    this.#isOver = false
  }

  #end(): void {
    const into = this.#into
    this.stop()
    into?.end()
  }
}

function broken(what: string): RemoteFault {
  return new RemoteFault(`the answer is no HTTP/1.1: ${what}`, { sent: true })
}

/** `HTTP/1.1 200 OK` */
function statusOf(line: string): number | undefined {
  const isOurs = line.startsWith('HTTP/1.') && line.charCodeAt(8) === 32 && (line.length === 12 || line[12] === ' ')
  const minor = line.charCodeAt(7)
  if (!isOurs || (minor !== 48 && minor !== 49)) return undefined
  const status = Number(line.slice(9, 12))
  return Number.isInteger(status) && status >= 100 && status < 1000 ? status : undefined
}

/** @throws RemoteFault */
function headersIn(text: string, start: number): IncomingHeaders {
  const headers: Record<string, string | string[]> = {}
  for (let at = start; at < text.length; ) {
    const end = text.indexOf('\r\n', at)
    const stop = end < 0 ? text.length : end
    const colon = text.indexOf(':', at)
    if (colon < 0 || colon >= stop) throw broken('a header has no colon')
    const name = headerName(text.slice(at, colon))
    if (name === undefined) throw broken('a header has no name')
    const value = text.slice(colon + 1, stop).trim()
    at = stop + 2
    if (name === '') continue
    const before = headers[name]
    if (before === undefined) headers[name] = value
    else if (name === 'content-length' && before === value) headers[name] = value
    else if (typeof before === 'string') headers[name] = [before, value]
    else before.push(value)
  }
  return headers
}

function digitOf(byte: number): number {
  if (byte >= 48 && byte <= 57) return byte - 48
  const letter = byte | 32
  return letter >= 97 && letter <= 102 ? letter - 87 : -1
}

/** `timeout=5, max=100` */
function idleOf(header: string): number | undefined {
  const seconds = /timeout\s*=\s*(\d{1,6})/i.exec(header)?.[1]
  return seconds === undefined ? undefined : Number(seconds) * 1000
}
