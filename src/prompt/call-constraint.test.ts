import { describe, expect, test } from 'vitest'
import type { Constraint, GenerateRequest, Structure, ToolChoice, ToolDefinition } from '../core/request.js'
import { callConstraint } from './call-constraint.js'
import type { ModelFormats } from './contract.js'
import { harmony } from './reasoning/harmony.js'
import { think } from './reasoning/think.js'
import { hermes } from './tool-calls/hermes.js'

const schema = '{"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}'
const tool = (name: string, more = ''): ToolDefinition => ({
  name,
  json: `{"type":"function","function":{"name":"${name}","parameters":${schema}${more}}}`,
})
const tools = [tool('browser_open'), tool('browser_close'), tool('shell')]

const calling: ModelFormats = {
  specials: [],
  toolCalls: () => hermes.create({}, { tools: [] }),
  callStructure: hermes.calls,
  callTrigger: hermes.trigger,
}
const reasoning: ModelFormats = {
  ...calling,
  reasoning: (prompt) => think.create({}, { prompt }),
  reasoningPlace: (prompt) => think.begins(prompt),
  reasoningStart: '<think>',
  reasoningEnd: '</think>',
}

interface Case {
  readonly choice?: ToolChoice
  readonly tools?: readonly ToolDefinition[]
  readonly constraint?: Constraint
  readonly formats?: ModelFormats
  readonly tail?: string
  readonly continueFinal?: boolean
  readonly keepsTools?: boolean
}

function constraintOf(given: Case): Constraint | undefined {
  const { choice, constraint, continueFinal, tail = '<|im_start|>assistant\n', keepsTools } = given
  const request: Pick<GenerateRequest, 'prompt' | 'toolChoice' | 'constraint'> = {
    prompt: { kind: 'chat', messages: [], tools: given.tools ?? tools, ...(continueFinal && { continueFinal }) },
    ...(choice && { toolChoice: choice }),
    ...(constraint && { constraint }),
  }
  return callConstraint({ request, formats: given.formats ?? calling, tail, ...(keepsTools && { keepsTools }) })
}

function structureOf(given: Case): Structure {
  const constraint = constraintOf(given)
  if (constraint?.kind !== 'structure') throw new Error(`no structure but ${JSON.stringify(constraint)}`)
  return constraint.structure
}

/** All parts, outermost first. */
function partsOf(structure: Structure): readonly Structure[] {
  const inner =
    structure.kind === 'repeat' ? [structure.part] : 'parts' in structure ? structure.parts : ([] as Structure[])
  return [structure, ...inner.flatMap(partsOf)]
}
const namesIn = (structure: Structure) =>
  partsOf(structure).flatMap((part) =>
    (part.kind === 'literal' ? [/"name": "(\w+)"/.exec(part.text)?.[1]] : []).filter((name) => name !== undefined),
  )
const schemasIn = (structure: Structure) =>
  partsOf(structure).flatMap((part) => (part.kind === 'json-schema' ? [part] : []))

const free: Structure = { kind: 'free', without: ['<tool_call>'] }

