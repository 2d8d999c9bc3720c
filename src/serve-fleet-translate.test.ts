// Dialects that a backend lacks, told by way of its chat; and streams that break off and are continued elsewhere.

import { afterEach, describe, expect, test } from 'vitest'
import { dataOf, type FleetHouse, fleetHouse, type HouseOptions, saidIn } from './testing/fleet-house.js'
import { beginStream, chunk, ROLE, saying, usageChunk } from './testing/stub-upstream.js'

const houses: FleetHouse[] = []
afterEach(async () => {
  await Promise.all(houses.splice(0).map((house) => house.close()))
})

async function house(options: HouseOptions = {}): Promise<FleetHouse> {
  const made = await fleetHouse(options)
  houses.push(made)
  return made
}

const lacks = ['/v1/messages', '/v1/responses']

const TOOL = '{"name":"run", "description":"d", "input_schema":{"type":"object","properties":{"n":{"minimum":1.0}}}}'
const MESSAGES = `{"model":"m","max_tokens":50,"system":"be kind","tools":[${TOOL}],"messages":[
  {"role":"user","content":"a"},
  {"role":"assistant","content":[{"type":"text","text":"b"},{"type":"tool_use","id":"t1","name":"run","input":{"n":1.50}}]},
  {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"c"}]}]`

/** Events of a stream by type. */
const typesIn = (text: string) => dataOf(text).map((data) => JSON.parse(data).type as string)

describe('Anthropic over chat', () => {
  test('a stream: asked as a chat, told in its own events', async () => {
    const { post, stubs } = await house({ stubs: [{ lacks }] })
    stubs[0]!.answer = saying(['he', 'llo'], 4)
    const text = await (await post('/v1/messages', `${MESSAGES},"stream":true}`)).text()
    const { path, body, text: sent } = stubs[0]!.requests[0]!
    expect(path).toBe('/v1/chat/completions')
    expect(body['stream']).toBe(true)
    expect((body['messages'] as { role: string }[]).map(({ role }) => role)).toEqual([
      'system',
      'user',
      'assistant',
      'tool',
    ])
    // The client's own text of numbers, wherever it goes.
    expect(sent).toContain('"minimum":1.0')
    expect(sent).toContain(JSON.stringify('{"n":1.50}'))
    expect(typesIn(text)).toEqual([
      'message_start',
      'content_block_start',
      'content_block_delta',
      'content_block_delta',
      'content_block_stop',
      'message_delta',
      'message_stop',
    ])
    const delta = dataOf(text)
      .map((data) => JSON.parse(data))
      .find(({ type }) => type === 'message_delta')
    expect(delta).toMatchObject({
      delta: { stop_reason: 'end_turn' },
      usage: { input_tokens: 6, cache_read_input_tokens: 4, output_tokens: 2 },
    })
  })

  test('a whole answer, with a call', async () => {
    const { post, stubs } = await house({ stubs: [{ lacks }] })
    stubs[0]!.answer = (_, response) => {
      beginStream(response)
      const call = (more: object, args: string) => ({
        tool_calls: [{ index: 0, ...more, function: { ...('id' in more && { name: 'run' }), arguments: args } }],
      })
      response.write(ROLE + chunk(call({ id: 'call_1', type: 'function' }, '{"n":')) + chunk(call({}, ' 2}')))
      response.end(`${chunk({}, 'tool_calls')}${usageChunk(20, 16, 9)}data: [DONE]\n\n`)
    }
    const answer = await post('/v1/messages', `${MESSAGES}}`)
    expect(answer.headers.get('content-type')).toMatch(/^application\/json/)
    expect(await answer.json()).toMatchObject({
      type: 'message',
      stop_reason: 'tool_use',
      content: [{ type: 'tool_use', id: 'call_1', name: 'run', input: { n: 2 } }],
      usage: { input_tokens: 4, cache_read_input_tokens: 16, output_tokens: 9 },
    })
  })

  test('a refusal of the chat has the shape of the dialect; a fault is tried elsewhere, also behind content', async () => {
    const made = await house({ stubs: [{ lacks }, { lacks }] })
    for (const stub of made.stubs) {
      stub.answer = (_, response) => response.writeHead(400).end('{"error":{"message":"maximum context length is 5"}}')
    }
    const refused = await made.post('/v1/messages', `${MESSAGES},"stream":true}`)
    expect(refused.status).toBe(400)
    expect(await refused.json()).toMatchObject({ type: 'error', error: { type: 'invalid_request_error' } })
    let was = false
    for (const stub of made.stubs) {
      stub.answer = (request, response, socket) => {
        if (was) return saying(['good'])(request, response, socket)
        was = true
        beginStream(response)
        response.write(ROLE + chunk({ content: 'half' }), () => setTimeout(() => socket.resetAndDestroy(), 20))
      }
    }
    const whole = (await (await made.post('/v1/messages', `${MESSAGES}}`)).json()) as { content: { text: string }[] }
    expect(whole.content.map(({ text }) => text)).toEqual(['good'])
  })

  test('a stream that breaks ends as an error of the dialect', async () => {
    const { post, stubs } = await house({ stubs: [{ lacks }] })
    stubs[0]!.answer = (_, response) => {
      beginStream(response)
      response.end(ROLE + chunk({ content: 'half' }))
    }
    const text = await (await post('/v1/messages', `${MESSAGES},"stream":true}`)).text()
    expect(typesIn(text).at(-1)).toBe('error')
    expect(typesIn(text)).not.toContain('message_stop')
  })

  test('a server that has the dialect gets it as it came', async () => {
    const { post, stubs } = await house({ stubs: [{}] })
    stubs[0]!.answer = (_, response) => response.end('{"type":"message"}')
    await post('/v1/messages', `${MESSAGES}}`)
    expect(stubs[0]!.requests[0]).toMatchObject({ path: '/v1/messages', text: `${MESSAGES}}` })
  })
})

