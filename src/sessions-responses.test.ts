// Answers of the Responses API that are kept under their ids: the official client goes on from them, branches off them, and
// loses nothing; what is not stored is not kept.

import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createScriptedTokenizer } from './backend/scripted-tokenizer.js'
import type { Program } from './compose.js'
import { scriptedProgram } from './testing/scripted-program.js'

const tokenizer = createScriptedTokenizer({ end: '<|im_end|>', specials: ['<|im_start|>'] })
const prompts: string[] = []
let script: string[] = []
let program: Program
let url: string
let client: OpenAI

beforeAll(async () => {
  program = await scriptedProgram(
    { 'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' } },
    {
      script: (job) => {
        prompts.push(tokenizer.decode(job.tokens, { special: 'keep' }))
        return script.shift() ?? 'Done.'
      },
    },
  )
  url = await program.start()
  client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused', maxRetries: 0 })
})
afterAll(() => program.stop(0))

const model = 'smollm2-135m-instruct'
const ask = (input: OpenAI.Responses.ResponseInput | string, more: object = {}) =>
  client.responses.create({ model, input, ...more } as OpenAI.Responses.ResponseCreateParamsNonStreaming)
const sessions = async () =>
  ((await (await fetch(`${url}/v1/sessions`)).json()) as { data: { id: string }[] }).data.map(({ id }) => id)

describe('previous_response_id', () => {
  test('goes on from the answer, with what is new alone', async () => {
    script = ['Four.', 'Five.']
    const first = await ask('How many bridges?', { store: true })
    expect(first.id).toMatch(/^resp_[0-9a-f]{64}$/)
    expect(first).toMatchObject({ store: true, previous_response_id: null })
    const second = await ask('And towers?', { previous_response_id: first.id })
    expect(second).toMatchObject({ output_text: 'Five.', previous_response_id: first.id, store: true })
    for (const text of ['How many bridges?', 'Four.', 'And towers?']) expect(prompts.at(-1)).toContain(text)
    expect(await sessions()).toHaveLength(1)
  })

  test('calls and their results', async () => {
    script = ['<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}\n</tool_call>', 'It is blue.']
    const tools = [{ type: 'function', name: 'look', parameters: { type: 'object', properties: {} }, strict: false }]
    const first = await ask('The sea?', { store: true, tools })
    const call = first.output.find(({ type }) => type === 'function_call') as OpenAI.Responses.ResponseFunctionToolCall
    const output = { type: 'function_call_output', call_id: call.call_id, output: 'blue' } as const
    const second = await ask([output], { previous_response_id: first.id, tools })
    expect(second.output_text).toBe('It is blue.')
    expect(prompts.at(-1)).toContain('blue')
  })

  test('a second answer from the same id is a fork; both go on', async () => {
    script = ['Root.', 'Left.', 'Right.', 'Left again.']
    const root = await ask('Begin.', { store: true })
    const before = (await sessions()).length
    const left = await ask('Go left.', { previous_response_id: root.id })
    const right = await ask('Go right.', { previous_response_id: root.id })
    expect([left.output_text, right.output_text]).toEqual(['Left.', 'Right.'])
    expect(prompts.at(-1)).not.toContain('left')
    expect((await sessions()).length).toBe(before + 1)
    await ask('Further.', { previous_response_id: left.id })
    expect(prompts.at(-1)).toContain('Go left.')
    expect(prompts.at(-1)).not.toContain('Go right.')
  })

  test('instructions are those of the request, not of the one before', async () => {
    script = ['Ahoy.', 'Hello.']
    const first = await ask('Hi', { store: true, instructions: 'Talk like a pirate.' })
    await ask('Hi again', { previous_response_id: first.id })
    expect(prompts.at(-1)).not.toContain('pirate')
    expect(prompts.at(-1)).toContain('Ahoy.')
  })

  test('store: false goes on and keeps nothing', async () => {
    script = ['One.', 'Two.', 'Three.']
    const first = await ask('Count.', { store: true })
    const second = await ask('On.', { previous_response_id: first.id, store: false })
    expect(second).toMatchObject({ output_text: 'Two.', store: false })
    expect(prompts.at(-1)).toContain('One.')
    await expect(ask('On.', { previous_response_id: second.id })).rejects.toMatchObject({ status: 404 })
    const third = await ask('Then?', { previous_response_id: first.id })
    expect(third.output_text).toBe('Three.')
    expect(prompts.at(-1)).not.toContain('Two.')
  })

  test('streams, with the id in every event', async () => {
    script = ['Streamed.', 'On.']
    const stream = client.responses.stream({ model, input: 'Hi', store: true })
    const response = await stream.finalResponse()
    expect(response.output_text).toBe('Streamed.')
    expect((await ask('On', { previous_response_id: response.id })).output_text).toBe('On.')
  })

  test('what fails, and what is asked again from an old place without being stored, leaves no session', async () => {
    script = ['One.', 'Two.', 'Aside.']
    const first = await ask('Count.', { store: true })
    await ask('On.', { previous_response_id: first.id })
    const before = await sessions()
    const tools = [{ type: 'function', name: 'peek', parameters: { type: 'object', properties: {} }, strict: false }]
    const aside = await ask('Or?', { previous_response_id: first.id, store: false, tools, instructions: 'Guess.' })
    expect(aside.output_text).toBe('Aside.')
    for (const text of ['peek', 'Guess.', 'One.']) expect(prompts.at(-1)).toContain(text)
    expect(prompts.at(-1)).not.toContain('Two.')
    await expect(ask('Hi', { store: true, temperature: 9 })).rejects.toMatchObject({ status: 400 })
    await expect(ask('Hi', { store: true, stop_token_ids: [2 ** 30] })).rejects.toMatchObject({ status: 400 })
    expect(await sessions()).toEqual(before)
  })

  test.each(['resp_1', `resp_${'0'.repeat(64)}`])('%s is not found', async (previous) => {
    const refused = ask('Hi', { previous_response_id: previous })
    await expect(refused).rejects.toMatchObject({ status: 404, param: 'previous_response_id' })
  })

  test('without store nothing is kept', async () => {
    script = ['Yes.']
    const before = (await sessions()).length
    const response = await ask('Hi')
    expect(response).toMatchObject({ store: false })
    expect((await sessions()).length).toBe(before)
    await expect(ask('Hi', { previous_response_id: response.id })).rejects.toMatchObject({ status: 404 })
  })
})

