// Side questions in a chat's own body before servers that are no Refrain: the answer passes as ever, the questions go to the
// backend that gives it, and what they come to is where an engine of our own would put it.

import { afterEach, describe, expect, test } from 'vitest'
import {
  action,
  besideHouses,
  isAside,
  jsonOf,
  listOf,
  messages,
  outOfMemory,
  quick,
  RESULTS,
  type Told,
  title,
  WORDS,
} from './testing/beside-house.js'
import { dataOf, saidIn, until } from './testing/fleet-house.js'
import { messaging, responding } from './testing/stub-dialects.js'
import {
  beginStream,
  chunk,
  ROLE,
  type StubAnswer,
  type StubRequest,
  saying,
  usageChunk,
} from './testing/stub-upstream.js'

const { open, closeAll } = besideHouses()
afterEach(closeAll)

const [MESSAGES, RESPONSES] = ['/v1/messages', '/v1/responses'] as const

describe('a chat', () => {
  test('as one body: the member beside the answer, whose bytes are those that came', async () => {
    const house = await open()
    house.asides(WORDS, saying(['Nobody.'], 4))
    const plain = await (await house.chat({ messages, seed: 7 })).text()
    const answer = await house.chat({ messages, quick, seed: 7 })
    const text = await answer.text()
    expect(text.startsWith(plain.slice(0, -1))).toBe(true)
    expect(answer.headers.get('x-refrain-route')).toContain(house.stubs[0]!.url)
    const { quick: told } = JSON.parse(text) as Told
    expect(told.results).toMatchObject(RESULTS)
    // The stub counts ten tokens for any prompt: what is added are the answers.
    expect(told.usage).toEqual({ prompt_tokens: 0, completion_tokens: 2, total_tokens: 2 })
    const [first, second] = house.all()
    expect(second?.text).toBe(first?.text)
  })

  test('goes on without the member, byte for byte, wherever it stands', async () => {
    const house = await open({ owner: 'somebody' })
    house.asides({}, saying(['x']))
    const odd = '"messages": [ {"role":"user",  "content":"caf\\u00e9"} ]'
    const asked = '"quick" : {"tasks":[{"task":"custom","instruction":"x","choices":["a","b"]}]}'
    const bodies = [
      [`{"model":"m", ${asked}, ${odd}}`, `{"model":"m", ${odd}}`],
      [`{${asked}, "model":"m", ${odd}}`, `{"model":"m", ${odd}}`],
      [`{"model":"m", ${odd} , ${asked} }`, `{"model":"m", ${odd} }`],
    ]
    for (const [body] of bodies) await (await house.post('/v1/chat/completions', body)).text()
    const mains = house.all().filter((request) => !isAside(request))
    expect(mains.map(({ text }) => text)).toEqual(bodies.map(([, sent]) => sent))
    for (const { text } of house.asked()) expect(text).toContain('{"role":"user",  "content":"caf\\u00e9"}')
  })

  test('as a stream: one chunk without choices behind the answer, before usage and end', async () => {
    const house = await open()
    house.asides(WORDS, saying(['No', 'body.'], 4))
    const body = { messages, quick, stream: true, stream_options: { include_usage: true } }
    const text = await (await house.chat(body)).text()
    expect(saidIn(text)).toBe('Nobody.')
    const chunks = dataOf(text)
    expect(chunks.at(-1)).toBe('[DONE]')
    const told = chunks.slice(0, -1).map((data) => JSON.parse(data))
    const at = told.findIndex((each) => each.quick !== undefined)
    expect(told[at]).toMatchObject({ id: 'chatcmpl-1', object: 'chat.completion.chunk', model: 'm', choices: [] })
    expect(told[at].quick.results).toMatchObject(RESULTS)
    expect(told[at - 1].choices[0].finish_reason).toBe('stop')
    expect(told.slice(at + 1)).toMatchObject([{ choices: [], usage: { prompt_tokens: 10 } }])
  })

  test('is asked about once its first content is out, with what is its prompt and nothing of how it is sampled', async () => {
    const house = await open()
    let release: (() => void) | undefined
    const first: StubAnswer = (_, response) => {
      beginStream(response)
      response.write(ROLE)
      release = () => {
        response.write(chunk({ content: 'Nobody.' }))
        release = () => response.end(`${chunk({}, 'stop')}data: [DONE]\n\n`)
      }
    }
    house.asides(WORDS, first)
    const tools = [{ type: 'function', function: { name: 'f', parameters: { type: 'object' } } }]
    const sampled = {
      temperature: 0.7,
      max_tokens: 500,
      stop: ['x'],
      n: 1,
      logprobs: true,
      response_format: { type: 'text' },
    }
    const body = { messages, tools, tool_choice: 'required', cache_salt: 's', ...sampled, quick, stream: true }
    const answer = house.chat(body)
    await until(() => release !== undefined)
    await new Promise((resolve) => setTimeout(resolve, 30))
    expect(house.asked()).toHaveLength(0)
    release?.()
    const response = await answer
    await until(() => house.asked().length === 2)
    const [asked] = house.asked()
    expect(asked?.path).toBe('/v1/chat/completions')
    expect(asked?.body).toMatchObject({
      model: 'm',
      tools,
      cache_salt: 's',
      structured_outputs: { choice: ['search', 'answer'] },
    })
    for (const key of ['tool_choice', 'n', 'stream', 'response_format', 'quick'])
      expect(asked?.body[key]).toBeUndefined()
    expect(asked?.body['max_tokens']).toBeLessThan(64)
    expect(listOf(asked as StubRequest).slice(0, -1)).toEqual(messages)
    release?.()
    expect(await response.text()).toContain('"quick"')
  })

  test.each([false, true])('at reply: behind the answer, once it is whole (stream: %s)', async (stream) => {
    const house = await open()
    let isOver = false
    house.asides(WORDS, (request, response, socket) => {
      saying(['No', 'body.'])(request, response, socket)
      response.once('finish', () => {
        isOver = true
      })
    })
    const wereOver: boolean[] = []
    const { answer } = house.stubs[0]!
    house.stubs[0]!.answer = (...args) => {
      if (isAside(args[0])) wereOver.push(isOver)
      answer(...args)
    }
    const text = await (await house.chat({ messages, quick: { ...quick, at: 'reply' }, stream })).text()
    expect(text).toContain('"choice":"search"')
    expect(wereOver).toEqual([true, true])
    for (const request of house.asked()) {
      const [question, reply, aside] = listOf(request)
      expect(question).toEqual(messages[0])
      expect(reply).toEqual({ role: 'assistant', content: 'Nobody.' })
      expect(aside?.role).toBe('user')
    }
  })

  test('whose answer calls a tool and reasons is asked about with both', async () => {
    const house = await open()
    const call = (more: object, args: string) => ({
      tool_calls: [{ index: 0, ...more, function: { ...('id' in more && { name: 'run' }), arguments: args } }],
    })
    house.asides(WORDS, (_, response) => {
      beginStream(response)
      response.write(ROLE + chunk({ reasoning_content: 'I ' }) + chunk({ reasoning_content: 'look.' }))
      response.write(chunk(call({ id: 'call_1', type: 'function' }, '{"n":')) + chunk(call({}, ' 2}')))
      response.end(`${chunk({}, 'tool_calls')}data: [DONE]\n\n`)
    })
    await (await house.chat({ messages, quick: { tasks: [title], at: 'reply' }, stream: true })).text()
    expect(listOf(house.asked()[0] as StubRequest)[1]).toEqual({
      role: 'assistant',
      content: null,
      reasoning_content: 'I look.',
      tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'run', arguments: '{"n": 2}' } }],
    })
  })

  test('that continues a message is asked about with all of it', async () => {
    const house = await open()
    house.asides(WORDS, saying([' nobody.']))
    const begun = { role: 'assistant', content: 'It was', prefix: true }
    const body = { messages: [...messages, begun], quick: { tasks: [title], at: 'reply' } }
    expect((await jsonOf(await house.chat(body))).quick.results[0]).toMatchObject({ text: 'The 2031 cup' })
    expect(listOf(house.asked()[0] as StubRequest)[1]).toMatchObject({ content: 'It was nobody.' })
    expect((await jsonOf(await house.chat({ ...body, quick }))).error?.param).toBe('quick.at')
  })
})

