// Streams of real servers, in any pieces and cut off anywhere: what goes on is whole events, and only what is complete
// counts as complete.

import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { chunk, ROLE, usageChunk } from '../../testing/stub-upstream.js'
import { ChatEvents } from './chat-events.js'
import { StreamWatch, type WatchOptions } from './stream-watch.js'
import type { Usage } from './usage.js'
import { wireOf } from './wires.js'

interface Watched {
  readonly text: string
  readonly fault?: string
  readonly usage?: Usage | undefined
}

/** Watches `text` cut at `cuts`. */
function watch(path: string, text: string, cuts: readonly number[], more: Partial<WatchOptions> = {}): Watched {
  const parts: Buffer[] = []
  let isBegun = false
  const watching = new StreamWatch({
    wire: wireOf(path),
    choices: 1,
    hidesUsage: false,
    heldBytes: 1 << 20,
    onFirst: () => {
      isBegun = true
    },
    onEvents: (bytes) => {
      expect(isBegun).toBe(true)
      parts.push(bytes)
    },
    ...more,
  })
  const bytes = Buffer.from(text)
  const told = () => Buffer.concat(parts).toString('utf8')
  try {
    let from = 0
    for (const cut of [...cuts, bytes.length].sort((a, b) => a - b)) {
      if (cut > from) watching.add(bytes.subarray(from, cut))
      from = Math.max(from, cut)
    }
    watching.end()
    return { text: told(), usage: watching.usage }
  } catch (error) {
    return { text: told(), fault: (error as Error).message, usage: watching.usage }
  }
}

const CHAT = `${ROLE}${chunk({ content: 'é "error" [DONE]' })}${chunk({ content: ' b' })}${chunk({}, 'stop')}${usageChunk(10, 4)}data: [DONE]\n\n`
const ANTHROPIC = [
  { type: 'message_start', message: { usage: { input_tokens: 3, cache_read_input_tokens: 7, output_tokens: 0 } } },
  { type: 'ping' },
  { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'message_stop' } },
  { type: 'message_delta', delta: { stop_reason: 'end_turn' }, usage: { output_tokens: 5 } },
  { type: 'message_stop' },
]
  .map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`)
  .join('')
const RESPONSES = [
  { type: 'response.created', sequence_number: 0, response: { id: 'resp_1' } },
  { type: 'response.output_text.delta', sequence_number: 1, delta: '"response.completed"' },
  {
    type: 'response.completed',
    sequence_number: 2,
    response: { usage: { input_tokens: 9, input_tokens_details: { cached_tokens: 2 }, output_tokens: 1 } },
  },
]
  .map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`)
  .join('')

const KNOWN: readonly (readonly [string, string, Usage])[] = [
  ['/v1/chat/completions', CHAT, { promptTokens: 10, completionTokens: 2, cachedTokens: 4 }],
  ['/v1/messages', ANTHROPIC, { promptTokens: 10, completionTokens: 5, cachedTokens: 7 }],
  ['/v1/responses', RESPONSES, { promptTokens: 9, completionTokens: 1, cachedTokens: 2 }],
]

describe.each(KNOWN)('%s', (path, text, usage) => {
  test('in any pieces is the same, and its usage is found', () => {
    const whole = watch(path, text, [])
    expect(whole).toMatchObject({ usage })
    expect(whole.fault).toBeUndefined()
    fc.assert(
      fc.property(fc.array(fc.nat(Buffer.byteLength(text)), { maxLength: 30 }), (cuts) => {
        expect(watch(path, text, cuts)).toEqual(whole)
      }),
      { numRuns: 300 },
    )
  })

  test('cut off anywhere is a fault, behind whole events', () => {
    const events = text.split(/(?<=\n\n)/)
    const bytes = Buffer.from(text)
    // Behind the finish reason a chat is complete, whatever else is missing.
    const complete = path === '/v1/chat/completions' ? events.slice(0, -2).join('').length : bytes.length - 2
    for (let end = 0; end < complete; end += 7) {
      const { text: told, fault } = watch(path, bytes.subarray(0, end).toString('utf8'), [])
      expect(fault).toBeDefined()
      expect(told).not.toContain('data: [DONE]')
      expect(text.startsWith(told.replaceAll(/"prompt_cache_[a-z_]+":\d+,/g, ''))).toBe(true)
      expect(told === '' || told.endsWith('\n\n')).toBe(true)
    }
  })
})

test('an error in the midst ends it; what stands behind is not told', () => {
  const text = `${ROLE}${chunk({ content: 'a' })}data: {"error": {"message": "dead", "code": 500}}\n\ndata: [DONE]\n\n`
  expect(watch('/v1/chat/completions', text, [])).toMatchObject({
    text: ROLE + chunk({ content: 'a' }),
    fault: 'dead',
  })
})

