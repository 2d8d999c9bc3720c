// What becomes of requests whose backend fails: before content another one is tried, behind it the stream ends as an error
// of its dialect, and a refusal is an answer.

import { afterEach, describe, expect, test } from 'vitest'
import { about, dataOf, type FleetHouse, fleetHouse, type HouseOptions, saidIn } from './testing/fleet-house.js'
import { beginStream, chunk, ROLE, type StubAnswer, saying } from './testing/stub-upstream.js'

const houses: FleetHouse[] = []
afterEach(async () => {
  await Promise.all(houses.splice(0).map((house) => house.close()))
})

async function house(options: HouseOptions = {}): Promise<FleetHouse> {
  const made = await fleetHouse(options)
  houses.push(made)
  return made
}

/** A stream of `text` and no more. */
function streamed(text: string): StubAnswer {
  return (_, response) => {
    beginStream(response)
    response.end(text)
  }
}

/** Every stub does `bad` once, whichever is asked first; the other one answers. */
function badFirst({ stubs }: FleetHouse, bad: StubAnswer): void {
  let was = false
  for (const stub of stubs) {
    stub.answer = (request, response, socket) => {
      if (was) return saying(['good'])(request, response, socket)
      was = true
      bad(request, response, socket)
    }
  }
}

const asked = ({ stubs }: FleetHouse) => stubs.reduce((sum, { requests }) => sum + requests.length, 0)

describe('another backend is tried', () => {
  const failures: readonly (readonly [string, StubAnswer])[] = [
    ['where the first one is killed before it answers', (_, __, socket) => socket.resetAndDestroy()],
    [
      'where it is killed with its headers out',
      (_, response, socket) => {
        beginStream(response)
        setTimeout(() => socket.resetAndDestroy(), 20)
      },
    ],
    [
      'where it is killed behind the role',
      (_, response, socket) => {
        beginStream(response)
        response.write(ROLE, () => setTimeout(() => socket.resetAndDestroy(), 20))
      },
    ],
    ['where it answers 503', (_, response) => response.writeHead(503, { 'retry-after': '7' }).end('{"error":{}}')],
    ['where it answers 500', (_, response) => response.writeHead(500).end('oops')],
    [
      'where its first event is an error',
      (_, response) => {
        beginStream(response)
        response.end('data: {"error": {"message": "dead", "code": 500}}\n\ndata: [DONE]\n\n')
      },
    ],
    ['where it ends a stream that has nothing', streamed('')],
    ['where it says [DONE] and nothing else', streamed('data: [DONE]\n\n')],
    ['where it says nothing but comments', streamed(': x\n\n')],
    ['where it sends garbage as a stream', streamed('data: <html>\n\n')],
    ['where it sends no stream', (_, response) => response.end('<html></html>')],
    ['where it speaks no HTTP', (_, __, socket) => socket.end('SSH-2.0-OpenSSH_9\r\n')],
    ['where it hangs', () => undefined],
    [
      'where it drips bytes that are no content',
      (_, response) => {
        beginStream(response)
        const timer = setInterval(() => response.write(': z\n\n'), 20)
        response.once('close', () => clearInterval(timer))
      },
    ],
  ]

  test.each(failures)('%s', async (_, bad) => {
    const made = await house({ config: { 'fleet.firstTokenMs': 150 } })
    badFirst(made, bad)
    const answer = await made.chat({ stream: true })
    expect(answer.status).toBe(200)
    const text = await answer.text()
    expect(saidIn(text)).toBe('good')
    expect(dataOf(text).at(-1)).toBe('[DONE]')
  })

  test.each(failures.filter(([name]) => !/role|event|\[DONE\]|comments|stream|content|headers/.test(name)))(
    'for an answer that is no stream: %s',
    async (_, bad) => {
      const made = await house({ config: { 'fleet.firstTokenMs': 150 } })
      badFirst(made, bad)
      const body = (await (await made.chat()).json()) as { choices: { message: { content: string } }[] }
      expect(body.choices[0]?.message.content).toBe('good')
    },
  )

  test('for a whole answer that breaks off in its middle', async () => {
    const made = await house()
    badFirst(made, (_, response, socket) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': 1000 })
      response.write('{"choices":[')
      setTimeout(() => socket.resetAndDestroy(), 20)
    })
    expect((await made.chat()).status).toBe(200)
  })

  test('also after keepalives have gone out', async () => {
    const made = await house({ config: { 'server.keepaliveMs': 30 } })
    badFirst(made, (_, response, socket) => {
      beginStream(response)
      setTimeout(() => socket.resetAndDestroy(), 120)
    })
    const text = await (await made.chat({ stream: true })).text()
    expect(text.startsWith(': keepalive\n\n: keepalive\n\n')).toBe(true)
    expect(saidIn(text)).toBe('good')
  })

  test('one that is down is not asked, one that comes back is', async () => {
    const made = await house()
    await made.stubs[0]!.kill()
    for (let i = 0; i < 6; i++) expect((await made.chat(about(i))).status).toBe(200)
    expect(made.stubs[0]!.requests).toHaveLength(0)
    await made.stubs[0]!.revive()
    for (let i = 0; i < 4000 && made.stubs[0]!.requests.length === 0; i++) {
      expect((await made.chat(about(i + 6))).status).toBe(200)
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
    expect(made.stubs[0]!.requests.length).toBeGreaterThan(0)
  })
})

