// Tool calls of gpt-oss: messages on the commentary channel with a function as their recipient. The reasoning format of the
// same name stands in front, reads all headers, and hands calls on in this one spelling. Source: the openai/harmony guide.
//
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

import { Type } from 'typebox'
import { EndTags, JSON_STRING } from '../end-scan.js'
import { jsonArguments, literal, repeated, sequence } from './call-structure.js'
import type { ToolCallFormat } from './contract.js'
import { FramedCalls } from './framed-calls.js'
import { objectText } from './raw-json.js'

const OPEN = '<|channel|>commentary to=functions.'
const MESSAGE = '<|message|>'
const CALL_END = '<|call|>'
/** The prompt ends so, and so does what stands between two calls of one answer. */
const START = '<|start|>assistant'
const END = new EndTags([CALL_END, '<|end|>', '<|return|>'], [JSON_STRING])
const HEAD = /^([^\s<>"{}]+)\s*(?:<\|constrain\|>)?\s*[\w-]*\s*$/

export const harmony: ToolCallFormat = {
  options: Type.Object({}),
  create: () =>
    new FramedCalls({
      format: 'harmony',
      // What begins the next message goes with its call.
      section: { open: [START], close: [] },
      open: [OPEN],
      lead: 0,
      end: () => END.scan(),
      read({ body }) {
        const at = body.indexOf(MESSAGE)
        const head = at < 0 ? null : HEAD.exec(body.slice(0, at))
        const text = body.slice(at + MESSAGE.length).trim()
        const argumentsText = objectText(text === '' ? '{}' : text)
        return head === null || argumentsText === undefined ? undefined : [{ name: head[1]!, arguments: argumentsText }]
      },
    }),
  specials: ['<|channel|>', '<|start|>', '<|end|>', MESSAGE, '<|constrain|>', CALL_END, '<|return|>'],
  trigger: OPEN,
  calls: (tools, count) =>
    repeated(tools, count, {
      one: (tool) => sequence(literal(`${OPEN}${tool.name} <|constrain|>json${MESSAGE}`), jsonArguments(tool)),
      separator: `${CALL_END}${START}`,
    }),
}
