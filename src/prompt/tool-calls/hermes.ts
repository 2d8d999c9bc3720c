// Tool calls in the Hermes form: <tool_call>{"name": ..., "arguments": ...}</tool_call> in the text (Hermes, Qwen, and the
// fallback of tool-fallback.ts). Invariant: the one line break that templates put before a call is no content, so an
// answer that comes back in the history is rendered as it was generated.
//
// A call is held until its end tag: its id is a hash of its whole text, and half a call could not be taken back.

import { createHash } from 'node:crypto'
import { Type } from 'typebox'
import type { CallDelta } from '../../core/events.js'
import type { Structure } from '../../core/request.js'
import { partialTag } from '../held-text.js'
import type { CallableTool, ParsedText, ToolCallFormat, ToolCallParser } from './contract.js'
import { rawMembers, StringScan } from './raw-json.js'

const OPEN = '<tool_call>'
const CLOSE = '</tool_call>'
const STARTS = [OPEN, `\n${OPEN}`]

export const hermes: ToolCallFormat = {
  options: Type.Object({}),
  create: createHermesParser,
  specials: [],
  trigger: OPEN,
  calls: (tools, { min, max }) => ({
    kind: 'repeat',
    part: { kind: 'choice', parts: tools.map(callForm) },
    min,
    ...(max === undefined ? {} : { max }),
    separator: '\n',
  }),
}

function callForm({ name, schema }: CallableTool): Structure {
  return {
    kind: 'sequence',
    parts: [
      { kind: 'literal', text: `${OPEN}\n{"name": ${JSON.stringify(name)}, "arguments": ` },
      schema === undefined ? { kind: 'json' } : { kind: 'json-schema', schema },
      { kind: 'literal', text: `}\n${CLOSE}` },
    ],
  }
}

export function createHermesParser(): ToolCallParser {
  return new HermesParser()
}

interface Out {
  content: string
  readonly calls: CallDelta[]
}

interface OpenCall {
  text: string
  /** Where in `text` the JSON begins. */
  readonly body: number
  readonly strings: StringScan
}

class HermesParser implements ToolCallParser {
  /** Text that is not looked through yet, or that may be the start of a tag. */
  #held = ''
  /** The call that is being read, its open tag included; undefined outside of a call. */
  #call: OpenCall | undefined
  #calls = 0
  /** White space before the first word, or after a call: content only if a word follows. */
  #blank: string | undefined = ''

  push(text: string): ParsedText {
    this.#held += text
    const out: Out = { content: '', calls: [] }
    while (this.#call === undefined ? this.#findOpen(out) : this.#findClose(out, this.#call)) {
      // Each round settles one tag.
    }
    return out
  }

  end(): ParsedText {
    const out: Out = { content: '', calls: [] }
    const text = (this.#call?.text ?? '') + this.#held
    const call = this.#call === undefined ? undefined : this.#parse(text.slice(this.#call.body))
    if (call !== undefined) out.calls.push(call)
    else this.#release(text, out)
    if (this.#calls === 0) out.content += this.#blank ?? ''
    this.#held = ''
    this.#call = undefined
    this.#blank = ''
    return out
  }

  #findOpen(out: Out): boolean {
    const at = this.#held.indexOf(OPEN)
    if (at < 0) {
      this.#release(this.#take(this.#held.length - partialTag(this.#held, STARTS)), out)
      return false
    }
    const start = this.#held[at - 1] === '\n' ? at - 1 : at
    this.#release(this.#take(start), out)
    const text = this.#take(at - start + OPEN.length)
    this.#call = { text, body: text.length, strings: new StringScan() }
    return true
  }

  // What was looked through moves to the call's text, which is joined only when the call is over.
  #findClose(out: Out, call: OpenCall): boolean {
    const at = this.#held.indexOf(CLOSE)
    const seen = this.#take(at < 0 ? this.#held.length - partialTag(this.#held, [CLOSE]) : at)
    const inString = call.strings.read(seen)
    call.text += seen
    if (at < 0) return false
    const tag = this.#take(CLOSE.length)
    if (inString) {
      // The tag is part of an argument.
      call.strings.read(tag)
      call.text += tag
      return true
    }
    const parsed = this.#parse(call.text.slice(call.body))
    if (parsed === undefined) {
      this.#release(call.text + tag, out)
    } else {
      out.calls.push(parsed)
      this.#blank = ''
    }
    this.#call = undefined
    return true
  }

  /** Takes `length` units from the front of what is held. */
  #take(length: number): string {
    const taken = this.#held.slice(0, length)
    this.#held = this.#held.slice(length)
    return taken
  }

  #parse(text: string): CallDelta | undefined {
    const members = rawMembers(text)
    const name = members?.get('name')
    const argumentsText = objectText(members?.get('arguments') ?? '{}')
    if (name === undefined || !name.startsWith('"') || name === '""' || argumentsText === undefined) return undefined
    const index = this.#calls++
    const id = `call_${createHash('sha256').update(`${index}\n${text}`).digest('hex').slice(0, 24)}`
    return { index, id, name: JSON.parse(name) as string, argumentsDelta: argumentsText }
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

// Arguments are an object; some models write that object as a string.
function objectText(raw: string): string | undefined {
  if (raw.startsWith('{')) return raw
  if (!raw.startsWith('"')) return undefined
  const inner = JSON.parse(raw) as string
  return rawMembers(inner) === undefined ? undefined : inner
}
