// Routes beside the generating ones, and every limit with its own error.

import { connect } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { type RequestSettled, requestSettled } from '../core/signals.js'
import { ManualClock } from '../testing/manual-clock.js'
import { chat, post, scriptedProgram } from '../testing/scripted-program.js'

let program: Program
afterEach(() => program?.stop(0))

const ask = async (method: 'GET' | 'DELETE' | 'PUT' | 'OPTIONS' | 'HEAD', url: string) => {
  const reply = await program.server.app.inject({ method, url })
  return { status: reply.statusCode, headers: reply.headers, text: reply.body, json: reply.json.bind(reply) }
}

describe('limits', () => {
  test('a body over bodyBytes is 413', async () => {
    program = await scriptedProgram({ 'limits.bodyBytes': 200 })
    const reply = await post(program, '/v1/chat/completions', chat('x'.repeat(300)))
    expect(reply.status).toBe(413)
    expect(reply.json().error).toMatchObject({ code: 'body_too_large', type: 'invalid_request_error' })
  })

  test('a prompt over the window is 400 in the words that clients look for, with the numbers', async () => {
    program = await scriptedProgram({ 'model.contextLength': 100 })
    const reply = await post(program, '/v1/chat/completions', chat('x'.repeat(400)))
    expect(reply.status).toBe(400)
    expect(reply.json().error).toEqual({
      message:
        "This model's maximum context length is 100 tokens. However, your messages resulted in 140 tokens. " +
        'Please reduce the length of the messages.',
      type: 'invalid_request_error',
      param: 'messages',
      code: 'context_length_exceeded',
    })
    const text = await post(program, '/v1/completions', { prompt: 'x'.repeat(300) })
    expect(text.json().error).toMatchObject({ code: 'context_length_exceeded', param: 'prompt' })
  })

  test('max_tokens is cut to what the window leaves; a full window still takes a prefill', async () => {
    program = await scriptedProgram({ 'model.contextLength': 100 }, { script: () => 'y'.repeat(3000) })
    const cut = await post(program, '/v1/completions', { prompt: 'x'.repeat(270), max_tokens: 1000 })
    expect(cut.json()).toMatchObject({
      choices: [{ finish_reason: 'length' }],
      usage: { prompt_tokens: 90, completion_tokens: 10 },
    })
    const full = await post(program, '/v1/completions', { prompt: 'x'.repeat(300), max_tokens: 0 })
    expect(full.json()).toMatchObject({ choices: [{ text: '', finish_reason: 'length' }] })
  })

  test('a full queue is 429 with Retry-After, waiting too long is 503', async () => {
    const clock = new ManualClock()
    program = await scriptedProgram(
      {
        'limits.queuedRequests': 1,
        'limits.queueMs': 1000,
        'backend.options': { maxRunning: 1, prefillTokensPerSecond: 1 },
      },
      { clock },
    )
    const running = post(program, '/v1/chat/completions', chat())
    for (let i = 0; i < 200 && clock.waiting < 1; i++) await new Promise((resolve) => setImmediate(resolve))
    const waiting = post(program, '/v1/chat/completions', chat())
    for (let i = 0; i < 200 && clock.waiting < 2; i++) await new Promise((resolve) => setImmediate(resolve))
    const refused = await post(program, '/v1/chat/completions', chat())
    expect(refused.status).toBe(429)
    expect(refused.json().error).toMatchObject({ code: 'queue_full', type: 'rate_limit_error' })
    expect(refused.headers).toMatchObject({ 'retry-after': '1', 'retry-after-ms': '1000', 'x-should-retry': 'true' })
    clock.advance(1000)
    expect((await waiting).json().error).toMatchObject({ code: 'queue_timeout' })
    expect((await waiting).status).toBe(503)
    await clock.advanceSlowly(60_000)
    expect((await running).status).toBe(200)
  })

  test.each([
    ['limits.n', { n: 17 }, 'n'],
    ['limits.stopStrings', { stop: Array(17).fill('a') }, 'stop'],
    ['limits.stopChars', { stop: 'a'.repeat(513) }, 'stop'],
    [
      'limits.logitBias',
      { logit_bias: Object.fromEntries(Array.from({ length: 1025 }, (_, i) => [i, 1])) },
      'logit_bias',
    ],
    ['limits.logitBias', { stop_token_ids: Array(1025).fill(1) }, 'stop_token_ids'],
    [
      'limits.jsonDepth',
      { response_format: { type: 'json_schema', json_schema: { schema: nested(65) } } },
      'response_format.json_schema.schema',
    ],
    [
      'limits.jsonDepth',
      { tools: [{ type: 'function', function: { name: 'f', parameters: nested(65) } }] },
      'tools[0]',
    ],
  ])('%s has an error that names it', async (limit, more, param) => {
    program = await scriptedProgram()
    const reply = await post(program, '/v1/chat/completions', chat('a', more))
    expect(reply.status).toBe(400)
    expect(reply.json().error).toMatchObject({ param, message: expect.stringContaining(limit) })
  })

  test('limits.prompts and limits.pinMs', async () => {
    program = await scriptedProgram({ 'limits.prompts': 2, 'limits.pinMs': 60_000 })
    const prompts = await post(program, '/v1/completions', { prompt: ['a', 'b', 'c'] })
    expect(prompts.json().error).toMatchObject({ param: 'prompt', message: expect.stringContaining('limits.prompts') })
    const pin = await post(program, '/v1/cache/warm', chat('a', { ttl: '2m' }))
    expect(pin.json().error).toMatchObject({ param: 'ttl', message: expect.stringContaining('limits.pinMs') })
  })

  test('limits.receiveMs ends a request that does not arrive, what is no HTTP is refused, both in the usual shape', async () => {
    program = await scriptedProgram({ 'limits.receiveMs': 100 })
    const { port } = new URL(await program.start())
    const answerTo = (text: string) =>
      new Promise<string>((resolve) => {
        let answer = ''
        const socket = connect(Number(port), '127.0.0.1', () => socket.write(text))
        socket.on('data', (bytes) => {
          answer += bytes
        })
        socket.on('close', () => resolve(answer))
      })
    const head = 'POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n'
    const [late, noHttp, large] = await Promise.all([
      answerTo(`${head}content-length: 100\r\n\r\n{`),
      answerTo('hello\r\n\r\n'),
      answerTo(`${head}x-large: ${'x'.repeat(20_000)}\r\n\r\n`),
    ])
    expect(late).toMatch(/^HTTP\/1\.1 408 /)
    expect(late).toContain('limits.receiveMs')
    expect(noHttp).toMatch(/^HTTP\/1\.1 400 .*"code":"invalid_request"/s)
    expect(large).toMatch(/^HTTP\/1\.1 431 .*"code":"invalid_request"/s)
  })
})