describe('the other dialects', () => {
  const asked = {
    [MESSAGES]: { model: 'm', max_tokens: 50, system: 'Be kind.', messages },
    [RESPONSES]: { model: 'm', instructions: 'Be kind.', input: 'Who won the 2031 cup?' },
  }
  const mains = { [MESSAGES]: messaging(['No', 'body.'], 'I think.'), [RESPONSES]: responding(['No', 'body.']) }

  for (const path of [MESSAGES, RESPONSES]) {
    for (const lacks of [[], [path]]) {
      const how = lacks.length === 0 ? 'as it came' : 'by way of its chat'
      test.each(['user', 'reply'])(`${path} ${how}, at %s: in the body, and in the last event`, async (at) => {
        const house = await open({ lacks })
        house.asides(WORDS, lacks.length === 0 ? mains[path] : saying(['No', 'body.']))
        const body = { ...asked[path], quick: { ...quick, at } }
        const whole = await jsonOf(await house.post(path, body))
        expect(whole.quick.results).toMatchObject(RESULTS)
        const text = await (await house.post(path, { ...body, stream: true })).text()
        const events = dataOf(text).map((data) => JSON.parse(data))
        const told = events.filter((each) => each.quick ?? each.response?.quick)
        expect(told).toHaveLength(1)
        expect(told[0].type).toBe(path === MESSAGES ? 'message_delta' : 'response.completed')
        expect((told[0].quick ?? told[0].response.quick).results).toEqual(whole.quick.results)
        expect(events.at(-1).type).toBe(path === MESSAGES ? 'message_stop' : 'response.completed')
        for (const request of house.asked()) {
          expect(request.path).toBe('/v1/chat/completions')
          const [system, question, ...more] = listOf(request)
          expect([system, question]).toEqual([{ role: 'system', content: 'Be kind.' }, ...messages])
          const reasoning = path === MESSAGES && lacks.length === 0 ? { reasoning_content: 'I think.' } : {}
          const reply = { role: 'assistant', content: 'Nobody.', ...reasoning }
          expect(more.slice(0, -1)).toEqual(at === 'reply' ? [reply] : [])
        }
        expect(house.asked()).toHaveLength(4)
      })
    }
  }

  test('what only the backend has cannot be asked about', async () => {
    const house = await open()
    const body = { ...asked[RESPONSES], previous_response_id: 'resp_9', quick }
    expect((await jsonOf(await house.post(RESPONSES, body))).error).toMatchObject({ param: 'previous_response_id' })
    expect(house.all()).toHaveLength(0)
  })
})

