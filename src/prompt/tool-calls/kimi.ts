// Tool calls of Kimi K2: a section of calls, each with its id, which names the function and counts the calls. The id is
// kept as the model wrote it, because the template renders it again. Source: the models' chat templates.
//
//   <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>…

import { Type } from 'typebox'
import { EndTags, JSON_STRING } from '../end-scan.js'
import { jsonArguments, literal, repeated, sequence } from './call-structure.js'
import type { ToolCallFormat } from './contract.js'
import { type FoundCall, FramedCalls } from './framed-calls.js'
import { objectText } from './raw-json.js'

const SECTION = '<|tool_calls_section_begin|>'
const SECTION_END = '<|tool_calls_section_end|>'
const CALL = '<|tool_call_begin|>'
const ARGUMENTS = '<|tool_call_argument_begin|>'
const CALL_END = '<|tool_call_end|>'
const END = new EndTags([CALL_END], [JSON_STRING])

export const kimi: ToolCallFormat = {
  options: Type.Object({}),
  create() {
    const given = new Set<string>()
    return new FramedCalls({
      format: 'kimi',
      section: { open: [SECTION], close: [SECTION_END] },
      open: [CALL],
      lead: 0,
      end: () => END.scan(),
      read: ({ body }) => read(body),
      id(call, { index }) {
        const id = call.id !== undefined && !given.has(call.id) ? call.id : freeId(call.name, index, given)
        given.add(id)
        return id
      },
    })
  },
  specials: [SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END],
  trigger: SECTION,
  calls: (tools, count) =>
    sequence(
      literal(SECTION),
      repeated(tools, count, {
        one: (tool) =>
          sequence(
            literal(`${CALL}functions.${tool.name}:`),
            { kind: 'regex', regex: '(0|[1-9][0-9]{0,5})' },
            literal(ARGUMENTS),
            jsonArguments(tool),
            literal(CALL_END),
          ),
        separator: '',
      }),
      literal(SECTION_END),
    ),
}

const ID = /^(?:functions\.)?([^\s<>"{}]+?)(:\d+)?$/

function read(body: string): readonly FoundCall[] | undefined {
  const at = body.indexOf(ARGUMENTS)
  if (at < 0) return undefined
  const id = body.slice(0, at).trim()
  const [, name, count] = ID.exec(id) ?? []
  const text = body.slice(at + ARGUMENTS.length).trim()
  const argumentsText = objectText(text === '' ? '{}' : text)
  if (name === undefined || argumentsText === undefined) return undefined
  return [{ name, arguments: argumentsText, ...(count === undefined ? {} : { id }) }]
}

/** As the template counts: from the call's place on, past what the model used itself. */
function freeId(name: string, index: number, given: ReadonlySet<string>): string {
  for (let count = index; ; count++) {
    const id = `functions.${name}:${count}`
    if (!given.has(id)) return id
  }
}
