// Tool calls of Llama 3.1 to 3.3: the answer is a JSON object with name and parameters, several joined by `;`, perhaps
// behind <|python_tag|>. An object in the middle of an answer is a call only of a tool that there is, for a model may show
// JSON. Source: the models' chat templates.

import { Type } from 'typebox'
import { jsonArguments, literal, repeated, sequence } from './call-structure.js'
import type { ToolCallFormat } from './contract.js'
import { FramedCalls, type HeldCall } from './framed-calls.js'
import { jsonEnd } from './json-end.js'
import { namedCall, rawMembers } from './raw-json.js'

const PYTHON = '<|python_tag|>'
const IN_TEXT = '{"name"'
/** Keys that a call may begin with. */
const FIRST_KEYS = ['"name"', '"parameters"', '"arguments"', '"type"', '"id"']

export const llama3Json: ToolCallFormat = {
  options: Type.Object({}),
  create: (_, { tools }) =>
    new FramedCalls({
      format: 'llama3-json',
      section: { open: [PYTHON], close: [], atStart: true },
      open: ['{'],
      openInText: [IN_TEXT],
      starts: (tag) => (tag === IN_TEXT ? [':'] : FIRST_KEYS),
      lead: 2,
      separator: ';',
      end: () => jsonEnd({ depth: 1 }),
      read({ tag, body, inText }: HeldCall) {
        const text = tag + body
        const members = rawMembers(text)
        const call = namedCall(text, 'parameters', 'arguments')
        if (call === undefined || !(members!.has('parameters') || members!.has('arguments'))) return undefined
        if (inText && !tools.some(({ name }) => name === call.name)) return undefined
        return [{ name: call.name, arguments: call.arguments }]
      },
    }),
  specials: [PYTHON],
  trigger: '{"name": ',
  calls: (tools, count) =>
    repeated(tools, count, {
      one: (tool) =>
        sequence(literal(`{"name": ${JSON.stringify(tool.name)}, "parameters": `), jsonArguments(tool), literal('}')),
      separator: '; ',
    }),
}
