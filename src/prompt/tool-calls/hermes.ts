// Tool calls in the Hermes form: <tool_call>{"name": ..., "arguments": ...}</tool_call> in the text (Hermes, Qwen, and the
// fallback of tool-fallback.ts). Invariant: the one line break that templates put before a call is no content, so an
// answer that comes back in the history is rendered as it was generated.

import { Type } from 'typebox'
import { EndTags, JSON_STRING } from '../end-scan.js'
import { jsonArguments, literal, repeated, sequence } from './call-structure.js'
import type { ToolCallFormat, ToolCallParser } from './contract.js'
import { type CallFrame, FramedCalls } from './framed-calls.js'
import { namedCall } from './raw-json.js'

const OPEN = '<tool_call>'
const CLOSE = '</tool_call>'
const END = new EndTags([CLOSE], [JSON_STRING])

const FRAME: CallFrame = {
  format: 'hermes',
  open: [OPEN],
  starts: () => ['{'],
  lead: 1,
  end: () => END.scan(),
  read({ body }) {
    const call = namedCall(body, 'arguments')
    return call === undefined ? undefined : [call]
  },
}

export const hermes: ToolCallFormat = {
  options: Type.Object({}),
  create: createHermesParser,
  specials: [OPEN, CLOSE],
  trigger: OPEN,
  calls: (tools, count) =>
    repeated(tools, count, {
      one: (tool) =>
        sequence(
          literal(`${OPEN}\n{"name": ${JSON.stringify(tool.name)}, "arguments": `),
          jsonArguments(tool),
          literal(`}\n${CLOSE}`),
        ),
      separator: '\n',
    }),
}

export function createHermesParser(): ToolCallParser {
  return new FramedCalls(FRAME)
}
