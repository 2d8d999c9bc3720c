// Counts in every form that backends give them, and what is not believed.

import { expect, test } from 'vitest'
import { completeUsage, joinUsage, usageFrom, usageInText } from './usage.js'

test.each([
  [
    { prompt_tokens: 10, completion_tokens: 2 },
    { promptTokens: 10, completionTokens: 2 },
  ],
  [
    { prompt_tokens: 10, completion_tokens: 2, prompt_tokens_details: null },
    { promptTokens: 10, completionTokens: 2 },
  ],
  [
    { prompt_tokens: 10, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 0 } },
    { promptTokens: 10, completionTokens: 2, cachedTokens: 0 },
  ],
  [
    { prompt_tokens: 10, completion_tokens: 2, prompt_cache_hit_tokens: 4, prompt_cache_miss_tokens: 6 },
    { promptTokens: 10, completionTokens: 2, cachedTokens: 4 },
  ],
  [
    { input_tokens: 10, output_tokens: 2, input_tokens_details: { cached_tokens: 3 } },
    { promptTokens: 10, completionTokens: 2, cachedTokens: 3 },
  ],
  [
    { input_tokens: 1, output_tokens: 2, cache_read_input_tokens: 3, cache_creation_input_tokens: 4 },
    { promptTokens: 8, completionTokens: 2, cachedTokens: 3 },
  ],
  // More cached than there was, nothing at all, no numbers.
  [{ prompt_tokens: 10, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 11 } }, undefined],
  [{ prompt_tokens: 0, completion_tokens: 0 }, undefined],
  [{ prompt_tokens: '10' }, undefined],
  [null, undefined],
])('%j', (said, usage) => {
  expect(usageFrom(said)).toEqual(usage)
})

test('llama-server tells in its timings what was cached', () => {
  expect(usageFrom({ prompt_tokens: 10, completion_tokens: 2 }, { cache_n: 8, prompt_n: 2 })).toEqual({
    promptTokens: 10,
    completionTokens: 2,
    cachedTokens: 8,
  })
})

test('it is found in a body by its name alone, behind texts that look like it', () => {
  const text = JSON.stringify({
    choices: [{ message: { content: '"usage":{"prompt_tokens":1}', tool_calls: [{ arguments: '{"usage":{}}' }] } }],
    usage: { prompt_tokens: 5, completion_tokens: 1, prompt_tokens_details: { cached_tokens: 2 } },
    timings: { cache_n: 2 },
  })
  expect(usageInText(text)).toEqual({ promptTokens: 5, completionTokens: 1, cachedTokens: 2 })
  expect(usageInText('{"usage":null}')).toBeUndefined()
  expect(usageInText('{"usage":{"prompt_tokens":')).toBeUndefined()
})

test('what is known and was left out is added, and nothing else', () => {
  const text = '{"a":1.0, "usage": {"prompt_tokens":5,"completion_tokens":1}}'
  expect(completeUsage(text, { promptTokens: 5, completionTokens: 1, cachedTokens: 2 })).toBe(
    '{"a":1.0, "usage": {"prompt_tokens_details":{"cached_tokens":2},"prompt_cache_hit_tokens":2,"prompt_cache_miss_tokens":3,"prompt_tokens":5,"completion_tokens":1}}',
  )
  expect(completeUsage(text, { promptTokens: 5, completionTokens: 1 })).toBe(text)
  const anthropic = '{"usage":{"input_tokens":5,"cache_read_input_tokens":2}}'
  expect(completeUsage(anthropic, { promptTokens: 7, completionTokens: 0, cachedTokens: 2 })).toBe(anthropic)
})

test('parts of one answer are joined', () => {
  const start = { promptTokens: 10, completionTokens: 0, cachedTokens: 7 }
  expect(joinUsage(start, { promptTokens: 10, completionTokens: 5 })).toEqual({
    promptTokens: 10,
    completionTokens: 5,
    cachedTokens: 7,
  })
  expect(joinUsage(undefined, start)).toBe(start)
  expect(joinUsage(start, undefined)).toBe(start)
})