describe('where', () => {
  test('the backend that answered, whoever was tried before', async () => {
    const house = await open({}, { count: 3 })
    let tried: number | undefined
    const answered: number[] = []
    for (const [i, stub] of house.stubs.entries()) {
      stub.answer = (request, response, socket) => {
        if (isAside(request)) answered.push(i)
        if (tried === undefined) {
          tried = i
          return outOfMemory(request, response, socket)
        }
        if (!isAside(request)) answered.push(i)
        saying(['search'])(request, response, socket)
      }
    }
    await jsonOf(await house.chat({ messages, quick: { tasks: [action, action] } }))
    expect(new Set(answered).size).toBe(1)
    expect(answered).toHaveLength(3)
    expect(answered[0]).not.toBe(tried)
  })

  test('a broken answer that another backend continues is asked about there', async () => {
    const house = await open({}, { count: 2, config: { 'fleet.continueBroken': true } })
    let broke: number | undefined
    const asked: number[] = []
    for (const [i, stub] of house.stubs.entries()) {
      stub.answer = (request, response, socket) => {
        if (isAside(request)) {
          asked.push(i)
          // What the first one was asked, it does not answer any more.
          if (i !== broke) saying(['search'])(request, response, socket)
          return
        }
        if (broke !== undefined) return saying(['body.'])(request, response, socket)
        broke = i
        beginStream(response)
        response.write(ROLE + chunk({ content: 'No' }))
        const cut = setInterval(() => {
          if (asked.length === 0) return
          clearInterval(cut)
          socket.resetAndDestroy()
        }, 5)
      }
    }
    const text = await (await house.chat({ messages, quick: { tasks: [action] }, stream: true })).text()
    expect(saidIn(text)).toBe('Nobody.')
    expect(text).toContain('"choice":"search"')
    expect(asked).toEqual([broke, 1 - (broke as number)])
  })

  test('a Refrain gets the body as it came', async () => {
    const house = await open({ owner: 'refrain' })
    house.stubs[0]!.answer = saying(['x'])
    const body = { model: 'm', messages, quick: { tasks: [{ task: 'of a newer version' }] } }
    expect((await house.post('/v1/chat/completions', body)).status).toBe(200)
    expect(house.all().map(({ text }) => JSON.parse(text) as object)).toEqual([body])
  })

  test('questions are counted while they run, and nothing is left behind', async () => {
    const house = await open()
    const inFlight = async () => {
      const { data } = (await (await fetch(`${house.url}/v1/backends`)).json()) as { data: [{ in_flight: number }] }
      return data[0].in_flight
    }
    let most = 0
    const waiting: (() => void)[] = []
    house.asides(
      {
        ' ': (request, response, socket) => {
          waiting.push(() => saying(['yes'])(request, response, socket))
          if (waiting.length < 4) return
          void inFlight().then((count) => {
            most = count
            for (const say of waiting) say()
          })
        },
      },
      saying(['a', 'b']),
    )
    const urls = Array.from({ length: 4 }, (_, i) => `http://x/${i}`)
    await (await house.chat({ messages, quick: { tasks: [{ task: 'read_url', urls }] }, stream: true })).text()
    expect(most).toBeGreaterThanOrEqual(4)
    await new Promise((resolve) => setTimeout(resolve, 10))
    expect(await inFlight()).toBe(0)
    const metrics = await (await fetch(`${house.url}/metrics`)).text()
    expect(metrics).toMatch(/refrain_quick_tasks_total\{[^}]*task="read_url"[^}]*\} 4/)
  })
})

test('usage in the stream, where it was not asked for, stays out', async () => {
  const house = await open()
  house.asides(WORDS, (_, response) => {
    beginStream(response)
    response.write(`${ROLE + chunk({ content: 'a' })}: a comment\n\n${chunk({}, 'stop')}`)
    response.end(`${usageChunk(10, 0)}data: [DONE]\n\n`)
  })
  const text = await (await house.chat({ messages, quick, stream: true })).text()
  expect(dataOf(text).slice(-2)[0]).toContain('"quick"')
  expect(dataOf(text).at(-1)).toBe('[DONE]')
  expect(text.match(/"usage":\{"prompt_tokens":10/g)).toBeNull()
})
