import { describe, expect, test } from 'vitest'
import type { ToolChoice } from '../../core/request.js'
import { readFields, readingOf } from './fields.js'
import { narrowChoice, parallelToolCalls, refrainMember, toolChoice, toolChoiceOf } from './tool-choice.js'

const tools = ['browser_open', 'browser_close', 'shell'].map((name) => ({ name, json: '{}' }))

function choice(body: object, offered = tools): ToolChoice | undefined {
  const fields = { tool_choice: toolChoice, parallel_tool_calls: parallelToolCalls, refrain: refrainMember }
  const read = readFields(fields, body, '', readingOf(JSON.stringify(body), 64))
  const sent = { choice: read.tool_choice, parallel: read.parallel_tool_calls, allowed: read.refrain?.allowed_tools }
  return toolChoiceOf(sent, offered)
}

const inChat = (mode: string, ...names: string[]) => ({
  type: 'allowed_tools',
  allowed_tools: { mode, tools: names.map((name) => ({ type: 'function', function: { name } })) },
})
const inResponses = (mode: string, ...names: string[]) => ({
  type: 'allowed_tools',
  mode,
  tools: names.map((name) => ({ type: 'function', name })),
})

describe('forms', () => {
  test.each<[object, ToolChoice | undefined]>([
    [{}, undefined],
    [{ tool_choice: 'auto' }, { mode: 'auto' }],
    [{ tool_choice: 'none' }, { mode: 'none' }],
    [{ tool_choice: 'required' }, { mode: 'required' }],
    [{ tool_choice: { type: 'required' } }, { mode: 'required' }],
    [{ tool_choice: { type: 'function', function: { name: 'shell' } } }, { mode: 'required', allowed: ['shell'] }],
    [{ tool_choice: { type: 'function', name: 'shell' } }, { mode: 'required', allowed: ['shell'] }],
    [{ tool_choice: inChat('auto', 'shell', 'browser_*') }, { mode: 'auto', allowed: ['shell', 'browser_*'] }],
    [{ tool_choice: inResponses('required', 'shell') }, { mode: 'required', allowed: ['shell'] }],
    [{ parallel_tool_calls: true }, undefined],
    [{ parallel_tool_calls: false }, { mode: 'auto', parallel: false }],
    [
      { tool_choice: 'required', parallel_tool_calls: false },
      { mode: 'required', parallel: false },
    ],
    [{ refrain: { allowed_tools: ['browser_*'] } }, { mode: 'auto', allowed: ['browser_*'] }],
    [
      { tool_choice: 'required', parallel_tool_calls: false, refrain: { allowed_tools: ['browser_*'] } },
      { mode: 'required', parallel: false, allowed: ['browser_*'] },
    ],
    [
      { tool_choice: inChat('required', 'shell', 'browser_open'), refrain: { allowed_tools: ['browser_*'] } },
      { mode: 'required', allowed: ['browser_open'] },
    ],
    [{ tool_choice: 'none', refrain: { allowed_tools: ['browser_*'] } }, { mode: 'none' }],
  ])('%j', (body, expected) => expect(choice(body)).toEqual(expected))
})

describe('what is refused names its field', () => {
  test.each([
    [{ tool_choice: 'maybe' }, 'invalid_request', 'tool_choice'],
    [{ tool_choice: 5 }, 'invalid_request', 'tool_choice'],
    [{ tool_choice: ['auto'] }, 'invalid_request', 'tool_choice'],
    [{ tool_choice: {} }, 'invalid_request', 'tool_choice.type'],
    [{ tool_choice: { type: 'web_search_preview' } }, 'unsupported_parameter', 'tool_choice.type'],
    [{ tool_choice: { type: 'function' } }, 'invalid_request', 'tool_choice.name'],
    [{ tool_choice: { type: 'function', function: {} } }, 'invalid_request', 'tool_choice.function.name'],
    [{ tool_choice: { type: 'function', function: { name: 'rm' } } }, 'invalid_request', 'tool_choice.function.name'],
    [{ tool_choice: inChat('none', 'shell') }, 'invalid_request', 'tool_choice.allowed_tools.mode'],
    [{ tool_choice: inChat('auto') }, 'invalid_request', 'tool_choice.allowed_tools.tools'],
    [{ tool_choice: inChat('auto', 'rm') }, 'invalid_request', 'tool_choice.allowed_tools.tools[0].function.name'],
    [{ tool_choice: inResponses('auto', 'shell', 'rm') }, 'invalid_request', 'tool_choice.tools[1].name'],
    [
      { tool_choice: { type: 'allowed_tools', tools: [{ type: 'mcp', server_label: 'x' }] } },
      'unsupported_parameter',
      'tool_choice.tools[0].type',
    ],
    [{ refrain: { allowed_tools: 'shell' } }, 'invalid_request', 'refrain.allowed_tools'],
    [{ refrain: { allowed_tools: ['shell', 'rm'] } }, 'invalid_request', 'refrain.allowed_tools[1]'],
    [{ refrain: { allowed_tools: ['desktop_*'] } }, 'invalid_request', 'refrain.allowed_tools'],
    [{ refrain: { allowed_tools: Array(300).fill('a*') } }, 'invalid_request', 'refrain.allowed_tools[256]'],
    [{ refrain: { allowed_tools: [] } }, 'invalid_request', 'refrain.allowed_tools'],
    [
      { tool_choice: inChat('auto', 'shell'), refrain: { allowed_tools: ['browser_*'] } },
      'invalid_request',
      'refrain.allowed_tools',
    ],
  ])('%j', (body, code, param) => {
    expect(() => choice(body)).toThrow(expect.objectContaining({ code, param }))
  })

  test('a call cannot be required where nothing is offered; auto and none can be said', () => {
    expect(() => choice({ tool_choice: 'required' }, [])).toThrow(expect.objectContaining({ param: 'tool_choice' }))
    expect(choice({ tool_choice: 'auto' }, [])).toEqual({ mode: 'auto' })
    expect(choice({ tool_choice: 'none' }, [])).toEqual({ mode: 'none' })
  })
})

test('another dialect narrows what it read itself', () => {
  const required: ToolChoice = { mode: 'required', parallel: false }
  expect(narrowChoice(required, undefined, tools)).toBe(required)
  expect(narrowChoice(required, ['shell'], tools)).toEqual({ ...required, allowed: ['shell'] })
  expect(narrowChoice(undefined, ['shell'], tools)).toEqual({ mode: 'auto', allowed: ['shell'] })
})
