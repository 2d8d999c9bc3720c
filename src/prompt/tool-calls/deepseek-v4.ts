// Tool calls of DeepSeek V4 and V3.2, in tags of their own: each parameter says whether it is a string, so types need no
// definition. The two differ in the name of the block; either parser reads both. Source: the models' chat templates.
//
//   <｜DSML｜tool_calls>\n<｜DSML｜invoke name="NAME">\n<｜DSML｜parameter name="KEY" string="true">value</｜DSML｜parameter>\n
//   </｜DSML｜invoke>\n</｜DSML｜tool_calls>

import { Type } from 'typebox'
import type { Structure } from '../../core/request.js'
import { argumentParts, type TaggedParameter } from './argument-structure.js'
import { ArgumentTypes, valueText } from './argument-types.js'
import { literal, repeated, sequence } from './call-structure.js'
import type { CallableTool, ToolCallFormat } from './contract.js'
import { type FoundCall, FramedCalls } from './framed-calls.js'
import { isJson, rawMembers } from './raw-json.js'
import { type TaggedForm, TaggedScan, taggedValues } from './tagged-values.js'

const MARK = '｜DSML｜'
const BLOCKS = ['tool_calls', 'function_calls']
const INVOKE = `<${MARK}invoke name="`
const INVOKE_END = `</${MARK}invoke>`
const PARAMETER = `<${MARK}parameter `
const PARAMETER_END = `</${MARK}parameter>`

const PARAMETER_FORM: TaggedParameter = {
  open: (key, value) => `${PARAMETER}name="${key}" string="${value === 'text'}">`,
  openAny: [`${PARAMETER}name="`, '" string="true">'],
  close: PARAMETER_END,
  pad: '',
  after: '\n',
}

/** `empty`: what stands in place of arguments where a call has none. */
function formOf(format: string, block: string, empty: string): ToolCallFormat {
  const [open, close] = [`<${MARK}${block}>`, `</${MARK}${block}>`]
  return {
    options: Type.Object({}),
    create(_, { tools }) {
      const types = new ArgumentTypes(tools)
      const form: TaggedForm = {
        end: INVOKE_END,
        open: PARAMETER,
        openEnd: '>',
        close: PARAMETER_END,
        isJson(first, before) {
          const [, key, isString] = NAME.exec(before) ?? []
          return isString === undefined ? types.areJson(HEAD.exec(first)?.[1], key) : isString === 'false'
        },
      }
      return new FramedCalls({
        format,
        section: { open: BLOCKS.map((name) => `<${MARK}${name}>`), close: BLOCKS.map((name) => `</${MARK}${name}>`) },
        open: [INVOKE],
        lead: 2,
        end: () => new TaggedScan(form),
        read: ({ body }) => read(body, form, types),
      })
    },
    specials: [MARK],
    trigger: open,
    calls: (tools, count) =>
      sequence(
        literal(`${open}\n`),
        repeated(tools, count, {
          one: (tool) =>
            sequence(literal(`${INVOKE}${tool.name}">\n`), ...argumentsOf(tool, empty), literal(`${INVOKE_END}\n`)),
          separator: '',
        }),
        literal(close),
      ),
  }
}

export const deepseekV4 = formOf('deepseek-v4', 'tool_calls', '\n')
export const deepseekV32 = formOf('deepseek-v3.2', 'function_calls', '')

function argumentsOf({ schema }: CallableTool, empty: string): readonly Structure[] {
  const parts = argumentParts(schema, PARAMETER_FORM)
  return parts.length > 0 ? parts : [literal(empty)]
}

const HEAD = /^([^"<>\n]+)"\s*>/
const NAME = new RegExp(`<${MARK}parameter\\s+name="([^"\\n]*)"(?:\\s+string="(true|false)")?\\s*>$`)

function read(body: string, form: TaggedForm, types: ArgumentTypes): readonly FoundCall[] | undefined {
  const head = HEAD.exec(body)
  if (head === null) return undefined
  const name = head[1]!
  const rest = body.slice(head[0].length).trim()
  // Now and then it writes all arguments as one object.
  if (rest.startsWith('{') && rawMembers(rest) !== undefined) return [{ name, arguments: rest }]
  const found = taggedValues(form, body)
  if (found === undefined) return undefined
  const behindHead = (text: string, i: number) => (i === 0 ? text.slice(head[0].length) : text).trim()
  const members = found.values.map(({ before, text }, i) => {
    const tag = NAME.exec(behindHead(before, i))
    if (tag?.index !== 0) return undefined
    const [, key, isString] = tag
    return `${JSON.stringify(key)}: ${announcedText(text, isString) ?? valueText(text, types.kindsOf(name, key!))}`
  })
  if (behindHead(found.tail, members.length) !== '' || members.includes(undefined)) return undefined
  return [{ name, arguments: `{${members.join(', ')}}` }]
}

/** Undefined: what the attribute says does not hold, or it is absent. */
function announcedText(text: string, isString: string | undefined): string | undefined {
  if (isString === 'true') return JSON.stringify(text)
  return isString === 'false' && isJson(text) ? text.trim() : undefined
}
