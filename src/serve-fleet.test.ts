// A fleet from the client's socket to the upstreams' and back: what goes through as it came, what is set in it by kind,
// what usage says, whom a tenant shares with.

import { connect } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { about, dataOf, type FleetHouse, fleetHouse, type HouseOptions, until } from './testing/fleet-house.js'
import { beginStream, chunk, saying, usageChunk } from './testing/stub-upstream.js'

const houses: FleetHouse[] = []
afterEach(async () => {
  await Promise.all(houses.splice(0).map((house) => house.close()))
})

async function house(options: HouseOptions = {}): Promise<FleetHouse> {
  const made = await fleetHouse(options)
  houses.push(made)
  return made
}

describe('a body', () => {
  test('goes through byte for byte, but for what is set', async () => {
    const { post, stubs } = await house({ stubs: [{}] })
    const text =
      '{ "model" :"m",\n\t"stream": true,"temperature":1.50, "tools":[{"b":1e3,"a":"\\u00e9é"}],\r\n "messages": [ {"role":"user","content":"a\\/b"} ] }'
    await (await post('/v1/chat/completions', text)).text()
    expect(stubs[0]?.requests[0]?.text).toBe(`${text.slice(0, -1)},"stream_options":{"include_usage":true}}`)
  })

  test('the answer comes back as the backend wrote it', async () => {
    const { chat, stubs } = await house({ stubs: [{}] })
    const body = '{"id":"x", "choices":[{"message":{"content":"é"}}],"usage":{"prompt_tokens":7,"completion_tokens":1}}'
    stubs[0]!.answer = (_, response) => response.writeHead(200, { 'content-type': 'application/json' }).end(body)
    expect(await (await chat()).text()).toBe(body)
  })

  test('what is no JSON object, no UTF-8 or too large is refused here', async () => {
    const { post, stubs } = await house({ stubs: [{}], config: { 'limits.bodyBytes': 1000 } })
    const codes = [
      ['{"model":"m"', 'invalid_json'],
      [Buffer.from([123, 34, 255, 34, 58, 49, 125]), 'invalid_json'],
      ['', 'invalid_json'],
      [`{"model":"m","messages":["${'x'.repeat(2000)}"]}`, 'body_too_large'],
      ['{"model":"other"}', 'model_not_found'],
    ] as const
    for (const [body, code] of codes) {
      const answer = (await (await post('/v1/chat/completions', body)).json()) as { error: { code: string } }
      expect(answer.error.code).toBe(code)
    }
    expect(stubs[0]?.requests).toHaveLength(0)
  })

  test('a client that gives up ends the work upstream, in a stream and before one', async () => {
    const { url, stubs } = await house({ stubs: [{}] })
    const body = (stream: boolean) => JSON.stringify({ model: 'm', messages: [], stream })
    for (const stream of [true, false]) {
      const stop = new AbortController()
      stubs[0]!.answer = (_, response) => {
        if (!stream) return
        beginStream(response)
        response.write(chunk({ content: 'a' }))
      }
      const before = stubs[0]!.aborted
      const seen = stubs[0]!.requests.length
      const headers = { 'content-type': 'application/json' }
      const request = fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers,
        body: body(stream),
        signal: stop.signal,
      }).then((response) => response.text())
      request.catch(() => undefined)
      await until(() => stubs[0]!.requests.length > seen)
      stop.abort()
      await until(() => stubs[0]!.aborted > before)
    }
  })
})

describe('a client that reads slowly', () => {
  test('is cut off once too much waits for it, and the work with it', async () => {
    const { url, stubs } = await house({ stubs: [{}], config: { 'limits.unsentBytes': 100_000 } })
    stubs[0]!.answer = (_, response) => {
      beginStream(response)
      const text = chunk({ content: 'x'.repeat(10_000) })
      const more = () => {
        for (let i = 0; i < 10; i++) response.write(text)
        if (!response.destroyed) setImmediate(more)
      }
      more()
    }
    const { hostname, port } = new URL(url)
    const socket = connect(Number(port), hostname)
    const body = '{"model":"m","messages":[],"stream":true}'
    const head = `POST /v1/chat/completions HTTP/1.1\r\nhost: ${hostname}\r\ncontent-type: application/json`
    socket.on('error', () => undefined)
    socket.write(`${head}\r\ncontent-length: ${body.length}\r\n\r\n${body}`)
    await until(() => stubs[0]!.aborted > 0)
    socket.destroy()
  })
})