function nested(depth: number): object {
  let value: object = {}
  for (let i = 1; i < depth; i++) value = { a: value }
  return value
}

describe('cache', () => {
  test('warm computes and pins a prefix, a request then hits it, release and clear let it go', async () => {
    const clock = new ManualClock()
    program = await scriptedProgram({ 'backend.options': { answer: 'ok' } }, { clock })
    const body = chat('a long text '.repeat(100))
    const warm = await post(program, '/v1/cache/warm', { ...body, ttl: '10m' })
    expect(warm.status).toBe(200)
    const { id, tokens, blocks, expires_at } = warm.json()
    expect(blocks).toBe(Math.floor(tokens / 64))
    expect(expires_at).toBeGreaterThan(Date.now() / 1000 + 590)
    const hit = await post(program, '/v1/chat/completions', body)
    expect(hit.json().usage.prompt_cache_hit_tokens).toBe(blocks * 64)

    const { data } = (await ask('GET', '/v1/cache')).json()
    expect(data[0]).toMatchObject({ block_tokens: 64, pins: [{ id, blocks, expires_in_ms: 600_000 }] })
    expect(data[0].tiers[0]).toMatchObject({ tier: 'memory', pinned_blocks: blocks, healthy: true })
    expect((await ask('DELETE', '/v1/cache')).json().blocks).toBe(data[0].tiers[0].blocks - blocks)
    expect((await ask('DELETE', `/v1/cache/warm/${id}`)).json()).toEqual({ id, object: 'cache.warm', deleted: true })
    expect((await ask('DELETE', `/v1/cache/warm/${id}`)).status).toBe(404)
    expect((await ask('DELETE', '/v1/cache')).json().blocks).toBe(blocks)
  })

  test('a pin ends with its time', async () => {
    const clock = new ManualClock()
    program = await scriptedProgram({}, { clock })
    await post(program, '/v1/cache/warm', { ...chat('a long text '.repeat(100)), ttl_seconds: 30 })
    clock.advance(29_999)
    expect((await ask('GET', '/v1/cache')).json().data[0].pins).toHaveLength(1)
    clock.advance(1)
    expect((await ask('GET', '/v1/cache')).json().data[0].pins).toHaveLength(0)
  })

  test.each([{ ttl: '5 minutes' }, { ttl: 5 }, { ttl_seconds: -1 }, { ttl_seconds: 'x' }])(
    '%j is refused',
    async (ttl) => {
      program = await scriptedProgram()
      const reply = await post(program, '/v1/cache/warm', chat('a', ttl))
      expect(reply.json().error.param).toBe(Object.keys(ttl)[0])
    },
  )
})

