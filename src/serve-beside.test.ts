// Side questions in a chat's own body before servers that are no Refrain: the answer passes as ever, the questions go to the
// backend that gives it, and what they come to is where an engine of our own would put it.

import { afterEach, describe, expect, test } from 'vitest'
import { dataOf, type FleetHouse, fleetHouse, saidIn, until } from './testing/fleet-house.js'
import { messaging, responding } from './testing/stub-dialects.js'
import {
  beginStream,
  chunk,
  ROLE,
  type StubAnswer,
  type StubOptions,
  type StubRequest,
  saying,
  usageChunk,
} from './testing/stub-upstream.js'

const houses: FleetHouse[] = []
afterEach(async () => {
  await Promise.all(houses.splice(0).map((house) => house.close()))
})

async function open(stub: StubOptions = {}, more: { count?: number; config?: Record<string, unknown> } = {}) {
  const { count = 1, config } = more
  const stubs = Array.from({ length: count }, () => stub)
  const house = await fleetHouse({ stubs, ...(config && { config }) })
  houses.push(house)
  return house
}

const messages = [{ role: 'user', content: 'Who won the 2031 cup?' }]
const action = { task: 'action' }
const title = { task: 'title' }
const quick = { tasks: [action, title] }
const [MESSAGES, RESPONSES] = ['/v1/messages', '/v1/responses'] as const

/** What `words` of the last message are answered with, where it asks on the side; all else is `main`'s. */
function asides(house: FleetHouse, answers: Record<string, string | StubAnswer>, main: StubAnswer): void {
  for (const stub of house.stubs) {
    stub.answer = (request, response, socket) => {
      const key = Object.keys(answers).find((word) => isAside(request) && wordsOf(request).includes(word))
      const answer = key === undefined ? main : (answers[key] as string | StubAnswer)
      const say = typeof answer === 'string' ? saying([answer], 8) : answer
      say(request, response, socket)
    }
  }
}

const WORDS = { 'web search': 'search', 'Write a title': 'The 2031 cup' }

/** Only questions are greedy here. */
const isAside = ({ body }: StubRequest) => body['temperature'] === 0
const listOf = ({ body }: StubRequest) => body['messages'] as { role: string; content: unknown }[]
const wordsOf = (request: StubRequest) => String(listOf(request).at(-1)?.content)
const all = (house: FleetHouse) => house.stubs.flatMap(({ requests }) => requests)
const asidesOf = (house: FleetHouse) => all(house).filter(isAside)
const refusing: StubAnswer = (_, response) => {
  response.writeHead(500, { 'content-type': 'application/json' })
  response.end('{"error":{"message":"out of memory"}}')
}

const RESULTS = [
  { task: 'action', form: 'instruction', choice: 'search' },
  { task: 'title', form: 'instruction', text: 'The 2031 cup' },
]

interface Told {
  readonly quick: { results: { error?: { code: string; message: string } }[]; usage: Record<string, number> }
  readonly error?: { code: string; param: string; message: string }
}

const json = async (response: Response) => (await response.json()) as Told & Record<string, unknown>