describe('usage', () => {
  test('is taken out of a stream whose client did not ask for it, and kept where it did', async () => {
    const { chat } = await house({ stubs: [{}] })
    const without = dataOf(await (await chat({ stream: true })).text())
    expect(without.join()).not.toContain('"usage"')
    expect(without.at(-1)).toBe('[DONE]')
    const asked = await (await chat({ stream: true, stream_options: { include_usage: true } })).text()
    expect(JSON.parse(dataOf(asked).at(-2) as string).usage).toMatchObject({
      prompt_tokens: 10,
      prompt_tokens_details: { cached_tokens: 0 },
      prompt_cache_hit_tokens: 0,
      prompt_cache_miss_tokens: 10,
    })
  })

  test('server.forceUsage sends it to everybody', async () => {
    const { chat } = await house({ stubs: [{}], config: { 'server.forceUsage': true } })
    expect(await (await chat({ stream: true })).text()).toContain('"cached_tokens":0')
  })

  test('of a whole answer stands in a header; what a backend does not say is not made up', async () => {
    const { chat, stubs } = await house({ stubs: [{}] })
    stubs[0]!.answer = saying(['a'], 8)
    const said = await chat()
    expect(said.headers.get('x-refrain-cache')).toBe('cached=8, computed=2')
    stubs[0]!.answer = (_, response) =>
      response.end('{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":1,"prompt_tokens_details":null}}')
    const silent = await chat()
    expect(silent.headers.get('x-refrain-cache')).toBeNull()
    expect(await silent.text()).not.toContain('cached_tokens')
  })

  test('a usage chunk in two pieces, with CRLF, is one', async () => {
    const { chat, stubs } = await house({ stubs: [{}] })
    stubs[0]!.answer = (_, response) => {
      beginStream(response)
      const text = (chunk({ content: 'é' }) + chunk({}, 'stop') + usageChunk(10, 4) + 'data: [DONE]\n\n').replaceAll(
        '\n',
        '\r\n',
      )
      const bytes = Buffer.from(text)
      let at = 0
      const step = () => {
        response.write(bytes.subarray(at, at + 61))
        at += 61
        if (at >= bytes.length) response.end()
        else setImmediate(step)
      }
      step()
    }
    const text = await (await chat({ stream: true })).text()
    expect(text.replaceAll('\r\n', '\n')).toBe(`${chunk({ content: 'é' })}${chunk({}, 'stop')}data: [DONE]\n\n`)
  })
})