describe('nothing else is tried', () => {
  test.each([400, 404, 409, 422, 429])('for a %i', async (status) => {
    const made = await house()
    const body = `{"error":{"message":"no","type":"BadRequestError","code":${status}}}`
    for (const stub of made.stubs) {
      stub.answer = (_, response) => response.writeHead(status, { 'content-type': 'application/json' }).end(body)
    }
    for (const stream of [true, false]) {
      const answer = await made.chat({ stream })
      expect(answer.status).toBe(status)
      expect(await answer.text()).toBe(body)
      expect(answer.headers.get('retry-after')).toBe(status === 429 ? '1' : null)
    }
    expect(asked(made)).toBe(2)
  })

  test('once content has come: the stream ends as an error and never as a good end', async () => {
    const breaks: readonly StubAnswer[] = [
      (_, response, socket) => {
        beginStream(response)
        response.write(ROLE + chunk({ content: 'half' }), () => setTimeout(() => socket.resetAndDestroy(), 20))
      },
      (_, response) => {
        beginStream(response)
        response.end(`${ROLE}${chunk({ content: 'half' })}`)
      },
      (_, response) => {
        beginStream(response)
        response.end(`${ROLE}${chunk({ content: 'half' })}data: {"error": {"message": "dead"}}\n\ndata: [DONE]\n\n`)
      },
      // In the middle of an event.
      (_, response) => {
        beginStream(response)
        response.end(`${ROLE}${chunk({ content: 'half' })}${chunk({ content: 'more' }).slice(0, 30)}`)
      },
      // Hangs.
      (_, response) => {
        beginStream(response)
        response.write(`${ROLE}${chunk({ content: 'half' })}`)
      },
    ]
    const made = await house({ config: { 'fleet.idleMs': 100 } })
    for (const [i, bad] of breaks.entries()) {
      for (const stub of made.stubs) stub.answer = bad
      const text = await (await made.chat({ stream: true })).text()
      expect(saidIn(text), `case ${i}`).toBe('half')
      expect(text).not.toContain('[DONE]')
      expect(JSON.parse(dataOf(text).at(-1) as string).error).toMatchObject({ code: 'engine_failed' })
      expect(text.endsWith('\n\n')).toBe(true)
    }
    expect(asked(made)).toBe(breaks.length)
  })

  test('a stream whose choices are complete is complete without [DONE], and gets one', async () => {
    const { chat, stubs } = await house({ stubs: [{}] })
    stubs[0]!.answer = (_, response) => {
      beginStream(response)
      response.end(`${ROLE}${chunk({ content: 'all' })}${chunk({}, 'stop')}`)
    }
    const text = await (await chat({ stream: true })).text()
    expect(dataOf(text).at(-1)).toBe('[DONE]')
  })

  test('where the server shuts down: what runs ends in-band', async () => {
    const made = await house({ stubs: [{}] })
    made.stubs[0]!.answer = (_, response) => {
      beginStream(response)
      response.write(ROLE + chunk({ content: 'half' }))
    }
    const answer = await made.chat({ stream: true })
    const reading = answer.text()
    await made.close()
    const text = await reading
    expect(saidIn(text)).toBe('half')
    expect(JSON.parse(dataOf(text).at(-1) as string).error.code).toBe('draining')
  })

  test('where all are down: an error with a time to come again', async () => {
    const made = await house()
    for (const stub of made.stubs) stub.answer = (_, __, socket) => socket.resetAndDestroy()
    const answer = await made.chat()
    expect(answer.status).toBe(500)
    expect(answer.headers.get('retry-after')).toBe('1')
    expect(((await answer.json()) as { error: { code: string } }).error.code).toBe('engine_failed')
  })

  test("a 503 of all is the backend's own, with a time to come again", async () => {
    const made = await house()
    for (const stub of made.stubs) {
      stub.answer = (_, response) => response.writeHead(503, { 'retry-after': '7' }).end('{"error":{"message":"busy"}}')
    }
    const answer = await made.chat()
    expect(answer.status).toBe(503)
    expect(answer.headers.get('retry-after')).toBe('7')
  })
})

