// A stream on its way through, watched: where content begins, what usage says, whether it ends as it must. Invariant:
// whole events go on, in order and byte for byte; an unfinished one waits for its rest, so that an error may follow
// anywhere; nothing is parsed but the first events, and those that a byte search finds worth a look.

import { RemoteFault } from './contract.js'
import { completeUsage, joinUsage, type Usage } from './usage.js'
import type { Seen, Wire } from './wires.js'

export interface WatchOptions {
  readonly wire: Wire
  /** Choices that must be complete at the end. */
  readonly choices: number
  /** Usage was not asked for by the client: its event goes no further. */
  readonly hidesUsage: boolean
  /** Of an event that is not complete. */
  readonly heldBytes: number
  /** Content, whole events; the first time with all that came before it. */
  readonly onEvents: (bytes: Buffer) => void
  readonly onFirst: () => void
}

const LINE = 10
const RETURN = 13

export class StreamWatch {
  readonly #options: WatchOptions
  #held: Buffer | undefined
  #preamble: Buffer[] = []
  #preambleBytes = 0
  #finished = 0
  #told: Buffer[] = []
  #ended = false
  #usage: Usage | undefined
  begun = false

  constructor(options: WatchOptions) {
    this.#options = options
  }

  /** What was told so far; undefined where the length of the prompt was not. */
  get usage(): Usage | undefined {
    return this.#usage?.promptTokens === 0 ? undefined : this.#usage
  }

  /** @throws RemoteFault where the stream tells an error or is none. */
  add(chunk: Buffer): void {
    const bytes = this.#held === undefined ? chunk : Buffer.concat([this.#held, chunk])
    const cut = lastEventEnd(bytes)
    if (bytes.length - cut > this.#options.heldBytes) throw new RemoteFault('an event is too large', { sent: true })
    this.#held = cut === bytes.length ? undefined : bytes.subarray(cut)
    if (cut === 0) return
    const events = cut === bytes.length ? bytes : bytes.subarray(0, cut)
    try {
      this.#look(events)
    } finally {
      // What came before an error is told before it.
      this.#flush()
    }
  }

  /** The connection closed in good order. @throws RemoteFault where the stream is not complete. */
  end(): void {
    const { wire, choices, onEvents } = this.#options
    // Some servers leave out the last blank line; half an event is none.
    if (this.#held !== undefined && this.#isEvent(this.#held)) this.add(Buffer.from('\n\n'))
    if (this.#ended) return
    if (wire.ending === '' || this.#finished < choices) {
      throw new RemoteFault('the stream broke off', { sent: true })
    }
    onEvents(Buffer.from(wire.ending))
  }

  #isEvent(bytes: Buffer): boolean {
    const data = dataOf(bytes)
    return data !== undefined && this.#options.wire.see(data).what !== 'garbage'
  }

  /** Event by event until content has begun; from then on only at those that are worth it, the others go on as they are. */
  #look(events: Buffer): void {
    let at = 0
    while (at < events.length && !this.begun) at = this.#lookAt(events, at)
    if (at === events.length) return
    const { suspect } = this.#options.wire
    const text = events.toString('latin1')
    for (let from = at; ; ) {
      suspect.lastIndex = from
      const found = suspect.exec(text)
      if (found === null) break
      const start = eventStart(events, found.index, at)
      if (start > at) this.#tell(at === 0 && start === events.length ? events : events.subarray(at, start))
      at = this.#lookAt(events, start)
      from = at
    }
    if (at < events.length) this.#tell(at === 0 ? events : events.subarray(at))
  }

  /** Looks at the event that begins at `start`; gives where it ends. */
  #lookAt(events: Buffer, start: number): number {
    const end = eventEnd(events, start)
    const event = events.subarray(start, end)
    const data = dataOf(event)
    if (data === undefined) this.#pass(event)
    else this.#take(event, this.#options.wire.see(data))
    return end
  }