describe('keys and tenants', () => {
  const tenants = [
    { name: 'a', key: 'key-of-a-1', admin: true },
    { name: 'b', key: 'key-of-b-1' },
  ]
  const as = (name: 'a' | 'b') => ({ authorization: `Bearer key-of-${name}-1` })

  test("a client's key stays here; a backend gets its own", async () => {
    const { chat, stubs } = await house({
      entries: [{ apiKey: 'upstream-key', headers: { 'X-Team': 'blue' } }, {}],
      config: { tenants },
    })
    for (let i = 0; i < 12; i++) await chat(about(i), { ...as('a'), 'x-api-key': 'key-of-a-1', cookie: 'c=1' })
    const [own, none] = stubs.map(({ requests }) => requests[0]?.headers)
    expect(own).toMatchObject({ authorization: 'Bearer upstream-key', 'x-team': 'blue' })
    expect(none).not.toHaveProperty('authorization')
    for (const headers of [own, none]) {
      expect(headers).not.toHaveProperty('x-api-key')
      expect(headers).not.toHaveProperty('cookie')
      expect(JSON.stringify(headers)).not.toContain('key-of-a')
    }
  })

  test('that a backend refuses the key of the config is not told as the fault of the client', async () => {
    const { chat, stubs } = await house({ stubs: [{}], entries: [{ apiKey: 'upstream-key' }] })
    stubs[0]!.answer = (_, response) => response.writeHead(401).end('{"error":"Unauthorized"}')
    const answer = await chat()
    expect(answer.status).toBe(500)
    expect(((await answer.json()) as { error: object }).error).toMatchObject({ code: 'engine_failed' })
  })

  test('it is sent on where the config says so', async () => {
    const { chat, stubs } = await house({ stubs: [{}], entries: [{ forwardAuthorization: true }] })
    await chat({}, { authorization: 'Bearer of-the-client' })
    expect(stubs[0]!.requests[0]!.headers.authorization).toBe('Bearer of-the-client')
  })

  test('without one nobody gets in, in the shape of the dialect', async () => {
    const { chat, post, stubs } = await house({ config: { tenants } })
    expect((await chat()).status).toBe(401)
    expect(await (await post('/v1/messages', {})).json()).toMatchObject({ error: { type: 'authentication_error' } })
    expect(stubs.every(({ requests }) => requests.length === 0)).toBe(true)
  })

  test('salts part tenants, and what a client parts within its own', async () => {
    const { chat, stubs } = await house({ stubs: [{}], config: { tenants } })
    await chat({}, as('a'))
    await chat({}, as('b'))
    await chat({ cache_salt: 'x' }, as('a'))
    await chat({ cache_salt: 'x' }, as('b'))
    await chat({}, as('a'))
    const salts = stubs[0]!.requests.map(({ body }) => body['cache_salt'] as string)
    expect(salts.every((salt) => /^[\w-]{22}$/.test(salt))).toBe(true)
    expect(new Set(salts).size).toBe(4)
    expect(salts[4]).toBe(salts[0])
  })

  test('a server without salts serves one tenant unless it is shared', async () => {
    const owner = 'llamacpp'
    const made = await house({ stubs: [{ owner }], config: { tenants } })
    expect((await made.chat({}, as('a'))).status).toBe(200)
    expect((await made.chat({}, as('b'))).status).toBe(500)
    expect(made.stubs[0]!.requests.map(({ body }) => body['cache_prompt'])).toEqual([true])
    const other = await house({ stubs: [{ owner }], entries: [{ tenant: 'b' }], config: { tenants } })
    expect((await other.chat({}, as('b'))).status).toBe(200)
    expect((await other.chat({}, as('a'))).status).toBe(500)
    const shared = await house({ stubs: [{ owner }], entries: [{ shared: true }], config: { tenants } })
    expect((await shared.chat({}, as('b'))).status).toBe(200)
    expect((await shared.chat({}, as('a'))).status).toBe(200)
  })
})