describe('calls', () => {
  test('required: one call or more of all tools, by their schemas, and no other text', () => {
    const structure = structureOf({ choice: { mode: 'required' } })
    expect(structure).toMatchObject({ kind: 'repeat', min: 1 })
    expect(structure).not.toHaveProperty('max')
    expect(namesIn(structure)).toEqual(['browser_open', 'browser_close', 'shell'])
    expect(schemasIn(structure)).toEqual(Array(3).fill({ kind: 'json-schema', schema, param: 'tools', lenient: true }))
  })

  test('a named one, and one alone where calls are not parallel', () => {
    const structure = structureOf({ choice: { mode: 'required', allowed: ['shell'], parallel: false } })
    expect(structure).toMatchObject({ min: 1, max: 1 })
    expect(namesIn(structure)).toEqual(['shell'])
  })

  test('patterns over the names; definitions with one name are one tool', () => {
    const structure = structureOf({
      choice: { mode: 'required', allowed: ['browser_*'] },
      tools: [...tools, tool('browser_open')],
    })
    expect(namesIn(structure)).toEqual(['browser_open', 'browser_close'])
  })

  test('auto leaves the model free, until something is narrowed', () => {
    expect(constraintOf({})).toBeUndefined()
    expect(constraintOf({ choice: { mode: 'auto' } })).toBeUndefined()
    expect(constraintOf({ choice: { mode: 'auto', allowed: ['*'] } })).toBeUndefined()
    const structure = structureOf({ choice: { mode: 'auto', allowed: ['browser_*'] } })
    expect(structure).toMatchObject({ kind: 'sequence', parts: [free, { kind: 'repeat', min: 0, max: 1 }] })
    expect(namesIn(structure)).toEqual(['browser_open', 'browser_close'])
    // Arguments are the model's own affair there.
    expect(schemasIn(structure)).toEqual([])
    expect(partsOf(structureOf({ choice: { mode: 'auto', parallel: false } }))).toContainEqual(
      expect.objectContaining({ kind: 'repeat', min: 1, max: 1 }),
    )
  })

  test('strict tools are held to their schemas in auto too, and theirs do not give way', () => {
    const other = '{"type":"object","properties":{"n":{"type":"integer"}}}'
    const mixed = [
      tool('loose'),
      { name: 'exact', json: `{"type":"function","strict":true,"name":"exact","parameters":${other}}` },
    ]
    const auto = structureOf({ tools: mixed })
    expect(schemasIn(auto)).toEqual([{ kind: 'json-schema', schema: other, param: 'tools' }])
    expect(namesIn(auto)).toEqual(['loose', 'exact'])
    expect(schemasIn(structureOf({ tools: mixed, choice: { mode: 'required' } }))).toEqual([
      { kind: 'json-schema', schema, param: 'tools', lenient: true },
      { kind: 'json-schema', schema: other, param: 'tools' },
    ])
    expect(schemasIn(structureOf({ tools: [tool('a', ',"strict":true')] }))).toHaveLength(1)
    expect(constraintOf({ tools: [tool('a', ',"strict":false')] })).toBeUndefined()
  })

  test.each([
    ['{"type":"function","function":{"name":"f"}}', []],
    ['{"type":"function","function":{"name":"f","parameters":{}}}', []],
    ['{"name":"f","input_schema":{"properties":{"a":{}}}}', ['{"type": "object", "properties":{"a":{}}}']],
    ['{"name":"f","parameters":{ "type":"object" }}', ['{ "type":"object" }']],
    ['{"name":"f","parameters":true}', []],
  ])('the arguments of %s', (json, expected) => {
    const structure = structureOf({ tools: [{ name: 'f', json }], choice: { mode: 'required' } })
    expect(schemasIn(structure).map((part) => part.schema)).toEqual(expected)
  })

  test('none: any text that begins no call; kept tools of a session too', () => {
    expect(structureOf({ choice: { mode: 'none' } })).toEqual(free)
    expect(structureOf({ tools: [], keepsTools: true })).toEqual(free)
    expect(constraintOf({ tools: [], choice: { mode: 'none' } })).toBeUndefined()
  })
})

describe('an answer form', () => {
  const json: Constraint = { kind: 'json' }

  test('stays as it is without tools, and where none may be called', () => {
    expect(constraintOf({ tools: [], constraint: json })).toBe(json)
    expect(constraintOf({ choice: { mode: 'none' }, constraint: json })).toBe(json)
    expect(constraintOf({ constraint: json, formats: { specials: [] } })).toBe(json)
  })

  test('stands beside calls in auto, and is no matter where a call is required', () => {
    expect(structureOf({ constraint: json })).toMatchObject({
      kind: 'choice',
      parts: [json, { kind: 'repeat', min: 1 }],
    })
    expect(structureOf({ constraint: json, choice: { mode: 'required' } })).toMatchObject({ kind: 'repeat' })
  })

  test('of a text prompt is the request’s own', () => {
    const request = { prompt: { kind: 'text', text: 'a' }, constraint: json } as const
    expect(callConstraint({ request, formats: reasoning, tail: '<think>' })).toBe(json)
  })
})

