// The channels of gpt-oss: each message has a header with its channel and, for calls, a recipient. `analysis` is reasoning,
// all else is content; a call goes on as text in the one spelling that tool-calls/harmony.ts reads, whatever its header
// looked like. Invariant: bodies stream, headers are held. Source: the openai/harmony guide.
//
//   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.NAME
//   <|constrain|>json<|message|>{...}<|call|>

import { Type } from 'typebox'
import { type EndScan, EndTags, JSON_STRING } from '../end-scan.js'
import { partialTag } from '../held-text.js'
import type { ReasoningFormat, ReasoningParser, SplitText } from './contract.js'

const START = '<|start|>'
const CHANNEL = '<|channel|>'
const MESSAGE = '<|message|>'
const CALL_END = '<|call|>'
const ENDS = ['<|end|>', '<|return|>', CALL_END]
const TURN = `${START}assistant`

/** Units of a header; a function's name fits many times. */
const HEADER_UNITS = 1000

/** What a header ends with; all but the first show that it was none. */
const HEADER_END = new EndTags([MESSAGE], [], [...ENDS, START])
const RECIPIENT = 'to='

/** A body may lack its end where the next header begins. */
const TEXT_END = new EndTags(ENDS, [], [START, CHANNEL])
const CALL_BODY_END = new EndTags(ENDS, [JSON_STRING], [START])

export const harmony: ReasoningFormat = {
  options: Type.Object({}),
  specials: [START, CHANNEL, MESSAGE, '<|constrain|>', ...ENDS],
  opening: `${CHANNEL}analysis${MESSAGE}`,
  ending: `<|end|>${TURN}`,
  answerStart: `${CHANNEL}final${MESSAGE}`,
  begins(prompt) {
    const open = openTurn(prompt)
    if (open === undefined || open.trim() === '') return 'before'
    return parserIn(open).reasons ? 'inside' : 'behind'
  },
  create: (_, { prompt }) => parserIn(openTurn(prompt)),
}

/** What the prompt says behind the header of the turn that it leaves open; undefined: it leaves none open. */
function openTurn(prompt: string): string | undefined {
  const at = prompt.lastIndexOf(TURN)
  return at < 0 ? undefined : prompt.slice(at + TURN.length)
}

function parserIn(open: string | undefined): HarmonyParser {
  const parser = new HarmonyParser(open === undefined ? 'between' : 'turn')
  if (open !== undefined) parser.skip(open)
  return parser
}

type Part = 'reasoning' | 'content' | 'call'
/** `turn`: right behind the header that the prompt ends with, which a recipient may go on with. */
type State = 'turn' | 'between' | 'header' | 'body' | 'loose'

interface Out {
  reasoning: string
  content: string
}

class HarmonyParser implements ReasoningParser {
  #state: State
  #held = ''
  /** The header that is being read, as far as it is out of `#held`. */
  #header = ''
  #part: Part = 'content'
  #scan: EndScan | undefined
  /** Kinds of text that are out already: a further message of the kind begins on a new line. */
  readonly #said = new Set<Part>()
  #lineDue = false
  #messages = 0

  constructor(state: State) {
    this.#state = state
  }

  /** Whether the text that comes next is reasoning. */
  get reasons(): boolean {
    return this.#state === 'body' && this.#part === 'reasoning'
  }

  /** Reads what the prompt says already. */
  skip(text: string): void {
    this.push(text)
    this.#said.clear()
    this.#lineDue = false
    this.#messages = 0
  }

  push(text: string): SplitText {
    this.#held += text
    const out: Out = { reasoning: '', content: '' }
    while (this.#step(out)) {
      // Each round settles one tag.
    }
    return out
  }