describe('settings by kind', () => {
  test('what only a Refrain knows is refused by name where the backend is none, in every dialect', async () => {
    const { post, stubs } = await house({ stubs: [{ lacks: ['/v1/messages'] }] })
    const session = `ses_${'0'.repeat(32)}`
    const own = { refrain: { allowed_tools: ['a_*'] }, session }
    for (const path of ['/v1/chat/completions', '/v1/messages']) {
      for (const [key, value] of Object.entries(own)) {
        const body = { model: 'm', max_tokens: 5, messages: [{ role: 'user', content: 'a' }], [key]: value }
        const answer = await post(path, JSON.stringify(body))
        expect(answer.status).toBe(400)
        expect(await answer.text()).toContain(`'${key}' cannot be honoured`)
      }
    }
    const prompt = { model: 'm', prompt: 'a', quick: { tasks: [{ task: 'title' }] } }
    expect(await (await post('/v1/completions', prompt)).text()).toContain("'quick' cannot be honoured")
    expect(stubs[0]?.requests).toHaveLength(0)
    const neutral = { model: 'm', messages: [{ role: 'user', content: 'a' }], quick: null, session: 'mine' }
    expect((await post('/v1/chat/completions', JSON.stringify(neutral))).status).toBe(200)
  })

  test.each([
    ['vllm', { priority: true, dataParallelRank: 3 }, { priority: 0 }, { 'x-data-parallel-rank': '3' }],
    ['sglang', { priority: true, dataParallelRank: 3 }, { priority: 10, data_parallel_rank: 3 }, {}],
    ['llamacpp', {}, { cache_prompt: true }, {}],
    ['somebody', {}, {}, {}],
    ['refrain', {}, {}, { 'x-refrain-priority': 'interactive', 'x-refrain-session': 's1' }],
  ])('%s', async (owner, entry, members, headers) => {
    const { chat, stubs } = await house({ stubs: [{ owner }], entries: [entry] })
    await chat({}, { 'x-refrain-session': 's1' })
    const { body, headers: sent } = stubs[0]!.requests[0]!
    const { model, messages, ...rest } = body
    expect([model, messages]).toEqual(['m', [{ role: 'user', content: 'hi' }]])
    expect(rest).toEqual(members)
    expect(sent).toMatchObject(headers)
  })

  test('a model has another name there', async () => {
    const { chat, stubs, url } = await house({ stubs: [{}], entries: [{ models: { 'gpt-x': 'm' } }] })
    await chat({ model: 'gpt-x' })
    expect(stubs[0]!.requests[0]!.body['model']).toBe('m')
    const { data } = (await (await fetch(`${url}/v1/models`)).json()) as { data: { id: string }[] }
    expect(data.map(({ id }) => id)).toEqual(['m', 'gpt-x'])
  })
})

describe('models and other routes', () => {
  test('requests go to members that have the model; the list is the union', async () => {
    const { chat, stubs, url } = await house({ stubs: [{ models: ['m', 'x'] }, { models: ['y'] }] })
    for (let i = 0; i < 4; i++) await chat({ model: 'y' })
    expect(stubs.map(({ requests }) => requests.length)).toEqual([0, 4])
    const { data } = (await (await fetch(`${url}/v1/models`)).json()) as {
      data: { id: string; context_window: number }[]
    }
    expect(data.map(({ id }) => id)).toEqual(['m', 'x', 'y'])
    expect(data[0]?.context_window).toBe(4096)
    expect((await fetch(`${url}/v1/models/y`)).status).toBe(200)
    expect((await fetch(`${url}/v1/models/z`)).status).toBe(404)
  })

  test('a body without a model goes out with the first', async () => {
    const { post, stubs } = await house({ stubs: [{}] })
    await post('/v1/chat/completions', { messages: [] })
    expect(stubs[0]!.requests[0]!.body['model']).toBe('m')
  })

  test('other routes pass through, uploads too', async () => {
    const { post, stubs } = await house({ stubs: [{}] })
    stubs[0]!.answer = ({ path }, response) => response.end(`{"path":"${path}"}`)
    const answer = await post('/v1/embeddings?x=1', '{ "model":"m","input":"a" }')
    expect(await answer.json()).toEqual({ path: '/v1/embeddings?x=1' })
    expect(stubs[0]!.requests[0]!.text).toBe('{ "model":"m","input":"a" }')
    const upload = await post('/v1/audio/transcriptions', Buffer.from([0, 255, 1]), {
      'content-type': 'multipart/form-data; boundary=x',
    })
    expect(upload.status).toBe(200)
    expect(stubs[0]!.requests[1]!.headers['content-type']).toBe('multipart/form-data; boundary=x')
  })

  test('what was sent where is told in a header', async () => {
    const { chat, stubs } = await house({ stubs: [{}], entries: [{ name: 'up0' }] })
    expect((await chat()).headers.get('x-refrain-route')).toMatch(/^up0; reason="[^"]+"; hit=0; of=1$/)
    expect((await chat({ stream: true })).headers.get('x-refrain-route')).toMatch(/^up0;/)
    expect(stubs[0]!.requests).toHaveLength(2)
  })
})
