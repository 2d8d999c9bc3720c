// Tool calls of Mistral in its three forms; any parser reads all of them, they differ in what the decoder is made to write.
// Ids are nine letters and digits: the model's own, or made from the call. Source: the models' chat templates.
//
//   mistral-v3   [TOOL_CALLS][{"name": "NAME", "arguments": {...}, "id": "nine00000"}, ...]     7B v0.3, Nemo
//   mistral-v11  [TOOL_CALLS]NAME[CALL_ID]nine00000[ARGS]{...}[TOOL_CALLS]...                   Small 3.2
//   mistral      [TOOL_CALLS]NAME[ARGS]{...}[TOOL_CALLS]...                                     Ministral 3

import { Type } from 'typebox'
import type { Structure } from '../../core/request.js'
import { nineId } from './call-id.js'
import { jsonArguments, literal, repeated, sequence } from './call-structure.js'
import type { CallableTool, ToolCallFormat } from './contract.js'
import { type CallFrame, type FoundCall, FramedCalls } from './framed-calls.js'
import { jsonEnd } from './json-end.js'
import { namedCall, objectText, rawElements } from './raw-json.js'

const OPEN = '[TOOL_CALLS]'
const ID = '[CALL_ID]'
const ARGUMENTS = '[ARGS]'
const NINE = /^[A-Za-z0-9]{9}$/
const NINE_CHARACTERS: Structure = { kind: 'regex', regex: '[A-Za-z0-9]{9}' }

function frame(format: string): CallFrame {
  const given = new Set<string>()
  return {
    format,
    open: [OPEN],
    lead: 0,
    end: () => jsonEnd({ header: [ID, ARGUMENTS] }),
    read: ({ body }) => read(body.trim()),
    id(call, { index, text }) {
      const id = call.id !== undefined && NINE.test(call.id) && !given.has(call.id) ? call.id : nineId(index, text)
      given.add(id)
      return id
    },
  }
}

function formOf(format: string, calls: ToolCallFormat['calls']): ToolCallFormat {
  return {
    options: Type.Object({}),
    create: () => new FramedCalls(frame(format)),
    specials: [OPEN, ID, ARGUMENTS],
    trigger: OPEN,
    calls,
  }
}

const tagged =
  (...id: readonly Structure[]) =>
  (tool: CallableTool): Structure =>
    sequence(literal(OPEN + tool.name), ...id, literal(ARGUMENTS), jsonArguments(tool))

export const mistral = formOf('mistral', (tools, count) => repeated(tools, count, { one: tagged(), separator: '' }))

export const mistralV11 = formOf('mistral-v11', (tools, count) =>
  repeated(tools, count, { one: tagged(literal(ID), NINE_CHARACTERS), separator: '' }),
)

export const mistralV3 = formOf('mistral-v3', (tools, count) =>
  sequence(
    literal(`${OPEN}[`),
    repeated(tools, count, {
      one: (tool) =>
        sequence(
          literal(`{"name": ${JSON.stringify(tool.name)}, "arguments": `),
          jsonArguments(tool),
          { kind: 'repeat', part: sequence(literal(', "id": "'), NINE_CHARACTERS, literal('"')), min: 0, max: 1 },
          literal('}'),
        ),
      separator: ', ',
    }),
    literal(']'),
  ),
)

function read(body: string): readonly FoundCall[] | undefined {
  if (body.startsWith('[') && !body.startsWith(ARGUMENTS)) {
    const calls = rawElements(body)?.map((element) => namedCall(element, 'arguments', 'parameters'))
    return calls?.every((call) => call !== undefined) ? calls : undefined
  }
  const value = body.indexOf('{')
  if (value < 0) return undefined
  const head = body.slice(0, value).trim()
  const [before, behind = ''] = head.split(ARGUMENTS)
  const [name, id] = before!.split(ID).map((part) => part.trim())
  const argumentsText = objectText(body.slice(value))
  if (name === undefined || !/^[^\s[\]"]+$/.test(name) || behind.trim() !== '' || argumentsText === undefined)
    return undefined
  return [{ name, arguments: argumentsText, ...(id === undefined ? {} : { id }) }]
}