describe('Responses over chat', () => {
  test('a stream and a whole answer', async () => {
    const { post, stubs } = await house({ stubs: [{ lacks }] })
    stubs[0]!.answer = saying(['he', 'llo'], 4)
    const body = { model: 'm', input: 'hi', instructions: 'be kind', max_output_tokens: 9 }
    const text = await (await post('/v1/responses', { ...body, stream: true })).text()
    expect(typesIn(text)[0]).toBe('response.created')
    const last = JSON.parse(dataOf(text).at(-1) as string)
    expect(last).toMatchObject({
      type: 'response.completed',
      response: { usage: { input_tokens: 10, input_tokens_details: { cached_tokens: 4 }, output_tokens: 2 } },
    })
    const whole = (await (await post('/v1/responses', body)).json()) as { status: string; output: unknown[] }
    expect(whole).toMatchObject({ status: 'completed', output: [{ content: [{ text: 'hello' }] }] })
    expect(stubs[0]!.requests.map(({ body: sent }) => [sent['max_tokens'], sent['stream']])).toEqual([
      [9, true],
      [9, true],
    ])
  })

  test('a stream that breaks ends as response.failed, counted on', async () => {
    const { post, stubs } = await house({ stubs: [{ lacks }] })
    stubs[0]!.answer = (_, response) => {
      beginStream(response)
      response.end(ROLE + chunk({ content: 'half' }))
    }
    const text = await (await post('/v1/responses', { model: 'm', input: 'x', stream: true })).text()
    const numbers = dataOf(text).map((data) => JSON.parse(data).sequence_number)
    expect(numbers).toEqual(numbers.map((_, i) => i))
    expect(typesIn(text).at(-1)).toBe('response.failed')
  })
})

describe('a broken stream is continued where the config says so', () => {
  const config = { 'fleet.continueBroken': true }

  /** The first one asked says `half ` and breaks; whoever is asked next says the rest. */
  function breaking({ stubs }: FleetHouse, rest = saying(['rest'], 6)): void {
    let was = false
    for (const stub of stubs) {
      stub.answer = (request, response, socket) => {
        if (was) return rest(request, response, socket)
        was = true
        beginStream(response)
        response.write(ROLE + chunk({ content: 'ha' }) + chunk({ content: 'lf ' }), () =>
          setTimeout(() => socket.resetAndDestroy(), 20),
        )
      }
    }
  }

  const sentTo = ({ stubs }: FleetHouse) =>
    stubs.flatMap(({ requests }) => requests).find(({ text }) => text.includes('ha'))

  test('by another one that goes on with the answer, as one answer', async () => {
    const made = await house({ config })
    breaking(made)
    const options = { stream: true, stream_options: { include_usage: true }, max_tokens: 40 }
    const text = await (await made.chat(options)).text()
    expect(saidIn(text)).toBe('half rest')
    expect(dataOf(text).at(-1)).toBe('[DONE]')
    const chunks = dataOf(text)
      .slice(0, -1)
      .map((data) => JSON.parse(data))
    expect(new Set(chunks.map(({ id }) => id)).size).toBe(1)
    expect(chunks.filter(({ choices }) => choices[0]?.delta.role !== undefined)).toHaveLength(1)
    expect(chunks.at(-1).usage).toMatchObject({ prompt_tokens: 8, completion_tokens: 3 })
    const asked = made.stubs.flatMap(({ requests }) => requests).find(({ text: sent }) => sent.includes('half '))
    expect(asked?.body).toMatchObject({ continue_final_message: true, add_generation_prompt: false, max_tokens: 38 })
    expect(asked?.text).toContain('{"role":"user","content":"hi"},{"role":"assistant","content":"half "}]')
  })

  test('not where calls have begun, nor by servers that cannot', async () => {
    const made = await house({ config })
    for (const stub of made.stubs) {
      stub.answer = (_, response) => {
        beginStream(response)
        const tool_calls = [{ index: 0, id: 'a', type: 'function', function: { name: 'f', arguments: '{' } }]
        response.end(ROLE + chunk({ tool_calls }))
      }
    }
    const calls = await (await made.chat({ stream: true })).text()
    expect(JSON.parse(dataOf(calls).at(-1) as string).error.code).toBe('engine_failed')
    const other = await house({ config, stubs: [{ owner: 'x' }, { owner: 'y' }] })
    breaking(other)
    const text = await (await other.chat({ stream: true })).text()
    expect(saidIn(text)).toBe('half ')
    expect(text).not.toContain('[DONE]')
    expect(sentTo(other)).toBeUndefined()
  })

  test('not without the config', async () => {
    const made = await house()
    breaking(made)
    const text = await (await made.chat({ stream: true })).text()
    expect(saidIn(text)).toBe('half ')
    expect(JSON.parse(dataOf(text).at(-1) as string).error.code).toBe('engine_failed')
  })
})
