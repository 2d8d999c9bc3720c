// A choice's output: what is visible, when it ends and why, whatever the tokens' borders.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { createOutput, type Output, type OutputOptions } from './output.js'

const EOS = 256
const SPELLING = '<|end|>'

/** A vocabulary of single bytes and one end token. */
const tokenizer: OutputOptions['tokenizer'] = {
  decode: (ids) => Buffer.from(Array.from(ids).filter((id) => id !== EOS)).toString('utf8'),
  bytesOf: (id) => (id === EOS ? new Uint8Array() : Uint8Array.of(id)),
  spellingOf: (id) => (id === EOS ? SPELLING : String.fromCharCode(id)),
  isSpecial: (id) => id === EOS,
}

function detokenizer(): OutputOptions['detokenizer'] {
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  return {
    push: (id) => (id === EOS ? '' : decoder.decode(Uint8Array.of(id), { stream: true })),
    end: () => decoder.decode(),
  }
}

function outputOf(options: Partial<OutputOptions> = {}): Output {
  return createOutput({
    tokenizer,
    detokenizer: detokenizer(),
    stops: [],
    eosTokenIds: [EOS],
    stopTokenIds: [],
    ignoreEos: false,
    maxTokens: 1000,
    logprobs: undefined,
    ...options,
  })
}

/** Pushes until the end; what was visible, after how many tokens, and why. */
function run(output: Output, ids: readonly number[]) {
  let text = ''
  for (const [i, id] of ids.entries()) {
    const step = output.push({ id, logprob: undefined, top: [] })
    text += step.text
    if (step.done !== undefined) return { text, tokens: i + 1, ...step.done }
  }
  return { text }
}

const bytes = (text: string) => [...Buffer.from(text)]

describe('output', () => {
  test('EOS ends the answer and is not part of it', () => {
    expect(run(outputOf(), [...bytes('hé'), EOS])).toEqual({ text: 'hé', tokens: 4, reason: 'stop' })
    expect(run(outputOf({ ignoreEos: true }), [104, EOS, 105])).toEqual({ text: 'hi' })
  })

  test('a stop token ends it too, also where EOS is ignored', () => {
    const options = { stopTokenIds: [33], ignoreEos: true }
    expect(run(outputOf(options), [...bytes('hi'), EOS, 33])).toEqual({ text: 'hi', tokens: 4, reason: 'stop' })
  })

  test('the limit ends it; half a character becomes U+FFFD', () => {
    expect(run(outputOf({ maxTokens: 2 }), bytes('hé'))).toEqual({ text: 'h\ufffd', tokens: 2, reason: 'length' })
    expect(run(outputOf({ maxTokens: 3 }), bytes('hé'))).toEqual({ text: 'hé', tokens: 3, reason: 'length' })
  })

  test('text that was held back comes when the answer ends without a match', () => {
    const stops = ['END!']
    expect(run(outputOf({ stops }), [...bytes('the EN'), EOS])).toMatchObject({ text: 'the EN', reason: 'stop' })
    expect(run(outputOf({ stops, maxTokens: 6 }), bytes('the END!'))).toMatchObject({
      text: 'the EN',
      reason: 'length',
    })
    const open = outputOf({ stops })
    expect(run(open, bytes('the EN')).text).toBe('the ')
    expect(open.flush()).toBe('EN')
  })

  test('a stop string on the last allowed token is a stop', () => {
    const result = run(outputOf({ stops: ['!'], maxTokens: 3 }), bytes('ab!'))
    expect(result).toEqual({ text: 'ab', tokens: 3, reason: 'stop', stopString: '!' })
  })

  test('a character is whole or absent, in any text', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), fc.string({ maxLength: 2 }), (text, stop) => {
        const output = outputOf({ stops: [stop] })
        let visible = ''
        for (const id of bytes(text)) {
          const step = output.push({ id, logprob: undefined, top: [] })
          expect(step.text.includes('\ufffd') && !text.includes('\ufffd')).toBe(false)
          visible += step.text
          if (step.done !== undefined) break
        }
        const end = stop === '' ? -1 : text.indexOf(stop)
        expect(visible + output.flush()).toBe(end < 0 ? text : text.slice(0, end))
      }),
    )
  })

  test('logprobs describe the token alone and leave the end token out', () => {
    const output = outputOf({ logprobs: 2 })
    const top = [
      { id: 0xc3, logprob: -0.25 },
      { id: EOS, logprob: -2 },
    ]
    expect(output.push({ id: 0xc3, logprob: -0.25, top })).toEqual({
      text: '',
      logprobs: [
        {
          id: 0xc3,
          text: '\ufffd',
          bytes: [0xc3],
          logprob: -0.25,
          top: [
            { id: 0xc3, text: '\ufffd', bytes: [0xc3], logprob: -0.25 },
            { id: EOS, text: SPELLING, bytes: bytes(SPELLING), logprob: -2 },
          ],
        },
      ],
    })
    expect(output.push({ id: EOS, logprob: -1, top })).toEqual({ text: '\ufffd', done: { reason: 'stop' } })
  })

  test('a token without the logprobs that were asked for is a fault', () => {
    expect(() => outputOf({ logprobs: 0 }).push({ id: 65, logprob: undefined, top: [] })).toThrow(
      'without the logprobs',
    )
  })
})