describe('tokens', () => {
  test('a text and a chat are counted as they would be used', async () => {
    program = await scriptedProgram()
    for (const path of ['/v1/tokenize', '/tokenize']) {
      const text = (await post(program, path, { prompt: 'abcdef', return_token_strs: true })).json()
      expect(text).toMatchObject({ count: 2, max_model_len: 262_144, token_strs: ['abc', 'def'] })
      const back = await post(program, path.replace('token', 'detoken'), { tokens: text.tokens })
      expect(back.json().prompt).toBe('abcdef')
    }
    const body = chat('counted')
    const counted = (await post(program, '/v1/tokenize', body)).json().count
    expect((await post(program, '/v1/chat/completions', body)).json().usage.prompt_tokens).toBe(counted)
  })

  test.each([
    ['/v1/tokenize', {}, 'prompt'],
    ['/v1/tokenize', { prompt: 'a', messages: [{ role: 'user', content: 'a' }] }, 'prompt'],
    ['/v1/detokenize', {}, 'tokens'],
    ['/v1/detokenize', { tokens: [-1] }, 'tokens[0]'],
    ['/v1/detokenize', { tokens: [2 ** 30] }, 'tokens'],
    ['/v1/completions', { prompt: [2 ** 30] }, 'prompt'],
    ['/v1/completions', { prompt: 'a', stop_token_ids: [2 ** 30] }, 'stop_token_ids'],
    ['/v1/completions', { prompt: 'a', logit_bias: { [2 ** 30]: 1 } }, 'logit_bias'],
    ['/v1/completions', { prompt: '' }, 'prompt'],
  ])('%s of %j is refused by name', async (path, body, param) => {
    program = await scriptedProgram()
    const reply = await post(program, path, body)
    expect([reply.status, reply.json().error.param]).toEqual([400, param])
  })
})

describe('what there is not', () => {
  test('no route is 404, another method 405 with Allow, OPTIONS 204, HEAD as GET', async () => {
    program = await scriptedProgram()
    expect((await ask('GET', '/v1/nothing')).json().error).toMatchObject({ code: 'not_found' })
    const wrong = await ask('GET', '/v1/chat/completions')
    expect([wrong.status, wrong.json().error.code]).toEqual([405, 'method_not_allowed'])
    expect(wrong.headers['allow']).toBe('POST, OPTIONS')
    expect((await ask('PUT', '/v1/models/a/b')).headers['allow']).toBe('GET, HEAD, OPTIONS')
    expect((await ask('OPTIONS', '/v1/cache')).status).toBe(204)
    const head = await ask('HEAD', '/v1/models')
    expect([head.status, head.text]).toEqual([200, ''])
    const bad = await ask('GET', '/v1/models/%zz')
    expect([bad.status, typeof bad.json().error.code]).toEqual([400, 'string'])
  })
})

test("ids: an own one, or the client's where it is harmless", async () => {
  program = await scriptedProgram()
  const own = await post(program, '/v1/chat/completions', chat())
  expect(own.headers['x-request-id']).toMatch(/^[0-9a-f]{32}$/)
  expect(own.json().id).toBe(`chatcmpl-${own.headers['x-request-id']}`)
  const sent = await post(program, '/v1/chat/completions', chat(), { 'x-request-id': 'trace-1' })
  expect(sent.headers['x-request-id']).toBe('trace-1')
  const odd = await post(program, '/v1/chat/completions', chat(), { 'x-request-id': 'a b<script>' })
  expect(odd.headers['x-request-id']).toMatch(/^[0-9a-f]{32}$/)
})

