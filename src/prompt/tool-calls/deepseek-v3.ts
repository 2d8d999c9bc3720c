// Tool calls of DeepSeek V3 and R1 (arguments in a fenced block) and of V3.1 (arguments right behind the name). Either
// parser reads both; they differ in what the decoder is made to write. Source: the models' chat templates.
//
//   V3    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{...}\n```<｜tool▁call▁end｜>\n…
//   V3.1  <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>

import { Type } from 'typebox'
import type { Structure } from '../../core/request.js'
import { EndTags, JSON_STRING } from '../end-scan.js'
import { jsonArguments, literal, repeated, sequence } from './call-structure.js'
import type { CallableTool, ToolCallFormat } from './contract.js'
import { type CallFrame, type FoundCall, FramedCalls } from './framed-calls.js'
import { objectText } from './raw-json.js'

const SECTION = '<｜tool▁calls▁begin｜>'
const SECTION_END = '<｜tool▁calls▁end｜>'
const CALL = '<｜tool▁call▁begin｜>'
const SEPARATOR = '<｜tool▁sep｜>'
const CALL_END = '<｜tool▁call▁end｜>'
const END = new EndTags([CALL_END], [JSON_STRING])

const frame = (format: string): CallFrame => ({
  format,
  section: { open: [SECTION], close: [SECTION_END] },
  open: [CALL],
  lead: 0,
  end: () => END.scan(),
  read: ({ body }) => read(body),
})

function formOf(
  format: string,
  { one, separator }: { one(tool: CallableTool): Structure; readonly separator: string },
): ToolCallFormat {
  return {
    options: Type.Object({}),
    create: () => new FramedCalls(frame(format)),
    specials: [SECTION, SECTION_END, CALL, SEPARATOR, CALL_END],
    trigger: SECTION,
    calls: (tools, count) =>
      sequence(literal(SECTION), repeated(tools, count, { one, separator }), literal(SECTION_END)),
  }
}

export const deepseekV3 = formOf('deepseek-v3', {
  one: (tool) =>
    sequence(
      literal(`${CALL}function${SEPARATOR}${tool.name}\n\`\`\`json\n`),
      jsonArguments(tool),
      literal(`\n\`\`\`${CALL_END}`),
    ),
  separator: '\n',
})

export const deepseekV31 = formOf('deepseek-v3.1', {
  one: (tool) => sequence(literal(CALL + tool.name + SEPARATOR), jsonArguments(tool), literal(CALL_END)),
  separator: '',
})

function read(body: string): readonly FoundCall[] | undefined {
  const at = body.indexOf(SEPARATOR)
  if (at < 0) return undefined
  const before = body.slice(0, at).trim()
  const behind = body.slice(at + SEPARATOR.length).trim()
  const line = behind.startsWith('{') ? -1 : behind.indexOf('\n')
  const name = line < 0 ? before : behind.slice(0, line).trim()
  const argumentsText = objectText(line < 0 ? behind : withoutFence(behind.slice(line).trim()))
  return name === '' || argumentsText === undefined ? undefined : [{ name, arguments: argumentsText }]
}

function withoutFence(text: string): string {
  if (!text.startsWith('```') || !text.endsWith('```')) return text
  const line = text.indexOf('\n')
  return text.slice(line < 0 ? 3 : line, -3).trim()
}
