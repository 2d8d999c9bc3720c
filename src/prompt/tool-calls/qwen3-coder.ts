// Tool calls in tags, each parameter in its own (Qwen3-Coder, Qwen3.5; with other outer tags Seed-OSS). Types come from the
// tools' definitions. Source: the models' chat templates.
//
//   <tool_call>\n<function=NAME>\n<parameter=KEY>\nvalue\n</parameter>\n</function>\n</tool_call>

import { Type } from 'typebox'
import { argumentParts, type TaggedParameter } from './argument-structure.js'
import { ArgumentTypes } from './argument-types.js'
import { literal, repeated, sequence } from './call-structure.js'
import type { ToolCallFormat } from './contract.js'
import { FramedCalls, type HeldCall } from './framed-calls.js'
import { type TaggedForm, TaggedScan, taggedValues } from './tagged-values.js'

const FUNCTION = '<function='
const FUNCTION_END = '</function>'
const PARAMETER = '<parameter='
const PARAMETER_END = '</parameter>'

/** Line breaks around values are part of the form, where it has any. */
function formOf(
  name: string,
  { outer, lineBreak }: { readonly outer: string; readonly lineBreak: string },
): ToolCallFormat {
  const [open, close] = [`<${outer}>`, `</${outer}>`]
  const parameter: TaggedParameter = {
    open: (key) => `${PARAMETER}${key}>${lineBreak}`,
    openAny: [PARAMETER, `>${lineBreak}`],
    close: PARAMETER_END,
    pad: lineBreak,
    after: '\n',
  }
  return {
    options: Type.Object({}),
    create(_, { tools }) {
      const types = new ArgumentTypes(tools)
      const form: TaggedForm = {
        end: close,
        open: PARAMETER,
        openEnd: '>',
        close: PARAMETER_END,
        isJson: (first, before) => types.areJson(HEAD.exec(first)?.[1], NAME_AT_END.exec(before)?.[1]),
      }
      return new FramedCalls({
        format: name,
        open: [open],
        starts: () => [FUNCTION],
        lead: 2,
        end: () => new TaggedScan(form),
        read(call) {
          const parts = partsOf(call, form)
          return parts && [{ name: parts.name, arguments: types.object(parts.name, parts.pairs) }]
        },
      })
    },
    specials: [open, close],
    trigger: open,
    calls: (tools, count) =>
      repeated(tools, count, {
        one: (tool) =>
          sequence(
            literal(`${open}\n${FUNCTION}${tool.name}>\n`),
            ...argumentParts(tool.schema, parameter),
            literal(`${FUNCTION_END}\n${close}`),
          ),
        separator: '\n',
      }),
  }
}

export const qwen3Coder = formOf('qwen3-coder', { outer: 'tool_call', lineBreak: '\n' })
export const seed = formOf('seed', { outer: 'seed:tool_call', lineBreak: '' })

interface Parts {
  readonly name: string
  readonly pairs: readonly (readonly [name: string, text: string])[]
}

const HEAD = /^\s*<function=([^<>\n]+)>/
const NAME_AT_END = /<parameter=([^<>\n]+)>$/
const NAME = /^\s*<parameter=([^<>\n]+)>$/

function partsOf({ body, closed }: HeldCall, form: TaggedForm): Parts | undefined {
  const found = taggedValues(form, body)
  const first = found?.values[0]?.before ?? found?.tail
  const head = first === undefined ? null : HEAD.exec(first)
  if (found === undefined || head === null) return undefined
  const behindHead = (text: string, i: number) => (i === 0 ? text.slice(head[0].length) : text)
  const names = found.values.map(({ before }, i) => NAME.exec(behindHead(before, i))?.[1]?.trim())
  const rest = behindHead(found.tail, found.values.length).trim()
  // The function's end may be forgotten where the outer one was not.
  if (rest !== FUNCTION_END && !(closed && rest === '')) return undefined
  if (!names.every((name) => name !== undefined)) return undefined
  return { name: head[1]!.trim(), pairs: names.map((name, i) => [name, withoutBreaks(found.values[i]!.text)]) }
}

function withoutBreaks(text: string): string {
  const start = text.startsWith('\n') ? 1 : 0
  return text.slice(start, text.length > start && text.endsWith('\n') ? -1 : undefined)
}