describe('errors have the shape of their dialect', () => {
  test('whatever shape a backend has for paths, methods and the like', async () => {
    const { chat, post, stubs } = await house({ stubs: [{}] })
    stubs[0]!.answer = (_, response) => response.writeHead(404).end('{"detail":"Not Found"}')
    const openai = await chat()
    expect(openai.status).toBe(404)
    expect(await openai.json()).toMatchObject({ error: { message: 'Not Found', param: null } })
    stubs[0]!.answer = (_, response) => response.writeHead(413).end('<html>too large</html>')
    const anthropic = await post('/v1/messages', { model: 'm', messages: [] })
    expect(anthropic.status).toBe(413)
    expect(await anthropic.json()).toMatchObject({ type: 'error', error: { message: 'the backend answers 413' } })
    expect(anthropic.headers.get('request-id')).toBe(anthropic.headers.get('x-request-id'))
  })

  test('Anthropic', async () => {
    const made = await house()
    const refused = await made.post('/v1/messages', { model: 'other', messages: [] })
    expect(refused.status).toBe(404)
    expect(await refused.json()).toMatchObject({ type: 'error', error: { type: 'not_found_error' } })
    for (const stub of made.stubs) {
      stub.answer = (_, response, socket) => {
        beginStream(response)
        const delta = { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'half' } }
        response.write(`event: content_block_delta\ndata: ${JSON.stringify(delta)}\n\n`, () =>
          setTimeout(() => socket.resetAndDestroy(), 20),
        )
      }
    }
    const text = await (await made.post('/v1/messages', { model: 'm', messages: [], stream: true })).text()
    expect(text).toContain('half')
    const last = text.trimEnd().split('\n\n').at(-1) as string
    expect(last.startsWith('event: error\n')).toBe(true)
    expect(JSON.parse(dataOf(last)[0] as string)).toMatchObject({ type: 'error', error: { type: 'api_error' } })
  })

  test('Responses', async () => {
    const made = await house({ stubs: [{}] })
    made.stubs[0]!.answer = (_, response, socket) => {
      beginStream(response)
      const created = { type: 'response.created', sequence_number: 0, response: { id: 'resp_7', model: 'm' } }
      const delta = { type: 'response.output_text.delta', sequence_number: 1, delta: 'half' }
      const text = [created, delta].map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join('')
      response.write(text, () => setTimeout(() => socket.resetAndDestroy(), 20))
    }
    const text = await (await made.post('/v1/responses', { model: 'm', input: 'x', stream: true })).text()
    expect(JSON.parse(dataOf(text).at(-1) as string)).toMatchObject({
      type: 'response.failed',
      sequence_number: 2,
      response: { id: 'resp_7', status: 'failed', error: { code: 'server_error' } },
    })
  })
})