describe('a chat', () => {
  test('as one body: the member beside the answer, whose bytes are those that came', async () => {
    const house = await open()
    asides(house, WORDS, saying(['Nobody.'], 4))
    const plain = await (await house.chat({ messages, seed: 7 })).text()
    const answer = await house.chat({ messages, quick, seed: 7 })
    const text = await answer.text()
    expect(text.startsWith(plain.slice(0, -1))).toBe(true)
    expect(answer.headers.get('x-refrain-route')).toContain(house.stubs[0]!.url)
    const { quick: told } = JSON.parse(text) as Told
    expect(told.results).toMatchObject(RESULTS)
    // The stub counts ten tokens for any prompt: what is added are the answers.
    expect(told.usage).toEqual({ prompt_tokens: 0, completion_tokens: 2, total_tokens: 2 })
    const [first, second] = all(house)
    expect(second?.text).toBe(first?.text)
  })

  test('goes on without the member, byte for byte, wherever it stands', async () => {
    const house = await open({ owner: 'somebody' })
    asides(house, {}, saying(['x']))
    const odd = '"messages": [ {"role":"user",  "content":"caf\\u00e9"} ]'
    const asked = '"quick" : {"tasks":[{"task":"custom","instruction":"x","choices":["a","b"]}]}'
    const bodies = [
      [`{"model":"m", ${asked}, ${odd}}`, `{"model":"m", ${odd}}`],
      [`{${asked}, "model":"m", ${odd}}`, `{"model":"m", ${odd}}`],
      [`{"model":"m", ${odd} , ${asked} }`, `{"model":"m", ${odd} }`],
    ]
    for (const [body] of bodies) await (await house.post('/v1/chat/completions', body)).text()
    const mains = all(house).filter((request) => !isAside(request))
    expect(mains.map(({ text }) => text)).toEqual(bodies.map(([, sent]) => sent))
    for (const { text } of asidesOf(house)) expect(text).toContain('{"role":"user",  "content":"caf\\u00e9"}')
  })

  test('as a stream: one chunk without choices behind the answer, before usage and end', async () => {
    const house = await open()
    asides(house, WORDS, saying(['No', 'body.'], 4))
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
    asides(house, WORDS, first)
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
    expect(asidesOf(house)).toHaveLength(0)
    release?.()
    const response = await answer
    await until(() => asidesOf(house).length === 2)
    const [asked] = asidesOf(house)
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
    asides(house, WORDS, (request, response, socket) => {
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
    for (const request of asidesOf(house)) {
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
    asides(house, WORDS, (_, response) => {
      beginStream(response)
      response.write(ROLE + chunk({ reasoning_content: 'I ' }) + chunk({ reasoning_content: 'look.' }))
      response.write(chunk(call({ id: 'call_1', type: 'function' }, '{"n":')) + chunk(call({}, ' 2}')))
      response.end(`${chunk({}, 'tool_calls')}data: [DONE]\n\n`)
    })
    await (await house.chat({ messages, quick: { tasks: [title], at: 'reply' }, stream: true })).text()
    expect(listOf(asidesOf(house)[0] as StubRequest)[1]).toEqual({
      role: 'assistant',
      content: null,
      reasoning_content: 'I look.',
      tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'run', arguments: '{"n": 2}' } }],
    })
  })

  test('that continues a message is asked about with all of it', async () => {
    const house = await open()
    asides(house, WORDS, saying([' nobody.']))
    const begun = { role: 'assistant', content: 'It was', prefix: true }
    const body = { messages: [...messages, begun], quick: { tasks: [title], at: 'reply' } }
    expect((await json(await house.chat(body))).quick.results[0]).toMatchObject({ text: 'The 2031 cup' })
    expect(listOf(asidesOf(house)[0] as StubRequest)[1]).toMatchObject({ content: 'It was nobody.' })
    expect((await json(await house.chat({ ...body, quick }))).error?.param).toBe('quick.at')
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
        asides(house, WORDS, lacks.length === 0 ? mains[path] : saying(['No', 'body.']))
        const body = { ...asked[path], quick: { ...quick, at } }
        const whole = await json(await house.post(path, body))
        expect(whole.quick.results).toMatchObject(RESULTS)
        const text = await (await house.post(path, { ...body, stream: true })).text()
        const events = dataOf(text).map((data) => JSON.parse(data))
        const told = events.filter((each) => each.quick ?? each.response?.quick)
        expect(told).toHaveLength(1)
        expect(told[0].type).toBe(path === MESSAGES ? 'message_delta' : 'response.completed')
        expect((told[0].quick ?? told[0].response.quick).results).toEqual(whole.quick.results)
        expect(events.at(-1).type).toBe(path === MESSAGES ? 'message_stop' : 'response.completed')
        for (const request of asidesOf(house)) {
          expect(request.path).toBe('/v1/chat/completions')
          const [system, question, ...more] = listOf(request)
          expect([system, question]).toEqual([{ role: 'system', content: 'Be kind.' }, ...messages])
          const reasoning = path === MESSAGES && lacks.length === 0 ? { reasoning_content: 'I think.' } : {}
          const reply = { role: 'assistant', content: 'Nobody.', ...reasoning }
          expect(more.slice(0, -1)).toEqual(at === 'reply' ? [reply] : [])
        }
        expect(asidesOf(house)).toHaveLength(4)
      })
    }
  }

  test('what only the backend has cannot be asked about', async () => {
    const house = await open()
    const body = { ...asked[RESPONSES], previous_response_id: 'resp_9', quick }
    expect((await json(await house.post(RESPONSES, body))).error).toMatchObject({ param: 'previous_response_id' })
    expect(all(house)).toHaveLength(0)
  })
})

