// What a fleet lets in: requests wait for a backend with room, by priority; tenants have so many requests and tokens a
// minute; refusals say when to come again.

import { afterEach, expect, test } from 'vitest'
import { about, type FleetHouse, fleetHouse, type HouseOptions, until } from './testing/fleet-house.js'
import { saying } from './testing/stub-upstream.js'

const houses: FleetHouse[] = []
afterEach(async () => {
  await Promise.all(houses.splice(0).map((house) => house.close()))
})

async function house(options: HouseOptions = {}): Promise<FleetHouse> {
  const made = await fleetHouse(options)
  houses.push(made)
  return made
}

const codeIn = async (response: Response) => ((await response.json()) as { error?: { code: string } }).error?.code

test('no backend gets more than it may at once; the rest wait and get their answers', async () => {
  const { chat, stubs } = await house({ config: { 'router.maxInFlight': 2 } })
  const held: (() => void)[] = []
  let most = 0
  for (const stub of stubs) {
    let running = 0
    stub.answer = (request, response) => {
      running++
      most = Math.max(most, running)
      held.push(() => {
        running--
        saying(['done'])(request, response, response.socket!)
      })
    }
  }
  const all = Array.from({ length: 10 }, (_, i) => chat(about(i)))
  await until(() => held.length === 4)
  for (let over = 0; over < 10; over++) {
    await until(() => held.length > 0)
    held.shift()!()
  }
  expect((await Promise.all(all)).map(({ status }) => status)).toEqual(Array(10).fill(200))
  expect(most).toBe(2)
})

test('who waits too long, or finds too many waiting, is told to come again', async () => {
  const config = { 'router.maxInFlight': 1, 'limits.queuedRequests': 1, 'limits.queueMs': 50 }
  const { chat, stubs } = await house({ stubs: [{}], config })
  let end: () => void = () => undefined
  stubs[0]!.answer = (request, response) => {
    end = () => saying(['done'])(request, response, response.socket!)
  }
  const first = chat(about(1))
  await until(() => stubs[0]!.requests.length === 1)
  const [second, third] = await Promise.all([chat(about(2)), chat(about(3))])
  expect([second.status, third.status].sort()).toEqual([429, 503])
  expect([await codeIn(second), await codeIn(third)].sort()).toEqual(['queue_full', 'queue_timeout'])
  for (const { headers } of [second, third]) expect(Number(headers.get('retry-after'))).toBeGreaterThan(0)
  end()
  expect((await first).status).toBe(200)
})

test('tenants have requests and tokens a minute, each its own', async () => {
  const tenants = [
    { name: 'a', key: 'key-of-a-1', requestsPerMinute: 2 },
    { name: 'b', key: 'key-of-b-1', tokensPerMinute: 40 },
  ]
  const { chat, post, stubs } = await house({ stubs: [{}], entries: [{ shared: true }], config: { tenants } })
  const ask = (key: string, more: object = {}) => chat(more, { authorization: `Bearer ${key}` })
  for (const status of [200, 200, 429, 429]) expect((await ask('key-of-a-1')).status).toBe(status)
  const usage = { prompt_tokens: 110, completion_tokens: 20, total_tokens: 130 }
  const whole = { id: 'x', choices: [{ index: 0, message: { role: 'assistant', content: 'a' } }], usage }
  stubs[0]!.answer = (_, response) =>
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(whole))
  const long = { messages: [{ role: 'user', content: 'x'.repeat(400) }] }
  expect((await ask('key-of-b-1', long)).status).toBe(200)
  const refused = await ask('key-of-b-1')
  expect([refused.status, await codeIn(refused)]).toEqual([429, 'rate_limited'])
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(60)
  const message = { model: 'm', max_tokens: 5, messages: [{ role: 'user', content: 'hi' }] }
  const inDialect = await post('/v1/messages', message, { 'x-api-key': 'key-of-a-1' })
  expect(inDialect.status).toBe(429)
  expect(await inDialect.json()).toMatchObject({ type: 'error', error: { type: 'rate_limit_error' } })
})

test('who waits for a slot of a llama-server counts as its, and no more once its client has left', async () => {
  const { chat, url, stubs } = await house({
    stubs: [{ owner: 'llamacpp', slots: 1 }],
    config: { 'router.maxInFlight': 2 },
  })
  const [stub] = stubs as [(typeof stubs)[number]]
  const held: (() => void)[] = []
  stub.answer = (asked, response, socket) => {
    if (asked.path.startsWith('/slots/')) saying([])(asked, response, socket)
    else held.push(() => saying(['hi'])(asked, response, socket))
  }
  const inQueue = async () => /^refrain_requests_waiting (\d+)/m.exec(await (await fetch(`${url}/metrics`)).text())?.[1]
  const waiting = async (count: string) => {
    for (let i = 0; i < 4000 && (await inQueue()) !== count; i++) await new Promise((resolve) => setTimeout(resolve, 5))
    expect(await inQueue()).toBe(count)
  }
  const first = chat(about(1))
  await until(() => held.length === 1)
  const leaves = new AbortController()
  const second = fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'm', ...about(2) }),
    signal: leaves.signal,
  }).catch(() => 'left')
  // One sits, one waits for the slot: the next one is not let in.
  await new Promise((resolve) => setTimeout(resolve, 50))
  const third = chat(about(3))
  await waiting('1')
  leaves.abort()
  expect(await second).toBe('left')
  await waiting('0')
  held[0]?.()
  await until(() => held.length === 2)
  held[1]?.()
  expect([(await first).status, (await third).status]).toEqual([200, 200])
})
