// Side questions before servers elsewhere: what each kind is told, who goes first, what comes back.

import { afterEach, describe, expect, test } from 'vitest'
import { type FleetHouse, fleetHouse } from './testing/fleet-house.js'
import { type StubRequest, saying } from './testing/stub-upstream.js'

let house: FleetHouse | undefined
afterEach(async () => {
  await house?.close()
  house = undefined
})

const messages = [
  { role: 'system', content: 'You   help.' },
  { role: 'user', content: 'Who won the 2031 cup?' },
]
const action = { task: 'action' }
const title = { task: 'title' }

async function open(owner: string, more: object = {}, count = 1): Promise<FleetHouse> {
  const stubs = Array.from({ length: count }, () => ({ owner }))
  house = await fleetHouse({ stubs, entries: stubs.map(() => more) })
  return house
}

async function asked(open: FleetHouse, body: object, headers: Record<string, string> = {}) {
  const response = await open.post('/v1/quick', { model: 'm', messages, ...body }, headers)
  return { status: response.status, headers: response.headers, body: (await response.json()) as Answer }
}

interface Answer {
  readonly object: string
  readonly results: { task: string; choice?: string; text?: string; form: string; error?: { code: string } }[]
  readonly usage: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details?: object }
  readonly error?: { code: string; param: string; message: string }
}

const last = ({ body }: StubRequest) => (body['messages'] as { role: string; content: string }[]).at(-1)
const wordsOf = (request: StubRequest) => String(last(request)?.content)

/** Answers by what the last message asks. */
function answering(open: FleetHouse, answers: Record<string, string>, cachedTokens = 0): void {
  for (const stub of open.stubs) {
    stub.answer = (request, response, socket) => {
      const key = Object.keys(answers).find((word) => wordsOf(request).includes(word)) ?? ''
      saying([answers[key] ?? 'nothing'], cachedTokens)(request, response, socket)
    }
  }
}

const requestsOf = (open: FleetHouse) => open.stubs.flatMap(({ requests }) => requests)