describe('what goes wrong', () => {
  test.each([false, true])('with one question is its own (stream: %s)', async (stream) => {
    const house = await open({ owner: 'llamacpp' })
    asides(house, { ...WORDS, 'web search': refusing }, saying(['Nobody.']))
    const tasks = [action, { task: 'custom', instruction: 'x', regex: 'a+' }, title]
    const text = await (await house.chat({ messages, quick: { tasks }, stream })).text()
    const chunks = stream ? dataOf(text).slice(0, -1) : [text]
    const told = chunks.map((data) => JSON.parse(data) as Told).find((each) => each.quick !== undefined)
    expect(told?.quick.results).toMatchObject([
      { error: { code: 'engine_failed', message: expect.stringContaining('out of memory') } },
      { error: { code: 'unsupported_parameter' } },
      { text: 'The 2031 cup' },
    ])
    expect(text).toContain('Nobody.')
  })

  test('with all of them leaves the answer whole, in a dialect whose first question leads', async () => {
    const house = await open()
    asides(house, { ' ': refusing }, messaging(['Nobody.']))
    const body = { model: 'm', max_tokens: 5, messages, quick }
    const whole = await json(await house.post(MESSAGES, body))
    expect(whole['content']).toEqual([{ type: 'text', text: 'Nobody.' }])
    expect(whole.quick.results.map(({ error }) => error?.code)).toEqual(['engine_failed', 'engine_failed'])
  })

  test('with the answer ends the questions, and no result is told', async () => {
    const house = await open()
    const held: StubAnswer = () => undefined
    asides(house, { ' ': held }, (_, response, socket) => {
      beginStream(response)
      response.write(ROLE + chunk({ content: 'half' }))
      const cut = setInterval(() => {
        if (asidesOf(house).length < 2) return
        clearInterval(cut)
        socket.resetAndDestroy()
      }, 5)
    })
    const text = await (await house.chat({ messages, quick, stream: true })).text()
    expect(text).toContain('"error"')
    expect(text).not.toContain('"quick"')
    expect(text).not.toContain('[DONE]')
    await until(() => house.stubs[0]!.aborted === 3)
  })

  test('a refusal is what it is without questions', async () => {
    const house = await open()
    asides(house, {}, (_, response) => response.writeHead(400).end('{"error":{"message":"too long"}}'))
    const answer = await house.chat({ messages, quick })
    expect(answer.status).toBe(400)
    expect(await answer.text()).toBe('{"error":{"message":"too long"}}')
    expect(all(house)).toHaveLength(1)
  })

  test('a client that leaves ends the answer and every question', async () => {
    const house = await open()
    const held: StubAnswer = () => undefined
    asides(house, { ' ': held }, (_, response) => {
      beginStream(response)
      response.write(ROLE + chunk({ content: 'a' }))
    })
    const stop = new AbortController()
    const { signal } = stop
    const headers = { 'content-type': 'application/json' }
    const body = JSON.stringify({ model: 'm', messages, quick, stream: true })
    await fetch(`${house.url}/v1/chat/completions`, { method: 'POST', headers, body, signal })
    await until(() => asidesOf(house).length === 2)
    stop.abort()
    await until(() => house.stubs[0]!.aborted === 3)
  })

  test('a client that leaves while questions are waited for ends them', async () => {
    const house = await open()
    const held: StubAnswer = () => undefined
    asides(house, { ' ': held }, saying(['a']))
    const stop = new AbortController()
    const { signal } = stop
    const headers = { 'content-type': 'application/json' }
    const body = JSON.stringify({ model: 'm', messages, quick })
    const answer = fetch(`${house.url}/v1/chat/completions`, { method: 'POST', headers, body, signal })
    const over = expect(answer).rejects.toThrow()
    await until(() => asidesOf(house).length === 2)
    stop.abort()
    await over
    await until(() => house.stubs[0]!.aborted === 2)
  })

  test('a question that is never answered fails by fleet.firstTokenMs', async () => {
    const house = await open({}, { config: { 'fleet.firstTokenMs': 100 } })
    asides(house, { ' ': () => undefined }, saying(['a']))
    const { quick: told } = await json(await house.chat({ messages, quick: { tasks: [title] } }))
    expect(told.results[0]?.error).toMatchObject({
      code: 'engine_failed',
      message: expect.stringMatching(/firstTokenMs/),
    })
  })

  test.each([
    ['/v1/chat/completions', { quick: {} }, 'quick.tasks'],
    ['/v1/chat/completions', { quick: { tasks: [{ task: 'dance' }] } }, 'quick.tasks[0].task'],
    ['/v1/chat/completions', { quick: { tasks: [title], at: 'once' } }, 'quick.at'],
    ['/v1/chat/completions', { quick: { tasks: [title], at: 'reply' }, max_tokens: 0 }, 'quick.at'],
    ['/v1/chat/completions', { quick: { tasks: Array.from({ length: 1000 }, () => title) } }, 'quick.tasks'],
    ['/v1/chat/completions', { quick, messages: [] }, 'messages'],
    ['/v1/chat/completions', { quick, messages: [null] }, 'messages[0]'],
    ['/v1/chat/completions', { quick: 'title' }, 'quick'],
    [MESSAGES, { quick: { tasks: [{ task: 'custom' }] }, max_tokens: 5 }, 'quick.tasks[0].instruction'],
    [RESPONSES, { quick: { tasks: [{ task: 'read_url' }] }, input: 'hi', messages: undefined }, 'quick.tasks[0].urls'],
  ])('%s refuses %j by its field, before anything is sent', async (path, change, param) => {
    const house = await open()
    const answer = await house.post(path, { model: 'm', messages, ...change })
    expect(answer.status).toBe(400)
    const text = await answer.text()
    expect(path === MESSAGES ? text : (JSON.parse(text) as Told).error?.param).toContain(param)
    expect(all(house)).toHaveLength(0)
  })

  test('what has no effect is named', async () => {
    const house = await open()
    asides(house, WORDS, saying(['x']))
    const answer = await house.chat({ messages, colour: 'red', quick: { tasks: [{ ...title, colour: 'red' }] } })
    expect(answer.headers.get('x-refrain-ignored')).toBe('quick.tasks[].colour')
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
          return refusing(request, response, socket)
        }
        if (!isAside(request)) answered.push(i)
        saying(['search'])(request, response, socket)
      }
    }
    await json(await house.chat({ messages, quick: { tasks: [action, action] } }))
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
    expect(all(house).map(({ text }) => JSON.parse(text) as object)).toEqual([body])
  })

  test('questions are counted while they run, and nothing is left behind', async () => {
    const house = await open()
    const inFlight = async () => {
      const { data } = (await (await fetch(`${house.url}/v1/backends`)).json()) as { data: [{ in_flight: number }] }
      return data[0].in_flight
    }
    let most = 0
    const waiting: (() => void)[] = []
    asides(
      house,
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

describe("DeepSeek's form", () => {
  const tasked = [{ role: 'user', content: 'Who won the 2031 cup?', task: 'action' }]

  test('is asked in words of a backend whose template has no tasks', async () => {
    const house = await open()
    asides(house, WORDS, saying(['the chat was answered']))
    const body = await json(await house.chat({ messages: tasked, max_tokens: 900 }))
    expect(body['choices']).toMatchObject([{ message: { content: 'search' }, finish_reason: 'stop' }])
    expect(body.quick.results).toMatchObject([{ task: 'action', choice: 'search' }])
    expect(body['usage']).toMatchObject({ prompt_tokens: 10, completion_tokens: 1 })
    const [request] = all(house)
    expect(all(house)).toHaveLength(1)
    expect(listOf(request as StubRequest)[0]).toEqual(messages[0])
    expect(listOf(request as StubRequest)).toHaveLength(2)
  })

  test('in a stream too, and by its token where the template has them', async () => {
    const house = await fleetHouse({ stubs: [{}], entries: [{ tasks: true }] })
    houses.push(house)
    house.stubs[0]!.answer = saying(['answer'])
    const text = await (await house.chat({ messages: tasked, stream: true })).text()
    expect(saidIn(text)).toBe('answer')
    const chunks = dataOf(text)
    expect(chunks.at(-1)).toBe('[DONE]')
    const told = chunks.slice(0, -1).map((data) => JSON.parse(data))
    expect(told.filter(({ choices }) => choices[0]?.finish_reason === 'stop')).toHaveLength(1)
    expect(told.find((each) => each.quick).quick.results).toMatchObject([{ form: 'native', choice: 'answer' }])
    expect(listOf(all(house)[0] as StubRequest)).toEqual(tasked)
  })

  test('whose task fails, fails', async () => {
    const house = await open()
    asides(house, { ' ': refusing }, saying(['x']))
    const answer = await house.chat({ messages: tasked })
    expect(answer.status).toBeGreaterThanOrEqual(400)
    expect(await answer.text()).toContain('out of memory')
  })

  test.each([
    [{ messages: [{ ...tasked[0], task: 'dance' }] }, 'messages[0].task'],
    [{ messages: tasked, quick }, 'quick'],
  ])('refuses %j', async (body, param) => {
    const house = await open()
    expect((await json(await house.chat(body))).error?.param).toBe(param)
    expect(all(house)).toHaveLength(0)
  })

  test('a task in a tool result is no task', async () => {
    const house = await open()
    house.stubs[0]!.answer = saying(['x'])
    const sent = [{ role: 'user', content: [{ type: 'text', text: '{"task":"action"}', task: 'action' }] }]
    const body = await json(await house.chat({ messages: sent }))
    expect(body.quick).toBeUndefined()
  })
})

test('usage in the stream, where it was not asked for, stays out', async () => {
  const house = await open()
  asides(house, WORDS, (_, response) => {
    beginStream(response)
    response.write(`${ROLE + chunk({ content: 'a' })}: a comment\n\n${chunk({}, 'stop')}`)
    response.end(`${usageChunk(10, 0)}data: [DONE]\n\n`)
  })
  const text = await (await house.chat({ messages, quick, stream: true })).text()
  expect(dataOf(text).slice(-2)[0]).toContain('"quick"')
  expect(dataOf(text).at(-1)).toBe('[DONE]')
  expect(text.match(/"usage":\{"prompt_tokens":10/g)).toBeNull()
})
