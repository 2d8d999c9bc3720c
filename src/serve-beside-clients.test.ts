// The official clients against a fleet that asks on the side: they pass over what the questions came to, and what they make
// of the answer is what they make of it without.

import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type BesideHouse, besideHouse, quick, RESULTS, WORDS } from './testing/beside-house.js'
import { messaging, responding } from './testing/stub-dialects.js'
import { saying } from './testing/stub-upstream.js'

let house: BesideHouse
let openai: OpenAI
let anthropic: Anthropic

beforeAll(async () => {
  house = await besideHouse()
  openai = new OpenAI({ baseURL: `${house.url}/v1`, apiKey: 'unused', maxRetries: 0 })
  anthropic = new Anthropic({ baseURL: house.url, apiKey: 'unused', maxRetries: 0 })
})
afterAll(() => house.close())

const messages = [{ role: 'user' as const, content: 'Who won the 2031 cup?' }]
const asked = (at: string) => ({ quick: { ...quick, at } })
const toldIn = (answer: unknown) => (answer as { quick: { results: unknown } }).quick.results

test.each(['user', 'reply'])('chat.completions, at %s', async (at) => {
  house.asides(WORDS, saying(['No', 'body.']))
  const body = { model: 'm', messages }
  const whole = await openai.chat.completions.create({ ...body, ...asked(at) })
  expect(whole.choices[0]?.message.content).toBe('Nobody.')
  expect(toldIn(whole)).toMatchObject(RESULTS)
  const options = { stream_options: { include_usage: true } }
  const stream = openai.chat.completions.stream({ ...body, ...options, ...asked(at) })
  let results: unknown
  stream.on('chunk', (chunk) => {
    if ('quick' in chunk) results = toldIn(chunk)
  })
  const final = await stream.finalChatCompletion()
  const plain = await openai.chat.completions.stream({ ...body, ...options }).finalChatCompletion()
  expect(final.choices).toEqual(plain.choices)
  expect(final.usage).toEqual(plain.usage)
  expect(results).toMatchObject(RESULTS)
})

test.each(['user', 'reply'])('responses, at %s', async (at) => {
  house.asides(WORDS, responding(['No', 'body.']))
  const body = { model: 'm', input: 'Who won the 2031 cup?' }
  const whole = await openai.responses.create({ ...body, ...asked(at) })
  expect(whole.output_text).toBe('Nobody.')
  expect(toldIn(whole)).toMatchObject(RESULTS)
  const final = await openai.responses.stream({ ...body, ...asked(at) }).finalResponse()
  expect(final.output_text).toBe('Nobody.')
  expect(toldIn(final)).toMatchObject(RESULTS)
})

test.each(['user', 'reply'])('messages, at %s', async (at) => {
  house.asides(WORDS, messaging(['No', 'body.'], 'I think.'))
  const body = { model: 'm', max_tokens: 50, messages }
  const whole = await anthropic.messages.create({ ...body, ...asked(at) })
  expect(whole.content.at(-1)).toMatchObject({ type: 'text', text: 'Nobody.' })
  expect(toldIn(whole)).toMatchObject(RESULTS)
  const stream = anthropic.messages.stream({ ...body, ...asked(at) })
  let results: unknown
  stream.on('streamEvent', (event) => {
    if (event.type === 'message_delta') results = toldIn(event)
  })
  const final = await stream.finalMessage()
  const plain = await anthropic.messages.stream(body).finalMessage()
  expect(final).toEqual(plain)
  expect(results).toMatchObject(RESULTS)
})