describe('a chat server is asked', () => {
  test('each question as a request of its own, with its form, greedy and short, on the same text', async () => {
    const fleet = await open('vllm')
    answering(fleet, { 'web search': 'search', title: 'The 2031 cup' }, 8)
    const { status, body, headers } = await asked(fleet, { tasks: [action, title] })
    expect(status).toBe(200)
    expect(body.object).toBe('quick')
    expect(body.results).toMatchObject([
      { task: 'action', form: 'instruction', choice: 'search' },
      { task: 'title', form: 'instruction', text: 'The 2031 cup' },
    ])
    // The stub counts ten tokens for any prompt: what is common, and nothing else.
    expect(body.usage).toMatchObject({ prompt_tokens: 10, completion_tokens: 2 })
    expect(body.usage.prompt_tokens_details).toEqual({ cached_tokens: 8 })
    expect(headers.get('x-refrain-route')).toContain(fleet.stubs[0]!.url)
    const [first, second] = requestsOf(fleet) as [StubRequest, StubRequest]
    expect(first.body).toMatchObject({
      temperature: 0,
      structured_outputs: { choice: ['search', 'answer'] },
      top_logprobs: 20,
      chat_template_kwargs: { enable_thinking: false },
    })
    expect(first.body['max_tokens']).toBeLessThan(32)
    expect(second.body).toMatchObject({ max_tokens: 24, stop: ['\n'] })
    expect(second.body['structured_outputs']).toBeUndefined()
    for (const request of [first, second]) {
      expect(request.path).toBe('/v1/chat/completions')
      expect(request.text).toContain('{"role":"system","content":"You   help."}')
      expect(request.body['tasks']).toBeUndefined()
    }
  })

  test('one first, and the others once that is answered', async () => {
    const fleet = await open('vllm')
    let [running, most, answered] = [0, 0, 0]
    const atStart: number[] = []
    fleet.stubs[0]!.answer = (request, response, socket) => {
      atStart.push(answered)
      most = Math.max(most, ++running)
      setTimeout(() => {
        running--
        answered++
        saying(['yes'])(request, response, socket)
      }, 20)
    }
    const urls = Array.from({ length: 6 }, (_, i) => `http://x/${i}`)
    const { body } = await asked(fleet, { tasks: [{ task: 'read_url', urls }] })
    expect(body.results.map(({ choice }) => choice)).toEqual(urls.map(() => 'yes'))
    expect(atStart[0]).toBe(0)
    expect(Math.min(...atStart.slice(1))).toBeGreaterThan(0)
    expect(most).toBeGreaterThan(1)
  })

  test('where the chat of its session went', async () => {
    const fleet = await open('vllm', {}, 3)
    answering(fleet, { 'web search': 'answer' })
    await fleet.chat({ messages }, { 'x-session-id': 's' })
    const home = fleet.stubs.findIndex(({ requests }) => requests.length === 1)
    await asked(fleet, { tasks: [action, title] }, { 'x-session-id': 's' })
    expect(fleet.stubs.map(({ requests }) => requests.length)).toEqual([0, 1, 2].map((i) => (i === home ? 3 : 0)))
  })

  test.each([
    ['sglang', { regex: '(search|answer)' }],
    ['llamacpp', { grammar: 'root ::= "search" | "answer"' }],
    ['somebody', { response_format: { type: 'json_schema' } }],
  ])('in the way that a server of kind %s is guided', async (owner, form) => {
    const fleet = await open(owner)
    answering(fleet, { 'web search': owner === 'somebody' ? '{"answer":"search"}' : 'search' })
    const { body } = await asked(fleet, { tasks: [action] })
    expect(body.results[0]).toMatchObject({ choice: 'search' })
    expect(requestsOf(fleet)[0]!.body).toMatchObject(form)
  })

  test('by its own special tokens where its template has them', async () => {
    const fleet = await open('vllm', { tasks: true })
    fleet.stubs[0]!.answer = saying(['search'])
    const { body } = await asked(fleet, { tasks: [action, { task: 'title', instruction: 'Say x.' }] })
    expect(body.results.map(({ form }) => form)).toEqual(['native', 'instruction'])
    const [native, words] = requestsOf(fleet).map(last)
    expect(native).toEqual({ role: 'user', content: 'Who won the 2031 cup?', task: 'action' })
    expect(words).toEqual({ role: 'user', content: 'Say x.' })
  })

  test('with the words in the last message where the template takes no two in a row', async () => {
    const fleet = await open('vllm')
    fleet.stubs[0]!.answer = (request, response, socket) => {
      const roles = (request.body['messages'] as { role: string }[]).map(({ role }) => role)
      if (roles.at(-1) !== roles.at(-2)) return saying(['search'])(request, response, socket)
      response.writeHead(400, { 'content-type': 'application/json' })
      response.end('{"error":{"message":"roles must alternate"}}')
    }
    const { body } = await asked(fleet, { tasks: [action, action] })
    expect(body.results).toMatchObject([{ choice: 'search' }, { choice: 'search' }])
    // The second does not try what the first learned.
    expect(requestsOf(fleet)).toHaveLength(3)
    expect(wordsOf(requestsOf(fleet)[2]!)).toMatch(/^Who won the 2031 cup\?\n\nDoes answering/)
  })

  test('with probabilities where its alternatives tell the choices apart', async () => {
    const fleet = await open('vllm')
    fleet.stubs[0]!.answer = (_request, response) => {
      const top_logprobs = [
        { token: 'search', logprob: Math.log(0.6) },
        { token: ' ans', logprob: Math.log(0.2) },
        { token: 'x', logprob: Math.log(0.1) },
      ]
      const message = { role: 'assistant', content: 'search' }
      const choices = [{ index: 0, message, finish_reason: 'stop', logprobs: { content: [{ top_logprobs }] } }]
      response.writeHead(200, { 'content-type': 'application/json' })
      response.end(JSON.stringify({ choices, usage: { prompt_tokens: 30, completion_tokens: 1, total_tokens: 31 } }))
    }
    const { body } = await asked(fleet, { tasks: [action] })
    const [result] = body.results as unknown as [{ probabilities: Record<string, number> }]
    expect(result.probabilities['search']).toBeCloseTo(0.75, 6)
    expect(result.probabilities['answer']).toBeCloseTo(0.25, 6)
  })
})

