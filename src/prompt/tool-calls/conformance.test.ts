// What every tool-call format promises, in a loop over the table: any cut gives the same, nothing is lost, what its
// structure describes is read back, and a huge call costs its length.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { CallDelta } from '../../core/events.js'
import { note } from '../../core/signals.js'
import { seeded } from '../../testing/random.js'
import { sampleStructure } from '../../testing/sample-structure.js'
import type { CallableTool, ToolCallFormat, ToolCallParser } from './contract.js'
import * as formats from './index.js'

interface Joined {
  readonly content: string
  readonly calls: readonly { id: string | undefined; name: string | undefined; arguments: string }[]
}

function run(parser: ToolCallParser, pieces: readonly string[]): Joined {
  const parts = [...pieces.map((piece) => parser.push(piece)), parser.end()]
  const calls: { id: string | undefined; name: string | undefined; arguments: string }[] = []
  for (const delta of parts.flatMap((part): readonly CallDelta[] => part.calls)) {
    calls[delta.index] ??= { id: delta.id, name: delta.name, arguments: '' }
    calls[delta.index]!.arguments += delta.argumentsDelta ?? ''
  }
  return { content: parts.map((part) => part.content).join(''), calls }
}

/** `text` cut at the given places, as a stream would bring it. */
function cutAt(text: string, places: readonly number[]): string[] {
  const at = [...new Set(places.map((place) => place % (text.length + 1)))].sort((a, b) => a - b)
  return [...at, text.length].map((end, i) => text.slice(i === 0 ? 0 : at[i - 1], end))
}

const schema = {
  type: 'object',
  properties: {
    path: { type: 'string' },
    count: { type: 'integer' },
    deep: { type: 'boolean' },
    mode: { enum: ['fast', 'slow'] },
    ratio: { type: ['number', 'null'] },
    names: { type: 'array', items: { type: 'string' } },
    where: { $ref: '#/$defs/place' },
    note: { anyOf: [{ type: 'string' }, { type: 'null' }] },
    any: {},
  },
  required: ['path', 'names'],
  $defs: { place: { type: 'object', properties: { x: { type: 'number' }, label: { type: 'string' } } } },
}
const callable: readonly CallableTool[] = [
  { name: 'edit_file', schema: JSON.stringify(schema) },
  { name: 'get-time', schema: '{"type": "object", "properties": {}}' },
  { name: 'anything', schema: undefined },
]
const tools = callable.map(({ name, schema: parameters = '{"type": "object"}' }) => ({
  name,
  json: `{"type": "function", "function": {"name": "${name}", "parameters": ${parameters}}}`,
}))

const baseline = formats.none
/** Forms that put each argument between tags, so that there is no JSON text to keep. */
const TAGGED = ['deepseek-v3.2', 'deepseek-v4', 'glm', 'glm-4.7', 'qwen3-coder', 'seed']
const forms = Object.entries(formats).filter(([, format]) => format !== baseline)
const parserOf = (format: ToolCallFormat) => format.create({}, { tools })
const structureOf = (format: ToolCallFormat, min = 1, max = 3) => format.calls(callable, { min, max })

/** Texts made of whole calls, halves of calls, tags and words. */
function texts(format: ToolCallFormat): fc.Arbitrary<string> {
  const structure = structureOf(format)
  const call = fc.nat().map((seed) => sampleStructure(structure, seeded(seed)))
  const half = fc.tuple(call, fc.nat(), fc.nat()).map(([text, a, b]) => {
    const [start, end] = [a % (text.length + 1), b % (text.length + 1)].sort((x, y) => x - y)
    return text.slice(start, end)
  })
  const plain = fc.constantFrom(
    'Hello ',
    '\n',
    ' ',
    '"',
    '\\',
    '{',
    '}',
    '[',
    ']',
    ';',
    'é😀',
    format.trigger,
    ...format.specials,
  )
  return fc.array(fc.oneof(call, half, plain), { maxLength: 6 }).map((parts) => parts.join(''))
}

test('the formats that cards name', () => {
  expect(Object.keys(formats).sort()).toEqual([
    ...['deepseek-v3', 'deepseek-v3.1', 'deepseek-v3.2', 'deepseek-v4', 'glm', 'glm-4.7', 'harmony', 'hermes', 'kimi'],
    ...['llama3-json', 'mistral', 'mistral-v11', 'mistral-v3', 'none', 'qwen3-coder', 'seed'],
  ])
})

describe('the baseline', () => {
  test('lets everything through as content', () => {
    expect(run(parserOf(baseline), ['<tool_call>{"name": "a"}', '</tool_call>'])).toEqual({
      content: '<tool_call>{"name": "a"}</tool_call>',
      calls: [],
    })
  })
})

