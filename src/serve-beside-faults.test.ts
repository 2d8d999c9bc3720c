// Side questions beside an answer, where something goes wrong: with one question, with the answer, with the client, with
// what is asked. And calls that are a question themselves (DeepSeek's `task`).

import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import {
  action,
  type BesideHouse,
  besideHouse,
  besideHouses,
  jsonOf,
  listOf,
  messages,
  outOfMemory,
  quick,
  type Told,
  title,
  WORDS,
} from './testing/beside-house.js'
import { dataOf, saidIn, until } from './testing/fleet-house.js'
import { messaging } from './testing/stub-dialects.js'
import { beginStream, chunk, ROLE, type StubAnswer, type StubRequest, saying } from './testing/stub-upstream.js'

const { open, closeAll } = besideHouses()
afterEach(closeAll)

const [MESSAGES, RESPONSES] = ['/v1/messages', '/v1/responses'] as const

describe('what goes wrong', () => {
  test.each([false, true])('with one question is its own (stream: %s)', async (stream) => {
    const house = await open({ owner: 'llamacpp' })
    house.asides({ ...WORDS, 'web search': outOfMemory }, saying(['Nobody.']))
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
    house.asides({ ' ': outOfMemory }, messaging(['Nobody.']))
    const body = { model: 'm', max_tokens: 5, messages, quick }
    const whole = await jsonOf(await house.post(MESSAGES, body))
    expect(whole['content']).toEqual([{ type: 'text', text: 'Nobody.' }])
    expect(whole.quick.results.map(({ error }) => error?.code)).toEqual(['engine_failed', 'engine_failed'])
  })

  test('with the answer ends the questions, and no result is told', async () => {
    const house = await open()
    const held: StubAnswer = () => undefined
    house.asides({ ' ': held }, (_, response, socket) => {
      beginStream(response)
      response.write(ROLE + chunk({ content: 'half' }))
      const cut = setInterval(() => {
        if (house.asked().length < 2) return
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
    house.asides({}, (_, response) => response.writeHead(400).end('{"error":{"message":"too long"}}'))
    const answer = await house.chat({ messages, quick })
    expect(answer.status).toBe(400)
    expect(await answer.text()).toBe('{"error":{"message":"too long"}}')
    expect(house.all()).toHaveLength(1)
  })

  test('a client that leaves ends the answer and every question', async () => {
    const house = await open()
    const held: StubAnswer = () => undefined
    house.asides({ ' ': held }, (_, response) => {
      beginStream(response)
      response.write(ROLE + chunk({ content: 'a' }))
    })
    const stop = new AbortController()
    const { signal } = stop
    const headers = { 'content-type': 'application/json' }
    const body = JSON.stringify({ model: 'm', messages, quick, stream: true })
    await fetch(`${house.url}/v1/chat/completions`, { method: 'POST', headers, body, signal })
    await until(() => house.asked().length === 2)
    stop.abort()
    await until(() => house.stubs[0]!.aborted === 3)
  })

  test('a client that leaves while questions are waited for ends them', async () => {
    const house = await open()
    const held: StubAnswer = () => undefined
    house.asides({ ' ': held }, saying(['a']))
    const stop = new AbortController()
    const { signal } = stop
    const headers = { 'content-type': 'application/json' }
    const body = JSON.stringify({ model: 'm', messages, quick })
    const answer = fetch(`${house.url}/v1/chat/completions`, { method: 'POST', headers, body, signal })
    const over = expect(answer).rejects.toThrow()
    await until(() => house.asked().length === 2)
    stop.abort()
    await over
    await until(() => house.stubs[0]!.aborted === 2)
  })

  test('a question that is never answered fails by fleet.firstTokenMs', async () => {
    const house = await open({}, { config: { 'fleet.firstTokenMs': 100 } })
    house.asides({ ' ': () => undefined }, saying(['a']))
    const { quick: told } = await jsonOf(await house.chat({ messages, quick: { tasks: [title] } }))
    expect(told.results[0]?.error).toMatchObject({
      code: 'engine_failed',
      message: expect.stringMatching(/firstTokenMs/),
    })
  })

  test('what has no effect is named', async () => {
    const house = await open()
    house.asides(WORDS, saying(['x']))
    const answer = await house.chat({ messages, colour: 'red', quick: { tasks: [{ ...title, colour: 'red' }] } })
    expect(answer.headers.get('x-refrain-ignored')).toBe('quick.tasks[].colour')
  })
})

describe('what cannot be asked', () => {
  let house: BesideHouse
  beforeAll(async () => {
    house = await besideHouse()
  })
  afterAll(() => house.close())

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
    const answer = await house.post(path, { model: 'm', messages, ...change })
    expect(answer.status).toBe(400)
    const text = await answer.text()
    expect(path === MESSAGES ? text : (JSON.parse(text) as Told).error?.param).toContain(param)
    expect(house.all()).toHaveLength(0)
  })
})

describe("DeepSeek's form", () => {
  const tasked = [{ role: 'user', content: 'Who won the 2031 cup?', task: 'action' }]

  test('is asked in words of a backend whose template has no tasks', async () => {
    const house = await open()
    house.asides(WORDS, saying(['the chat was answered']))
    const body = await jsonOf(await house.chat({ messages: tasked, max_tokens: 900 }))
    expect(body['choices']).toMatchObject([{ message: { content: 'search' }, finish_reason: 'stop' }])
    expect(body.quick.results).toMatchObject([{ task: 'action', choice: 'search' }])
    expect(body['usage']).toMatchObject({ prompt_tokens: 10, completion_tokens: 1 })
    const [request] = house.all()
    expect(house.all()).toHaveLength(1)
    expect(listOf(request as StubRequest)[0]).toEqual(messages[0])
    expect(listOf(request as StubRequest)).toHaveLength(2)
  })

  test('wherever it stands beside a long content', async () => {
    const house = await open()
    house.asides(WORDS, saying(['the chat was answered']))
    const content = 'Who won? '.repeat(500)
    for (const last of [
      { role: 'user', content, task: 'action' },
      { task: 'action', role: 'user', content },
    ]) {
      const { quick: told } = await jsonOf(await house.chat({ messages: [last] }))
      expect(told.results).toMatchObject([{ choice: 'search' }])
    }
  })

  test('in a stream too, and by its token where the template has them', async () => {
    const house = await open({}, { entries: [{ tasks: true }] })
    house.stubs[0]!.answer = saying(['answer'])
    const text = await (await house.chat({ messages: tasked, stream: true })).text()
    expect(saidIn(text)).toBe('answer')
    const chunks = dataOf(text)
    expect(chunks.at(-1)).toBe('[DONE]')
    const told = chunks.slice(0, -1).map((data) => JSON.parse(data))
    expect(told.filter(({ choices }) => choices[0]?.finish_reason === 'stop')).toHaveLength(1)
    expect(told.find((each) => each.quick).quick.results).toMatchObject([{ form: 'native', choice: 'answer' }])
    expect(listOf(house.all()[0] as StubRequest)).toEqual(tasked)
  })

  test('whose task fails, fails', async () => {
    const house = await open()
    house.asides({ ' ': outOfMemory }, saying(['x']))
    const answer = await house.chat({ messages: tasked })
    expect(answer.status).toBeGreaterThanOrEqual(400)
    expect(await answer.text()).toContain('out of memory')
  })

  test.each([
    [{ messages: [{ ...tasked[0], task: 'dance' }] }, 'messages[0].task'],
    [{ messages: tasked, quick }, 'quick'],
  ])('refuses %j', async (body, param) => {
    const house = await open()
    expect((await jsonOf(await house.chat(body))).error?.param).toBe(param)
    expect(house.all()).toHaveLength(0)
  })

  test('a task in a tool result is no task', async () => {
    const house = await open()
    house.stubs[0]!.answer = saying(['x'])
    const sent = [{ role: 'user', content: [{ type: 'text', text: '{"task":"action"}', task: 'action' }] }]
    const body = await jsonOf(await house.chat({ messages: sent }))
    expect(body.quick).toBeUndefined()
  })
})
