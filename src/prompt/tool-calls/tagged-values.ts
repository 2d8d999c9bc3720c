// Reads calls whose values stand between tags, in text that comes in pieces. Invariant: inside of a value only its own
// closing tag has a meaning, and inside of a JSON value not even that one while a string is open.
//
//   NAME … <open …>value</close> … <open …>value</close> … end of the call
//   └──── before ───┘      └── before ──┘               └ tail ┘

import { type EndScan, EndTags, JSON_STRING, type Look } from '../end-scan.js'

export interface TaggedForm {
  /** What the call ends with. */
  readonly end: string
  /** What leads to a value, up to and with `openEnd`. */
  readonly open: string
  /** Undefined: `open` is all of it. */
  readonly openEnd?: string
  readonly close: string
  /** Whether the value behind `before` is JSON, by what was asked for; `first` is what stands before the call's first one. */
  isJson(first: string, before: string): boolean
}

export interface TaggedValue {
  readonly before: string
  readonly text: string
}

type State = 'outside' | 'open' | 'begin' | 'value'

export class TaggedScan implements EndScan {
  readonly values: TaggedValue[] = []
  /** What stands behind the last value, as far as it was looked through. */
  tail = ''
  readonly #form: TaggedForm
  readonly #outside: EndTags
  readonly #openEnd: EndTags
  #state: State = 'outside'
  #scan: EndScan
  #text = ''

  constructor(form: TaggedForm) {
    this.#form = form
    this.#outside = new EndTags([form.end, form.open])
    this.#openEnd = new EndTags([form.openEnd ?? ''])
    this.#scan = this.#outside.scan()
  }

  look(text: string): Look {
    for (let at = 0; ; ) {
      if (this.#state === 'begin') {
        const start = /^\s*([[{]\s*)?/.exec(text.slice(at))!
        const next = text[at + start[0].length]
        if (next === undefined) return { seen: at, state: 'open' }
        // A list that begins so is Python's.
        this.#openValue(start[1] !== undefined && next !== "'")
      }
      const { seen, state, tag = 0 } = this.#scan.look(text.slice(at))
      const piece = text.slice(at, at + seen)
      at += seen
      if (state !== 'ended') {
        this.#add(piece)
        return { seen: at, state }
      }
      const found = piece.slice(piece.length - tag)
      if (this.#state === 'outside' && found === this.#form.end) {
        this.#add(piece.slice(0, piece.length - tag))
        return { seen: at, state: 'ended', tag }
      }
      this.#pass(piece, tag)
    }
  }

  /** A tag within the call is over. */
  #pass(piece: string, tag: number): void {
    if (this.#state === 'value') {
      this.#add(piece.slice(0, piece.length - tag))
      this.values.push({ before: this.tail, text: this.#text })
      this.#text = ''
      this.tail = ''
      this.#go('outside', this.#outside)
      return
    }
    this.#add(piece)
    if (this.#state === 'outside' && this.#form.openEnd !== undefined) this.#go('open', this.#openEnd)
    else this.#state = 'begin'
  }

  /** A value that does not look like JSON is text, whatever was asked for: the quotes in it may not be in pairs. */
  #openValue(looksJson: boolean): void {
    const json = looksJson && this.#form.isJson(this.values[0]?.before ?? this.tail, this.tail)
    this.#go('value', new EndTags([this.#form.close], json ? [JSON_STRING] : []))
  }

  #go(state: State, tags: EndTags): void {
    this.#state = state
    this.#scan = tags.scan()
  }

  #add(piece: string): void {
    if (this.#state === 'value') this.#text += piece
    else this.tail += piece
  }
}

/** The parts of a whole call; undefined: one of its values has no end. */
export function taggedValues(
  form: TaggedForm,
  body: string,
): { values: readonly TaggedValue[]; tail: string } | undefined {
  const scan = new TaggedScan(form)
  // The end is the caller's, and what is no tag yet can't become one.
  const { state } = scan.look(body + form.end)
  return state === 'ended' ? { values: scan.values, tail: scan.tail } : undefined
}
