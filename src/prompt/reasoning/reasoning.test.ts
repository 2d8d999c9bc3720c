// What every reasoning format promises (in a loop over the table), and <think> in particular.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { OutputSplitter } from '../output-splitter.js'
import { harmony as harmonyCalls } from '../tool-calls/index.js'
import type { ReasoningParser, SplitText } from './contract.js'
import * as formats from './index.js'

function run(parser: ReasoningParser, pieces: readonly string[]): SplitText {
  const parts = [...pieces.map((piece) => parser.push(piece)), parser.end()]
  return {
    reasoning: parts.map((part) => part.reasoning).join(''),
    content: parts.map((part) => part.content).join(''),
  }
}

const fragment = fc.constantFrom('Hello ', '\n', '\n\n', ' ', '<', '<think>', '</think>', '<thi', '</', 'hm', 'é😀')
const text = fc.array(fragment, { maxLength: 10 }).map((parts) => parts.join(''))

describe.each(Object.entries(formats))('format %s', (_, format) => {
  test.each(['<|im_start|>assistant\n', '<|im_start|>assistant\n<think>\n'])(
    'gives the same for any cut after %j',
    (prompt) => {
      fc.assert(
        fc.property(text, fc.array(fc.nat(100), { maxLength: 8 }), (whole, places) => {
          const at = [...new Set(places.map((place) => place % (whole.length + 1)))].sort((a, b) => a - b)
          const pieces = [...at, whole.length].map((end, i) => whole.slice(i === 0 ? 0 : at[i - 1], end))
          expect(run(format.create({}, { prompt }), pieces)).toEqual(run(format.create({}, { prompt }), [whole]))
        }),
        { numRuns: 500 },
      )
    },
  )

  test('lets text without a tag through as it is', () => {
    fc.assert(
      fc.property(
        fc.string({ unit: 'binary' }).filter((plain) => !plain.trimStart().startsWith('<think>')),
        (plain) => {
          // Where the model may leave the open tag out, a prompt that closed the reasoning says that there is none.
          const prompt = format.begins('') === 'inside' ? '<think>\n</think>' : ''
          expect(run(format.create({}, { prompt }), [plain])).toEqual({ reasoning: '', content: plain })
        },
      ),
    )
  })
})

describe('think', () => {
  const think = (whole: string, prompt = ''): SplitText => run(formats.think.create({}, { prompt }), [whole])

  test.each([
    ['<think>\nhm\n\nso\n</think>\n\nYes.\n', { reasoning: 'hm\n\nso', content: 'Yes.\n' }],
    ['\n <think>hm</think>Yes', { reasoning: 'hm', content: 'Yes' }],
    ['<think>\n\n</think>\n\nYes', { reasoning: '', content: 'Yes' }],
    ['<think>never done\n', { reasoning: 'never done', content: '' }],
    ['Yes, <think> is a tag </think>', { reasoning: '', content: 'Yes, <think> is a tag </think>' }],
    ['<think>a</think>b<think>c</think>', { reasoning: 'a', content: 'b<think>c</think>' }],
    ['<think>a < b </thin> c</think>d', { reasoning: 'a < b </thin> c', content: 'd' }],
  ])('%j', (whole, expected) => {
    expect(think(whole)).toEqual(expected)
  })

  test('begins inside where the prompt ends with the open tag', () => {
    expect(think('hm\n</think>\n\nYes', 'assistant\n<think>\n')).toEqual({ reasoning: 'hm', content: 'Yes' })
  })

  test('text comes out at once, but for what may be a tag', () => {
    const parser = formats.think.create({}, { prompt: '' })
    expect(parser.push('<think>one').reasoning).toBe('one')
    expect(parser.push(' two\n').reasoning).toBe(' two')
    expect(parser.push('three</').reasoning).toBe('\nthree')
    expect(parser.push('b></think>A')).toEqual({ reasoning: '</b>', content: 'A' })
    expect(parser.push('nswer').content).toBe('nswer')
  })
})

const byName = new Map(Object.entries(formats))

describe('tags of other models', () => {
  test.each([
    ['mistral', '[THINK]hm[/THINK]Yes', { reasoning: 'hm', content: 'Yes' }],
    ['seed', '<seed:think>hm\n</seed:think>\nYes', { reasoning: 'hm', content: 'Yes' }],
    ['think-implied', 'hm</think>\n\nYes', { reasoning: 'hm', content: 'Yes' }],
    ['think-implied', '\n<think>hm</think>Yes', { reasoning: 'hm', content: 'Yes' }],
  ] as const)('%s: %j', (name, whole, expected) => {
    expect(run(byName.get(name)!.create({}, { prompt: '' }), [whole])).toEqual(expected)
  })

  test('where an answer begins', () => {
    const prompts = ['assistant\n', 'assistant\n<think>\n', 'assistant\n<think>\n\n</think>\n\n']
    expect(prompts.map((prompt) => formats.think.begins(prompt))).toEqual(['before', 'inside', 'behind'])
    expect(prompts.map((prompt) => byName.get('think-implied')!.begins(prompt))).toEqual(['inside', 'inside', 'behind'])
  })

  test('a prompt that closed the reasoning holds for a model that leaves the open tag out', () => {
    const parser = byName.get('think-implied')!.create({}, { prompt: 'assistant\n<think></think>' })
    expect(run(parser, ['Yes'])).toEqual({ reasoning: '', content: 'Yes' })
  })

  test('a model that writes the tag once more', () => {
    const parser = formats.think.create({}, { prompt: 'assistant\n<think>\n' })
    expect(run(parser, ['<think>\nhm</think>Yes'])).toEqual({ reasoning: 'hm', content: 'Yes' })
  })
})