  /** What goes on, piece by piece; it is told as one. */
  #tell(bytes: Buffer): void {
    this.#told.push(bytes)
  }

  #flush(): void {
    const told = this.#told
    if (told.length === 0) return
    this.#told = []
    this.#options.onEvents(told.length === 1 ? (told[0] as Buffer) : Buffer.concat(told))
  }

  #take(event: Buffer, seen: Seen): void {
    this.#usage = joinUsage(this.#usage, seen.usage)
    this.#finished += seen.finished ?? 0
    switch (seen.what) {
      case 'error':
        throw new RemoteFault(seen.message ?? 'the backend told an error', {
          sent: true,
          code: String(seen.status ?? ''),
        })
      case 'garbage':
        if (!this.begun) throw new RemoteFault('the answer is no stream of this API', { sent: true })
        this.#tell(event)
        break
      case 'preamble':
        this.#pass(event)
        break
      case 'usage':
        if (!this.#options.hidesUsage) this.#content(this.#completed(event))
        break
      case 'ending':
        // In Responses the last event has the answer; elsewhere it says nothing.
        if (!this.begun && this.#options.wire.ending !== '')
          throw new RemoteFault('the stream is empty', { sent: true })
        this.#ended = true
        this.#content(event)
        break
      case 'content':
        this.#content(event)
    }
  }

  #completed(event: Buffer): Buffer {
    if (this.usage === undefined) return event
    const text = event.toString('utf8')
    const complete = completeUsage(text, this.usage)
    return complete === text ? event : Buffer.from(complete)
  }

  #content(event: Buffer): void {
    if (!this.begun) {
      this.begun = true
      this.#options.onFirst()
      for (const earlier of this.#preamble) this.#tell(earlier)
      this.#preamble = []
    }
    this.#tell(event)
  }

  /** What is no content goes on once content has begun; until then it may turn out to be another backend's to say. */
  #pass(event: Buffer): void {
    if (this.begun) {
      this.#tell(event)
      return
    }
    // Comments say that somebody lives; we say so ourselves.
    if (dataOf(event) === undefined) return
    this.#preambleBytes += event.length
    if (this.#preambleBytes > this.#options.heldBytes) throw new RemoteFault('nothing but preamble', { sent: true })
    this.#preamble.push(event)
  }
}

/** Behind the last blank line; 0 where there is none. */
function lastEventEnd(bytes: Buffer): number {
  const { length } = bytes
  if (bytes[length - 1] === LINE && isBlankAt(bytes, length - 1)) return length
  for (let at = length; at > 0; ) {
    const line = bytes.lastIndexOf(LINE, at - 1)
    if (line < 0) return 0
    if (isBlankAt(bytes, line)) return line + 1
    at = line
  }
  return 0
}

/** Behind the first blank line from `start` on. */
function eventEnd(bytes: Buffer, start: number): number {
  for (let at = start; ; ) {
    const line = bytes.indexOf(LINE, at)
    if (line < 0) return bytes.length
    if (line > start && isBlankAt(bytes, line)) return line + 1
    at = line + 1
  }
}

/** Where the event begins that `at` is in; `least` begins one. */
function eventStart(bytes: Buffer, at: number, least: number): number {
  for (let line = bytes.lastIndexOf(LINE, at - 1); line >= least; line = bytes.lastIndexOf(LINE, line - 1)) {
    if (line > least && isBlankAt(bytes, line)) return line + 1
    if (line === 0) break
  }
  return least
}

/** Whether the line that ends at `line` is empty. */
function isBlankAt(bytes: Buffer, line: number): boolean {
  const before = bytes[line - 1]
  return before === LINE || (before === RETURN && bytes[line - 2] === LINE)
}

const DATA = Buffer.from('data:')

/** The data of an event; several lines are joined as the standard says. Undefined: it has none. */
export function dataOf(event: Buffer): string | undefined {
  if (!event.includes(DATA)) return undefined
  const text = event.toString('utf8')
  // Nearly all are one line.
  const end = text.indexOf('\n')
  if (end === text.length - 2 && text.startsWith('data:') && text[end + 1] === '\n' && text[end - 1] !== '\r') {
    return text.slice(text[5] === ' ' ? 6 : 5, end)
  }
  const lines = text.split(/\r?\n/)
  const data = lines.filter((line) => line.startsWith('data:')).map((line) => line.slice(line[5] === ' ' ? 6 : 5))
  return data.length === 0 ? undefined : data.join('\n')
}
