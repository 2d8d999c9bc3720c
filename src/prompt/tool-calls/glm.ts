// Tool calls of GLM: a name, then keys and values in tags. Types come from the tools' definitions. GLM-4.5 and 4.6 break
// lines between the tags, GLM-4.7 does not; both layouts are read. Source: the models' chat templates.
//
//   <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>value</arg_value>\n</tool_call>

import { Type } from 'typebox'
import { argumentParts, type TaggedParameter } from './argument-structure.js'
import { ArgumentTypes } from './argument-types.js'
import { literal, repeated, sequence } from './call-structure.js'
import type { ToolCallFormat } from './contract.js'
import { FramedCalls } from './framed-calls.js'
import { type TaggedForm, TaggedScan, taggedValues } from './tagged-values.js'

const [OPEN, CLOSE] = ['<tool_call>', '</tool_call>']
const [KEY, KEY_END] = ['<arg_key>', '</arg_key>']
const [VALUE, VALUE_END] = ['<arg_value>', '</arg_value>']

function formOf(format: string, lineBreak: string): ToolCallFormat {
  const parameter: TaggedParameter = {
    open: (key) => `${KEY}${key}${KEY_END}${lineBreak}${VALUE}`,
    openAny: [KEY, `${KEY_END}${lineBreak}${VALUE}`],
    close: VALUE_END,
    pad: '',
    after: lineBreak,
  }
  return {
    options: Type.Object({}),
    create(_, { tools }) {
      const types = new ArgumentTypes(tools)
      const form: TaggedForm = {
        end: CLOSE,
        open: VALUE,
        close: VALUE_END,
        isJson: (first, before) => types.areJson(HEAD.exec(first)?.[1], PAIR.exec(before)?.[1]),
      }
      return new FramedCalls({
        format,
        open: [OPEN],
        lead: 1,
        end: () => new TaggedScan(form),
        read({ body, closed }) {
          // Without its end, a name alone could be any word.
          const parts = closed ? partsOf(body, form) : undefined
          return parts && [{ name: parts.name, arguments: types.object(parts.name, parts.pairs) }]
        },
      })
    },
    specials: [OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END],
    trigger: OPEN,
    calls: (tools, count) =>
      repeated(tools, count, {
        one: (tool) =>
          sequence(literal(OPEN + tool.name + lineBreak), ...argumentParts(tool.schema, parameter), literal(CLOSE)),
        separator: lineBreak,
      }),
  }
}

export const glm = formOf('glm', '\n')
export const glm47 = formOf('glm-4.7', '')

const HEAD = /^\s*([^\s<>"'{}]+)\s*(?=$|<arg_key>)/
const PAIR = /\s*<arg_key>([^<]*)<\/arg_key>\s*<arg_value>$/

interface Parts {
  readonly name: string
  readonly pairs: readonly (readonly [name: string, text: string])[]
}

function partsOf(body: string, form: TaggedForm): Parts | undefined {
  const found = taggedValues(form, body)
  const first = found?.values[0]?.before ?? found?.tail
  const head = first === undefined ? null : HEAD.exec(first)
  if (found === undefined || head === null) return undefined
  const behindHead = (text: string, i: number) => (i === 0 ? text.slice(head[0].length) : text)
  const pairs = found.values.map(({ before }, i) => {
    const pair = PAIR.exec(behindHead(before, i))
    return pair?.index === 0 ? pair[1]!.trim() : undefined
  })
  if (behindHead(found.tail, pairs.length).trim() !== '' || !pairs.every((key) => key !== undefined)) return undefined
  return { name: head[1]!, pairs: pairs.map((key, i) => [key, found.values[i]!.text]) }
}