describe('harmony', () => {
  const turn = '<|start|>assistant'
  const harmony = (whole: string, prompt = turn): SplitText => run(formats.harmony.create({}, { prompt }), [whole])
  const call = (args: string) => `<|channel|>commentary to=functions.f <|constrain|>json<|message|>${args}<|call|>`
  const analysis = (text: string) => `<|channel|>analysis<|message|>${text}<|end|>`

  test.each([
    [`${analysis('hm')}${turn}<|channel|>final<|message|>Yes.`, { reasoning: 'hm', content: 'Yes.' }],
    ['<|channel|>final<|message|>Yes.<|return|>', { reasoning: '', content: 'Yes.' }],
    // A preamble, then the answer; two thoughts.
    [
      `${analysis('a')}${turn}${analysis('b')}${turn}<|channel|>commentary<|message|>Plan.<|end|>${turn}<|channel|>final<|message|>Done`,
      { reasoning: 'a\nb', content: 'Plan.\nDone' },
    ],
    // Calls, their recipient in the channel or in the role, on any channel, with their end or without.
    [`${analysis('a')}${turn}${call('{"x":1}')}`, { reasoning: 'a', content: call('{"x":1}') }],
    [
      ' to=functions.f<|channel|>commentary json<|message|>{"s": "<|call|><|end|>"}',
      { reasoning: '', content: call('{"s": "<|call|><|end|>"}').slice(0, -'<|call|>'.length) },
    ],
    [
      `${analysis('a')}${turn} to=functions.f<|channel|>analysis<|message|>{}<|end|>`,
      { reasoning: 'a', content: call('{}') },
    ],
    // A recipient outside of the namespace is a call too, which the client will not know.
    ['<|channel|>commentary to=f<|message|>{}<|call|>', { reasoning: '', content: call('{}') }],
    // No header at all, a header that is none, an answer that was cut off in one, the start of a turn without a word.
    ['Hello <|x|> there', { reasoning: '', content: 'Hello <|x|> there' }],
    [`<|channel|>final<|end|>x`, { reasoning: '', content: '<|channel|>final<|end|>x' }],
    [`${analysis('a')}${turn}<|channel|>fin`, { reasoning: 'a', content: `${turn}<|channel|>fin` }],
    [`${analysis('a')}${turn}`, { reasoning: 'a', content: '' }],
    // Ends that are forgotten.
    [`<|channel|>analysis<|message|>a${turn}<|channel|>final<|message|>b`, { reasoning: 'a', content: 'b' }],
  ])('%j', (whole, expected) => {
    expect(harmony(whole)).toEqual(expected)
  })

  test('goes on where the prompt stopped', () => {
    expect(harmony('m<|end|>', `${turn}<|channel|>analysis<|message|>h`)).toEqual({ reasoning: 'm', content: '' })
    expect(harmony(' more', `${turn}<|channel|>final<|message|>So`)).toEqual({ reasoning: '', content: ' more' })
    const begins = ['', '<|channel|>analysis<|message|>h', '<|channel|>final<|message|>'].map((open) =>
      formats.harmony.begins(turn + open),
    )
    expect(begins).toEqual(['before', 'inside', 'behind'])
  })

  test('any cut gives the same', () => {
    const part = fc.constantFrom(
      analysis('hm "x"'),
      turn,
      call('{"s": "<|call|>"}'),
      '<|channel|>',
      '<|message|>',
      ' to=f',
      'é',
      '\n',
      '<|en',
    )
    fc.assert(
      fc.property(fc.array(part, { maxLength: 8 }), fc.constantFrom('', turn), (parts, prompt) => {
        const whole = parts.join('')
        expect(run(formats.harmony.create({}, { prompt }), [...whole])).toEqual(harmony(whole, prompt))
      }),
    )
  })

  test('its calls are what the tool-call format of the same name reads', () => {
    const splitter = new OutputSplitter({
      reasoning: formats.harmony.create({}, { prompt: turn }),
      toolCalls: harmonyCalls.create({}, { tools: [] }),
    })
    const text = `${analysis('hm')}${turn} to=functions.f<|channel|>commentary json<|message|>{"x": 1.0}`
    const pieces = [...[...text].map((piece) => splitter.push(piece)), splitter.end()]
    expect(pieces.map(({ reasoning }) => reasoning).join('')).toBe('hm')
    expect(pieces.map(({ content }) => content).join('')).toBe('')
    expect(pieces.flatMap(({ calls }) => calls)).toMatchObject([{ index: 0, name: 'f', argumentsDelta: '{"x": 1.0}' }])
  })
})