  end(): SplitText {
    const out: Out = { reasoning: '', content: '' }
    const rest = this.#header + this.#take(this.#held.length)
    this.#header = ''
    if (this.#state === 'body') this.#say(rest, out)
    else if (!(this.#messages > 0 && isStartOfTurn(rest))) this.#loose(rest, out)
    return out
  }

  #step(out: Out): boolean {
    switch (this.#state) {
      case 'turn':
      case 'between':
        return this.#between(out)
      case 'header':
        return this.#readHeader(out)
      case 'body':
        return this.#readBody(out)
      case 'loose':
        return this.#readLoose(out)
    }
  }

  #between(out: Out): boolean {
    const text = this.#held.trimStart()
    const starts = this.#state === 'turn' ? [START, CHANNEL, RECIPIENT] : [START, CHANNEL]
    const found = starts.find((start) => text.startsWith(start))
    if (found === undefined) return starts.some((start) => start.startsWith(text)) ? false : this.#toLoose(out)
    this.#take(this.#held.length - text.length)
    this.#header = this.#take(found.length)
    this.#scan = HEADER_END.scan()
    this.#state = 'header'
    return true
  }

  #readHeader(out: Out): boolean {
    const { seen, state, tag = 0 } = this.#scan!.look(this.#held)
    const room = HEADER_UNITS - this.#header.length
    this.#header += this.#take(Math.min(seen - tag, room))
    if (seen - tag > room || (state === 'ended' && tag === 0)) return this.#toLoose(out)
    if (state !== 'ended') return false
    this.#take(tag)
    this.#openBody(this.#header, out)
    this.#header = ''
    return true
  }

  #openBody(header: string, out: Out): void {
    const recipient = /\bto=([^\s<]+)/.exec(header)?.[1]
    const channel = /<\|channel\|>\s*(\w*)/.exec(header)?.[1]
    const calls = recipient !== undefined && !['assistant', 'user', 'all'].includes(recipient)
    this.#part = calls ? 'call' : channel === 'analysis' ? 'reasoning' : 'content'
    this.#scan = (calls ? CALL_BODY_END : TEXT_END).scan()
    this.#state = 'body'
    this.#messages++
    if (calls) {
      const name = recipient.replace(/^functions\./, '')
      out.content += `${CHANNEL}commentary to=functions.${name} <|constrain|>json${MESSAGE}`
    } else this.#lineDue = this.#said.has(this.#part)
  }

  #readBody(out: Out): boolean {
    const { seen, state, tag = 0 } = this.#scan!.look(this.#held)
    this.#say(this.#take(seen - tag), out)
    this.#take(tag)
    if (state !== 'ended') return false
    if (this.#part === 'call') out.content += CALL_END
    this.#state = 'between'
    return true
  }

  // Text without a header is content, up to the next one.
  #readLoose(out: Out): boolean {
    const at = [this.#held.indexOf(START), this.#held.indexOf(CHANNEL)].filter((index) => index >= 0)
    const end = at.length > 0 ? Math.min(...at) : this.#held.length - partialTag(this.#held, [START, CHANNEL])
    this.#loose(this.#take(end), out)
    if (at.length > 0) this.#state = 'between'
    return at.length > 0
  }

  // A header that is none goes out whole, or its tag would be looked at again.
  #toLoose(out: Out): true {
    this.#loose(this.#header, out)
    this.#header = ''
    this.#state = 'loose'
    return true
  }

  #loose(text: string, out: Out): void {
    this.#part = 'content'
    this.#say(text, out)
  }

  #say(text: string, out: Out): void {
    if (text === '') return
    if (this.#part === 'call') {
      out.content += text
      return
    }
    out[this.#part] += this.#lineDue ? `\n${text}` : text
    this.#lineDue = false
    this.#said.add(this.#part)
  }

  /** Takes `length` units from the front of what is held. */
  #take(length: number): string {
    const taken = this.#held.slice(0, length)
    this.#held = this.#held.slice(length)
    return taken
  }
}

/** A turn that was begun and has nothing in it. */
function isStartOfTurn(text: string): boolean {
  return TURN.startsWith(text.trim())
}
