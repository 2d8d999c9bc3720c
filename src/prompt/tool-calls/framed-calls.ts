// The part that all parsers share: finds the tags that frame calls, holds a call until its end, and lets its form read it.
// Invariant: every unit leaves once: in a call that was read, or as content in its order. A call is held whole, because
// its id may be a hash of its whole text, and half a call could not be taken back.
//
//   text ──section tag──▶ between calls ──call tag──▶ start ──▶ call ──end──▶ between calls (or text, without sections)

import type { CallDelta } from '../../core/events.js'
import { note } from '../../core/signals.js'
import { anyOf, type EndScan } from '../end-scan.js'
import { partialTag } from '../held-text.js'
import { hashedId } from './call-id.js'
import type { ParsedText, ToolCallParser } from './contract.js'

export interface FoundCall {
  readonly name: string
  /** Raw JSON text of an object. */
  readonly arguments: string
  /** The id that the model wrote. */
  readonly id?: string
}

/** A call's text between its tags, as it is given to its form. */
export interface HeldCall {
  /** The tag that it began with. */
  readonly tag: string
  readonly body: string
  /** False: the text was over before its end. */
  readonly closed: boolean
  /** It began in the middle of content, outside of any section. */
  readonly inText: boolean
}

export interface CallFrame {
  /** The format's name, for the log. */
  readonly format: string
  /** Tags around a run of calls; `atStart`: the answer begins as if the first one had been there. */
  readonly section?: { readonly open: readonly string[]; readonly close: readonly string[]; readonly atStart?: true }
  /** What a call begins with. */
  readonly open: readonly string[]
  /** What a call begins with outside of a section, where that differs. */
  readonly openInText?: readonly string[]
  /** What may follow the tag of a call, behind white space; anything else shows that the tag was only spoken of. */
  starts?(tag: string): readonly string[]
  /** Line breaks that templates put before the first tag; they are no content. */
  readonly lead: number
  /** What stands between the calls of a section, beside white space. */
  readonly separator?: string
  end(tag: string): EndScan
  /** Undefined: it can't be read. */
  read(call: HeldCall): readonly FoundCall[] | undefined
  /** Undefined: a hash of the call's text. */
  id?(call: FoundCall, place: { readonly index: number; readonly text: string }): string
}

interface Out {
  content: string
  readonly calls: CallDelta[]
}

interface OpenCall {
  readonly tag: string
  readonly inText: boolean
  /** All of it, with what leads to it. */
  text: string
  /** Where in `text` its body begins. */
  readonly body: number
  readonly scan: EndScan
}

type State = 'text' | 'section' | 'start' | 'call'

export class FramedCalls implements ToolCallParser {
  readonly #frame: CallFrame
  readonly #textTags: readonly string[]
  readonly #textTag: RegExp
  readonly #sectionTags: readonly string[]
  readonly #between: RegExp
  #state: State
  /** Text that is not settled yet. */
  #held = ''
  /** Tags and space that go with the next call: dropped if it can be read, content if not. */
  #pending = ''
  /** Whether the section's open tag went with a call, so that its close tag goes too. */
  #framed = false
  #call: OpenCall | undefined
  #calls = 0
  #mayCall: (name: string) => boolean = () => true
  /** White space before the first word, or after a call: content only if a word follows. */
  #blank: string | undefined = ''

  constructor(frame: CallFrame) {
    this.#frame = frame
    const { section, open, openInText = open } = frame
    this.#textTags = [...(section?.open ?? []), ...openInText]
    this.#textTag = anyOf(this.#textTags)
    this.#sectionTags = [...(section?.open ?? []), ...(section?.close ?? []), ...open]
    this.#between = frame.separator === undefined ? /^\s*/ : new RegExp(`^[\\s${frame.separator}]*`)
    this.#state = section?.atStart === true ? 'section' : 'text'
  }

  narrow(mayCall: (name: string) => boolean): void {
    this.#mayCall = mayCall
  }

  push(text: string): ParsedText {
    this.#held += text
    const out: Out = { content: '', calls: [] }
    while (this.#step(out)) {
      // Each round settles one tag.
    }
    return out
  }