test('the description names every route and every field that is read', async () => {
  program = await scriptedProgram()
  const document = (await ask('GET', '/openapi.json')).json()
  expect(Object.keys(document.paths).sort()).toEqual([
    '/api/hello',
    '/dashboard',
    '/dashboard/{id}',
    '/detokenize',
    '/health',
    '/metrics',
    '/openapi.json',
    '/ready',
    '/tokenize',
    '/v1/cache',
    '/v1/cache/warm',
    '/v1/cache/warm/{id}',
    '/v1/chat/completions',
    '/v1/completions',
    '/v1/dashboard/feed',
    '/v1/dashboard/sessions/{id}/turns',
    '/v1/dashboard/tree',
    '/v1/detokenize',
    '/v1/explain/sessions',
    '/v1/memory',
    '/v1/memory/{id}',
    '/v1/messages',
    '/v1/messages/count_tokens',
    '/v1/models',
    '/v1/models/{id}',
    '/v1/quick',
    '/v1/responses',
    '/v1/responses/{id}',
    '/v1/sessions',
    '/v1/sessions/{id}',
    '/v1/sessions/{id}/compact',
    '/v1/sessions/{id}/context',
    '/v1/sessions/{id}/events',
    '/v1/sessions/{id}/fork',
    '/v1/sessions/{id}/layers',
    '/v1/sessions/{id}/reset',
    '/v1/sessions/{id}/results/{locator}',
    '/v1/sessions/{id}/resume',
    '/v1/sessions/{id}/series',
    '/v1/sessions/{id}/turns',
    '/v1/sessions/{id}/turns/{n}/explain',
    '/v1/sources/{id}',
    '/v1/tenants/{id}',
    '/v1/tokenize',
  ])
  const schema = document.paths['/v1/chat/completions'].post.requestBody.content['application/json'].schema
  expect(Object.keys(schema.properties)).toEqual(expect.arrayContaining(['messages', 'tools', 'temperature', 'stop']))
})

test('a refusal is counted too, once, under its route', async () => {
  const seen: RequestSettled[] = []
  const stop = requestSettled.subscribe((request) => seen.push(request))
  program = await scriptedProgram({ 'limits.bodyBytes': 300 })
  await ask('GET', '/v1/nothing')
  await ask('DELETE', '/v1/cache/warm/none')
  await post(program, '/v1/chat/completions', chat('x'.repeat(400)))
  await post(program, '/v1/chat/completions', chat('x', { n: 0 }))
  await post(program, '/v1/cache/warm', chat('x'))
  await ask('GET', '/v1/models')
  stop()
  expect(seen.map(({ route, status, error }) => [route, status, error])).toEqual([
    ['', 404, 'not_found'],
    ['/v1/cache/warm/:id', 404, 'not_found'],
    ['/v1/chat/completions', 413, 'body_too_large'],
    ['/v1/chat/completions', 400, 'invalid_request'],
    ['/v1/cache/warm', 200, undefined],
  ])
})

test('metrics count what was asked and answered', async () => {
  program = await scriptedProgram({ 'backend.options': { answer: 'ok' } })
  await post(program, '/v1/chat/completions', chat('a'.repeat(300)))
  await post(program, '/v1/chat/completions', chat('a'.repeat(300)))
  await post(program, '/v1/chat/completions', {})
  const { text, headers } = await ask('GET', '/metrics')
  expect(headers['content-type']).toMatch(/^text\/plain; version=/)
  expect(text).toContain('refrain_requests_total{route="/v1/chat/completions",status="200",error=""} 2')
  expect(text).toContain('refrain_requests_total{route="/v1/chat/completions",status="400",error="invalid_request"} 1')
  expect(text).toContain('refrain_prompt_tokens_total{source="memory",tenant="default"} 64')
  expect(text).toContain('refrain_generated_tokens_total{tenant="default"} 4')
})
