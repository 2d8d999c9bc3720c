// What every reasoning format promises (in a loop over the table), and <think> in particular.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
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