  end(): ParsedText {
    const out: Out = { content: '', calls: [] }
    const rest = this.#take(this.#held.length)
    if (this.#call !== undefined) {
      this.#call.text += rest
      this.#settle(out, this.#call, undefined)
    } else {
      // White space behind a call is no content, unless something follows.
      const lost = this.#framed && this.#state === 'section' && rest === '' && this.#pending.trim() === ''
      if (!lost) this.#release(this.#pending + rest, out)
    }
    if (this.#calls === 0) out.content += this.#blank ?? ''
    this.#pending = ''
    this.#blank = ''
    return out
  }

  // True: the state changed and what is held has to be looked at again.
  #step(out: Out): boolean {
    if (this.#state === 'text') return this.#findTag(out)
    if (this.#state === 'section') return this.#findNext(out)
    const call = this.#call!
    return this.#state === 'start' ? this.#start(out, call) : this.#findEnd(out, call)
  }

  #findTag(out: Out): boolean {
    this.#textTag.lastIndex = 0
    const found = this.#textTag.exec(this.#held)
    const upTo = found?.index ?? this.#held.length - partialTag(this.#held, this.#textTags)
    let start = upTo
    while (upTo - start < this.#frame.lead && this.#held[start - 1] === '\n') start--
    this.#release(this.#take(start), out)
    if (found === null) return false
    const [tag] = found
    this.#pending = this.#take(upTo - start)
    if (this.#frame.section?.open.includes(tag)) this.#openSection(tag)
    else this.#openCall(tag, true)
    return true
  }

  #findNext(out: Out): boolean {
    const { section, open } = this.#frame
    this.#pending += this.#take(this.#between.exec(this.#held)![0].length)
    if (this.#held === '') return false
    const tag = this.#sectionTags.find((candidate) => this.#held.startsWith(candidate))
    if (tag === undefined && this.#sectionTags.some((candidate) => candidate.startsWith(this.#held))) return false
    if (tag !== undefined && open.includes(tag)) {
      this.#openCall(tag, false)
    } else if (tag !== undefined && section?.open.includes(tag)) {
      this.#openSection(tag)
    } else {
      const closing = tag === undefined ? '' : this.#take(tag.length)
      if (closing === '' || !this.#framed) this.#release(this.#pending + closing, out)
      this.#pending = ''
      this.#framed = false
      this.#state = 'text'
    }
    return true
  }

  #openSection(tag: string): void {
    this.#pending += this.#take(tag.length)
    this.#framed = false
    this.#state = 'section'
  }

  #openCall(tag: string, inText: boolean): void {
    const text = this.#pending + this.#take(tag.length)
    this.#pending = ''
    this.#call = { tag, inText, text, body: text.length, scan: this.#frame.end(tag) }
    this.#state = 'start'
  }

  #start(out: Out, call: OpenCall): boolean {
    const starts = this.#frame.starts?.(call.tag)
    if (starts !== undefined) {
      call.text += this.#take(/^\s*/.exec(this.#held)![0].length)
      if (starts.some((start) => start.length > this.#held.length && start.startsWith(this.#held))) return false
      if (!starts.some((start) => this.#held.startsWith(start))) return this.#fail(out, call.text)
    }
    this.#state = 'call'
    return true
  }

  // What was looked through moves to the call's text, which is joined only when the call is over.
  #findEnd(out: Out, call: OpenCall): boolean {
    const { seen, state, tag = 0 } = call.scan.look(this.#held)
    call.text += this.#take(seen)
    if (state === 'broken') return this.#fail(out, call.text)
    if (state === 'ended') this.#settle(out, call, tag)
    return state === 'ended'
  }

  /** `closeLength` undefined: the text was over before the call's end. */
  #settle(out: Out, call: OpenCall, closeLength: number | undefined): void {
    const { tag, inText, text } = call
    const body = text.slice(call.body, text.length - (closeLength ?? 0))
    const found = this.#frame.read({ tag, body, closed: closeLength !== undefined, inText })
    if (found === undefined || found.length === 0 || !found.every(({ name }) => this.#mayCall(name))) {
      this.#fail(out, text)
      return
    }
    for (const one of found) {
      const index = this.#calls++
      const id = this.#frame.id?.(one, { index, text: body }) ?? hashedId(index, body)
      out.calls.push({ index, id, name: one.name, argumentsDelta: one.arguments })
    }
    this.#blank = ''
    this.#framed = true
    this.#after()
  }

  #fail(out: Out, text: string): true {
    note.publish({
      level: 'warn',
      text: `text that looks like a tool call in the form '${this.#frame.format}' can't be read or may not be made; it is content`,
    })
    this.#release(text, out)
    this.#framed = false
    this.#after()
    return true
  }

  #after(): void {
    this.#call = undefined
    const { section } = this.#frame
    // A run that is opened by one tag for each answer has no other place for a call than behind a call.
    this.#state = section === undefined || (!this.#framed && section.atStart === true) ? 'text' : 'section'
  }

  /** Takes `length` units from the front of what is held. */
  #take(length: number): string {
    const taken = this.#held.slice(0, length)
    this.#held = this.#held.slice(length)
    return taken
  }

  #release(text: string, out: Out): void {
    if (this.#blank === undefined) {
      out.content += text
      return
    }
    this.#blank += text
    if (this.#blank.trim() === '') return
    out.content += this.#blank
    this.#blank = undefined
  }
}