test('a large event waits for its end, a too large one is a fault', () => {
  const large = chunk({ content: 'x'.repeat(5000) })
  const cuts = Array.from({ length: 50 }, (_, i) => i * 100)
  const text = `${large}${chunk({}, 'stop')}data: [DONE]\n\n`
  expect(watch('/v1/chat/completions', text, cuts).text).toBe(text)
  expect(watch('/v1/chat/completions', text, cuts, { heldBytes: 1000 }).fault).toBe('an event is too large')
})

test('all choices must be complete', () => {
  const second = (delta: object, finish: string | null) =>
    `data: ${JSON.stringify({ choices: [{ index: 1, delta, finish_reason: finish }] })}\n\n`
  const first = `${chunk({ content: 'a' })}${second({ content: 'b' }, null)}${chunk({}, 'stop')}`
  expect(watch('/v1/chat/completions', first, [], { choices: 2 }).fault).toBe('the stream broke off')
  expect(watch('/v1/chat/completions', first + second({}, 'stop'), [], { choices: 2 }).fault).toBeUndefined()
})

const fixtures = join(fileURLToPath(new URL('../../../../shared/fixtures', import.meta.url)))
const present = existsSync(join(fixtures, 'vllm-http'))

interface Recorded {
  readonly request?: { readonly path: string }
  readonly response?: { readonly sse: string }
  readonly sse_tail?: string
}
const recorded = (file: string): Recorded => JSON.parse(readFileSync(join(fixtures, file), 'utf8'))

describe('recorded (needs ../shared)', () => {
  test.skipIf(!present).each([
    ['vllm-http/stream.json', undefined],
    ['vllm-http/stream-usage.json', { promptTokens: 36, completionTokens: 12, cachedTokens: 32 }],
    ['vllm-http/stream-usage-continuous.json', { promptTokens: 36, completionTokens: 4, cachedTokens: 32 }],
    ['vllm-http/stream-no-details-flag.json', { promptTokens: 36, completionTokens: 3 }],
    ['vllm-http/completions-stream.json', { promptTokens: 3, completionTokens: 4, cachedTokens: 0 }],
    ['vllm-http/messages-stream.json', { promptTokens: 31, completionTokens: 4, cachedTokens: 0 }],
    ['vllm-http/responses-stream.json', { promptTokens: 31, completionTokens: 3, cachedTokens: 0 }],
    ['vllm-http/tools-required-stream.json', { promptTokens: 41, completionTokens: 45 }],
    ['llama-server-http/chat-stream-usage.json', expect.objectContaining({ completionTokens: 6 })],
    ['llama-server-http/messages-stream.json', { promptTokens: 31, completionTokens: 4, cachedTokens: 24 }],
    ['llama-server-http/responses-stream.json', expect.anything()],
  ])('%s', (file, usage) => {
    const { request, response } = recorded(file)
    const path = request?.path ?? ''
    const sse = response?.sse ?? ''
    const whole = watch(path, sse, [])
    expect(whole.fault).toBeUndefined()
    expect(whole.usage).toEqual(usage)
    const cuts = Array.from({ length: 40 }, (_, i) => i * 53)
    expect(watch(path, sse, cuts)).toEqual(whole)
    // Nothing is lost but comments and the preamble's place.
    const data = (text: string) => text.split(/\r?\n/).filter((line) => line.startsWith('data:'))
    expect(data(whole.text).map((line) => line.replaceAll(/"prompt_cache_[a-z_]+":\d+,/g, ''))).toEqual(data(sse))
  })

  test.skipIf(!present)('a vLLM that is shut down ends with an error and [DONE]: only the first is told', () => {
    const { sse_tail: tail = '' } = recorded('vllm-http/sigterm-mid-stream.json')
    const { text, fault } = watch('/v1/chat/completions', tail, [])
    expect(fault).toMatch(/EngineCore/)
    expect(text).not.toContain('[DONE]')
  })

  test.skipIf(!present)('a forced call of a vLLM is read as a call', () => {
    const sse = recorded('vllm-http/tools-required-stream.json').response?.sse ?? ''
    const reader = new ChatEvents(1)
    const events = [...reader.add(Buffer.from(sse)), ...reader.finish(undefined)]
    const calls = events.flatMap((event) => (event.type === 'token' ? (event.split?.calls ?? []) : []))
    expect(calls.filter(({ name }) => name !== undefined)).toHaveLength(1)
    expect(() => JSON.parse(calls.map(({ argumentsDelta = '' }) => argumentsDelta).join(''))).not.toThrow()
    expect(events.map(({ type }) => type).filter((type) => type !== 'token')).toEqual(['start', 'end', 'finish'])
    expect(events.at(-1)).toMatchObject({ promptTokens: 41, completionTokens: 45 })
  })
})