describe('an answer that is stored', () => {
  test('is told again by its id', async () => {
    script = [
      '<think>\nHm.\n</think>\n\nI look.<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}\n</tool_call>',
      'Blue.',
    ]
    const tools = [{ type: 'function', name: 'look', parameters: { type: 'object', properties: {} }, strict: false }]
    const first = await ask('The sea?', { store: true, tools, instructions: 'Be brief.' })
    const call = first.output.find(({ type }) => type === 'function_call') as OpenAI.Responses.ResponseFunctionToolCall
    const again = await client.responses.retrieve(first.id)
    expect(again.output).toEqual(first.output)
    const { id, status, model: named, instructions } = first
    const same = { id, status, model: named, instructions, tools }
    expect(again).toMatchObject({ ...same, store: true, previous_response_id: null })
    expect(again.usage).toMatchObject({ input_tokens: first.usage?.input_tokens })
    const output = { type: 'function_call_output', call_id: call.call_id, output: 'blue' } as const
    const second = await ask([output], { previous_response_id: first.id, tools })
    expect(await client.responses.retrieve(second.id)).toMatchObject({
      ...{ output_text: 'Blue.', previous_response_id: first.id, instructions: null },
    })
    expect((await client.responses.retrieve(first.id)).output).toEqual(first.output)
  })

  test('is erased with its session where nothing else stands on it', async () => {
    script = ['One.', 'Two.', 'Three.']
    const first = await ask('Count.', { store: true })
    const before = await sessions()
    await client.responses.delete(first.id)
    expect(await sessions()).toHaveLength(before.length - 1)
    await expect(client.responses.retrieve(first.id)).rejects.toMatchObject({ status: 410, code: 'erased' })
    const root = await ask('Count.', { store: true })
    const next = await ask('On.', { previous_response_id: root.id })
    for (const { id } of [root, next]) await expect(client.responses.delete(id)).rejects.toMatchObject({ status: 409 })
    expect((await client.responses.retrieve(next.id)).output_text).toBe('Three.')
    const fork = await ask('Or.', { previous_response_id: root.id })
    await client.responses.delete(fork.id)
    expect((await client.responses.retrieve(root.id)).output_text).toBe('Two.')
  })

  test.each(['resp_1', `resp_${'0'.repeat(64)}`])('%s is not found', async (id) => {
    await expect(client.responses.retrieve(id)).rejects.toMatchObject({ status: 404 })
    await expect(client.responses.delete(id)).rejects.toMatchObject({ status: 404 })
  })
})

describe('other dialects', () => {
  const raw = async (path: string, body: object) => {
    const response = await fetch(url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    return { status: response.status, json: await response.json() }
  }

  test('one session, a turn in each', async () => {
    script = ['One.', 'Two.', 'Three.']
    const { json } = await raw('/v1/sessions', { system: 'Sys.' })
    const { id: session } = json as { id: string }
    await raw('/v1/chat/completions', { session, messages: [{ role: 'user', content: 'a' }] })
    await raw('/v1/responses', { session, input: 'b' })
    const third = await raw('/v1/messages', { session, max_tokens: 100, messages: [{ role: 'user', content: 'c' }] })
    expect(third.json).toMatchObject({ content: [{ type: 'text', text: 'Three.' }] })
    for (const text of ['Sys.', 'One.', 'Two.']) expect(prompts.at(-1)).toContain(text)
    expect((await raw('/v1/responses', { session, input: [] })).status).toBe(200)
    expect((await raw('/v1/messages', { session, max_tokens: 9, messages: [] })).status).toBe(200)
  })

  test('completions have none', async () => {
    const refused = await raw('/v1/completions', { session: `ses_${'0'.repeat(32)}`, prompt: 'x' })
    expect(refused).toMatchObject({ status: 400, json: { error: { param: 'session' } } })
  })
})