describe.each(forms)('format %s', (name, format) => {
  test('gives the same for any cut of the text', () => {
    fc.assert(
      fc.property(texts(format), fc.array(fc.nat(5000), { maxLength: 8 }), (whole, places) => {
        const once = run(parserOf(format), [whole])
        expect(run(parserOf(format), cutAt(whole, places))).toEqual(once)
        if (whole.length < 300) expect(run(parserOf(format), [...whole])).toEqual(once)
      }),
      { numRuns: 100 },
    )
  })

  test('lets plain text through as it is', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: 'binary' }).filter((plain) => !plain.includes(format.trigger)),
        (plain) => {
          expect(run(parserOf(format), [plain])).toEqual({ content: plain, calls: [] })
        },
      ),
      { numRuns: 50 },
    )
  })

  test('reads back what its structure describes, calls in their order and nothing as content', () => {
    for (let seed = 0; seed < 150; seed++) {
      const count = 1 + (seed % 3)
      const text = sampleStructure(structureOf(format, count, count), seeded(seed))
      const { content, calls } = run(parserOf(format), [text])
      expect({ text, content, count: calls.length }).toEqual({ text, content: '', count })
      expect(text.startsWith(format.trigger), text).toBe(true)
      for (const call of calls) {
        expect(callable.map((tool) => tool.name)).toContain(call.name)
        const given = JSON.parse(call.arguments) as Record<string, unknown>
        if (call.name === 'edit_file') checkTypes(given)
      }
      expect(new Set(calls.map(({ id }) => id)).size).toBe(count)
      if (!TAGGED.includes(name)) {
        // Raw, and in the order of the text.
        const places = calls.map((call, i) => text.indexOf(call.arguments, i * 10))
        expect(places.every((place, i) => place > (places[i - 1] ?? 0) || calls[i]!.arguments === '{}')).toBe(true)
      }
    }
  })

  test('ids depend on the text and the place alone', () => {
    const text = sampleStructure(structureOf(format, 3, 3), seeded(7))
    expect(run(parserOf(format), [text])).toEqual(run(parserOf(format), [text]))
  })

  test('text around calls is content', () => {
    const text = sampleStructure(structureOf(format, 1, 1), seeded(3))
    const { content, calls } = run(parserOf(format), [`Let me look.${text}\n`])
    expect(content.trimEnd()).toBe('Let me look.')
    expect(calls).toHaveLength(1)
  })

  test('a call that is cut off is content, all of it, with one note that does not quote it', () => {
    const notes: string[] = []
    const stop = note.subscribe(({ text }) => notes.push(text))
    const structure = format.calls([{ name: 'edit_file', schema: callable[0]!.schema }], { min: 1, max: 1 })
    const whole = sampleStructure(structure, seeded(11))
    const cut = whole.slice(0, whole.indexOf('names') + 'names'.length)
    expect(run(parserOf(format), [cut])).toEqual({ content: cut, calls: [] })
    stop()
    expect(notes).toHaveLength(1)
    expect(notes[0]).toContain(`'${name}'`)
    expect(notes[0]).not.toContain('names')
  })

  test('a call of 200 KB in small pieces takes no longer than its length asks for', () => {
    const text = hugeCall(format)
    const pieces = Array.from({ length: Math.ceil(text.length / 4) }, (_, i) => text.slice(i * 4, i * 4 + 4))
    const started = performance.now()
    const { content, calls } = run(parserOf(format), pieces)
    const ms = performance.now() - started
    expect([content, calls.length]).toEqual(['', 1])
    expect(calls[0]!.arguments.length).toBeGreaterThan(200_000)
    // Quadratic work would take many seconds.
    expect(ms).toBeLessThan(2000)
  })
})

/** A call whose one argument is 200 KB of lines with quotes, brackets and tags in them. */
function hugeCall(format: ToolCallFormat): string {
  const line = 'if (a < b) { return "</tool_call>" } // [x] \\n\n'
  const big = line.repeat(Math.ceil(200_000 / line.length))
  const marked = { type: 'object', properties: { text: { enum: [big] } }, required: ['text'] }
  return sampleStructure(
    format.calls([{ name: 'anything', schema: JSON.stringify(marked) }], { min: 1, max: 1 }),
    seeded(1),
  )
}

function checkTypes(given: Record<string, unknown>): void {
  const is = (key: string, ...types: readonly string[]) => {
    if (!(key in given)) return
    const value = given[key]
    const type = value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value
    expect(types, `${key}: ${JSON.stringify(value)}`).toContain(type)
  }
  expect(given).toHaveProperty('path')
  expect(given).toHaveProperty('names')
  is('path', 'string')
  is('count', 'number')
  is('deep', 'boolean')
  is('mode', 'string')
  is('ratio', 'number', 'null')
  is('names', 'array')
  is('where', 'object')
  is('note', 'string', 'null')
}