describe('what goes wrong', () => {
  test('with one question is its own', async () => {
    const fleet = await open('llamacpp')
    answering(fleet, { 'web search': 'maybe', title: 'A title' })
    const tasks = [action, { task: 'custom', instruction: 'x', regex: 'a+' }, title]
    const { status, body } = await asked(fleet, { tasks })
    expect(status).toBe(200)
    expect(body.results).toMatchObject([
      { error: { code: 'engine_failed' } },
      { error: { code: 'unsupported_parameter' } },
      { text: 'A title' },
    ])
  })

  test('with the backend is the call’s', async () => {
    const fleet = await open('vllm')
    fleet.stubs[0]!.answer = (_request, response) => {
      response.writeHead(500, { 'content-type': 'application/json' })
      response.end('{"error":{"message":"out of memory"}}')
    }
    const { body } = await asked(fleet, { tasks: [action, title] })
    expect(JSON.stringify(body)).toContain('out of memory')
  })

  test.each([
    [{ tasks: [] }, 'tasks'],
    [{ tasks: [{ task: 'custom', instruction: 'x', choices: ['a', 'ab'] }] }, 'tasks[0].choices[1]'],
    [{ tasks: [action], messages: [] }, 'messages'],
  ])('in the request is refused by its field: %j', async (change, param) => {
    const fleet = await open('vllm')
    const { status, body } = await asked(fleet, change)
    expect(status).toBe(400)
    expect(body.error?.param).toBe(param)
    expect(requestsOf(fleet)).toHaveLength(0)
  })
})

test('a Refrain gets all questions at once, as they came', async () => {
  const fleet = await open('refrain')
  const answer = { id: 'quick-1', object: 'quick', results: [], usage: { prompt_tokens: 40, completion_tokens: 3 } }
  fleet.stubs[0]!.answer = (_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify(answer))
  }
  const { status, body } = await asked(fleet, { tasks: [action, title] })
  expect(status).toBe(200)
  expect(body).toEqual(answer)
  expect(requestsOf(fleet).map(({ path }) => path)).toEqual(['/v1/quick'])
  expect(requestsOf(fleet)[0]!.body['tasks']).toEqual([action, title])
})

test('each is a request of its own to the router: what runs is counted, and nothing is left when all are over', async () => {
  const fleet = await open('vllm')
  let most = 0
  const inFlight = async () => {
    const { data } = (await (await fetch(`${fleet.url}/v1/backends`)).json()) as { data: [{ in_flight: number }] }
    return data[0].in_flight
  }
  let started = 0
  fleet.stubs[0]!.answer = (request, response, socket) => {
    started++
    const say = () => saying(['yes'])(request, response, socket)
    // The first alone; the others are held until all of them are there.
    if (started === 1) say()
    else if (started < 4) held.push(say)
    else
      void inFlight().then((count) => {
        most = count
        for (const each of [...held, say]) each()
      })
  }
  const held: (() => void)[] = []
  const urls = Array.from({ length: 4 }, (_, i) => `http://x/${i}`)
  await asked(fleet, { tasks: [{ task: 'read_url', urls }] })
  expect(most).toBe(3)
  await new Promise((resolve) => setTimeout(resolve, 10))
  expect(await inFlight()).toBe(0)
})