describe('reasoning', () => {
  const json: Constraint = { kind: 'json' }
  const until: Structure = { kind: 'until', stop: '</think>' }
  const lines: Structure = { kind: 'regex', regex: '\\n{0,2}' }

  test('that the prompt has open: the form begins behind its end', () => {
    expect(structureOf({ tools: [], constraint: json, formats: reasoning, tail: 'assistant\n<think>\n' })).toEqual({
      kind: 'sequence',
      parts: [until, lines, json],
    })
    const required = structureOf({ choice: { mode: 'required' }, formats: reasoning, tail: '<think>' })
    expect(required).toMatchObject({ kind: 'sequence', parts: [until, lines, { kind: 'repeat', min: 1 }] })
  })

  test('that the model may open: with it or without', () => {
    const structure = structureOf({ tools: [], constraint: json, formats: reasoning })
    const start: Structure = { kind: 'literal', text: '<think>' }
    expect(structure).toEqual({
      kind: 'choice',
      parts: [json, { kind: 'sequence', parts: [start, until, lines, json] }],
    })
  })

  test('that is closed already, or behind which a text is continued: the form alone', () => {
    const tail = 'assistant\n<think>\n\n</think>\n\n'
    expect(constraintOf({ tools: [], constraint: json, formats: reasoning, tail })).toBe(json)
    const continued = { tools: [], constraint: json, formats: reasoning, continueFinal: true, tail: 'Sure: ' }
    expect(constraintOf(continued)).toBe(json)
  })

  test('and what stands in front of a plain answer', () => {
    const channels: ModelFormats = {
      ...calling,
      reasoning: (prompt) => harmony.create({}, { prompt }),
      reasoningPlace: (prompt) => harmony.begins(prompt),
      reasoningStart: harmony.opening as string,
      reasoningEnd: harmony.ending as string,
      answerStart: harmony.answerStart as string,
    }
    const answer = {
      kind: 'sequence' as const,
      parts: [{ kind: 'literal' as const, text: '<|channel|>final<|message|>' }, json],
    }
    const reasoned: Structure[] = [
      { kind: 'literal', text: '<|channel|>analysis<|message|>' },
      { kind: 'until', stop: '<|end|><|start|>assistant' },
    ]
    const given = { constraint: json, formats: channels, tail: '<|start|>assistant' }
    expect(structureOf({ ...given, tools: [] })).toEqual({
      kind: 'choice',
      parts: [answer, { kind: 'sequence', parts: [...reasoned, answer] }],
    })
    const [plain, behind] = (structureOf(given) as Extract<Structure, { kind: 'choice' }>).parts
    expect(plain).toMatchObject({ kind: 'choice', parts: [answer, { kind: 'repeat', min: 1 }] })
    expect(behind).toMatchObject({ parts: [...reasoned, plain] })
    // A continued answer has its header already.
    expect(constraintOf({ ...given, tools: [], tail: '<|start|>assistant<|channel|>final<|message|>So' })).toBe(json)
    // A call has a header of its own.
    const required = structureOf({ choice: { mode: 'required' }, formats: channels, tail: '<|start|>assistant' })
    expect(partsOf(required)).not.toContainEqual(answer.parts[0])
  })

  test('alone constrains nothing', () => {
    expect(constraintOf({ formats: reasoning, tail: '<think>' })).toBeUndefined()
  })
})

describe('what is refused', () => {
  test.each<[Case, string]>([
    [{ choice: { mode: 'required' }, tools: [] }, 'invalid_request'],
    [{ choice: { mode: 'required', allowed: ['rm'] } }, 'invalid_request'],
    [{ choice: { mode: 'auto', allowed: ['shell', 'rm'] } }, 'invalid_request'],
    [{ choice: { mode: 'auto', allowed: ['desktop_*'] } }, 'invalid_request'],
    [{ choice: { mode: 'required' }, formats: { specials: [] } }, 'unsupported_parameter'],
    [{ choice: { mode: 'auto', allowed: ['shell'] }, formats: { specials: [] } }, 'unsupported_parameter'],
  ])('%j', (given, code) => {
    expect(() => constraintOf(given)).toThrow(expect.objectContaining({ code, param: 'tool_choice' }))
  })

  test('nothing where a model without calls is asked for none that it could not do anyway', () => {
    for (const mode of ['auto', 'none'] as const) {
      expect(constraintOf({ choice: { mode, parallel: false }, formats: { specials: [] } })).toBeUndefined()
    }
  })
})
