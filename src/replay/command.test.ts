// The command against servers: one with a true prefix cache, and ones that refuse, break off, count nothing or are not there.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Report } from '../report/report.js'
import { type MockUpstream, mockUpstream } from '../testing/mock-upstream.js'
import { type ReplayFlags, type ReplayParts, replayCommand } from './command.js'

let folder: string
let cached: MockUpstream
const servers: Server[] = []
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'refrain-replay-'))
  cached = await mockUpstream()
})
afterEach(async () => {
  await cached.close()
  for (const server of servers.splice(0)) {
    server.closeAllConnections()
    server.close()
  }
  rmSync(folder, { recursive: true })
})

const write = (name: string, text: string) => {
  writeFileSync(join(folder, name), text)
  return join(folder, name)
}
/** Sessions of three turns with one head, which grow by two blocks a turn. */
const traceFile = (sessions = 3) => {
  const line = (session: number, turn: number) => ({
    t: session + 10 * turn,
    ...{ in: 64 * (8 + 2 * turn) + 10, out: 4, api_time: 1 },
    hash_ids: Array.from({ length: 8 + 2 * turn }, (_, i) => (i < 6 ? i : 1000 * (session + 1) + i)),
  })
  const files = Array.from({ length: sessions }, (_, session) => ({
    ...{ id: `s${session}`, block_size: 64, hash_id_scope: 'global', recording: 'r' },
    requests: [0, 1, 2].map((turn) => line(session, turn)),
  }))
  return files.map((file, i) => write(`t${i}.json`, JSON.stringify(file)))
}

const replay = (paths: readonly string[], flags: Partial<ReplayFlags>, parts: Partial<ReplayParts> = {}) =>
  replayCommand(
    paths,
    {
      target: [cached.url],
      sessions: '1',
      results: join(folder, 'r.jsonl'),
      ...flags,
      ...(flags.speed && { sessions: undefined as never }),
    },
    {
      environment: () => undefined,
      progress: () => undefined,
      signal: new AbortController().signal,
      ...parts,
    },
  )
const reportOf = async (...args: Parameters<typeof replay>): Promise<Report> => {
  const [paths, flags, parts] = args
  return JSON.parse(await replay(paths, { ...flags, json: true }, parts))
}

/** A server that says it has model `m`, and answers chats by `chat`. */
async function server(
  chat: (response: ServerResponse, nth: number, headers: Record<string, unknown>) => void,
): Promise<string> {
  let nth = 0
  const made = createServer((request, response) => {
    request.resume()
    request.on('end', () => {
      if (request.url === '/v1/models') response.end('{"data": [{"id": "m"}]}')
      else chat(response, nth++, request.headers)
    })
  })
  servers.push(made)
  await new Promise<void>((resolve) => made.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${(made.address() as AddressInfo).port}`
}
const streamed = (response: ServerResponse, usage: object | undefined) => {
  const event = (data: object) => response.write(`data: ${JSON.stringify(data)}\n\n`)
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  event({ choices: [{ delta: { content: 'a' }, finish_reason: null }] })
  event({ choices: [{ delta: {}, finish_reason: 'stop' }], ...(usage && { usage }) })
  response.end('data: [DONE]\n\n')
}

describe('refrain bench replay', () => {
  test('a server with a cache reuses what the trace shares', async () => {
    const report = await reportOf(traceFile(), { target: [`mock=${cached.url}/v1`] })
    const [run] = report.runs
    expect(run).toMatchObject({ name: 'mock', requests: 9, failed: 0 })
    // Texts are made by words, and this server counts four characters a token.
    expect(Math.abs(run!.hitRate! - run!.idealHitRate)).toBeLessThan(0.06)
    expect(run!.turns.map(({ requests }) => requests)).toEqual([3, 3, 3])
    expect(run!.turns[2]!.hitRate).toBeGreaterThan(run!.turns[0]!.hitRate!)
    expect(run!.ttft!.p99Ms).toBeGreaterThanOrEqual(run!.ttft!.p50Ms)
    expect(run!.cost.savedShare).toBeLessThanOrEqual(run!.cost.idealSavedShare + 0.05)
  })

  test('at the trace’s times, several targets, a page', async () => {
    const other = await mockUpstream({ blocks: 4 })
    try {
      const page = join(folder, 'p.html')
      const text = await replay(traceFile(), {
        target: [`a=${cached.url}`, `b=${other.url}`],
        speed: '2000',
        report: page,
      })
      expect(text).toMatch(/^a +9 +0 /m)
      expect(text).toMatch(/^b +9 +0 /m)
      expect(text).toContain('one after the other')
      expect(readFileSync(page, 'utf8')).toContain('Replay of')
      expect(JSON.parse(readFileSync(join(folder, 'p.json'), 'utf8')).runs).toHaveLength(2)
    } finally {
      await other.close()
    }
  })

  test('Mooncake lines and conversations', async () => {
    const lines = [
      [1, 2],
      [1, 3],
    ].map((hash_ids, i) => JSON.stringify({ timestamp: i, input_length: 1000, output_length: 2, hash_ids }))
    const mooncake = await reportOf([write('m.jsonl', lines.join('\n'))], {})
    expect(mooncake.runs[0]).toMatchObject({ requests: 2, failed: 0, turns: [] })
    const messages = ['system', 'user', 'assistant', 'user', 'assistant'].map((role) => ({
      role,
      content: `${role} `.repeat(200),
    }))
    const talk = await reportOf([write('c.jsonl', JSON.stringify({ messages }))], { results: join(folder, 'c') })
    expect(talk.runs[0]).toMatchObject({ requests: 2, failed: 0 })
    expect(talk.runs[0]!.hitRate).toBeGreaterThan(0.2)
  })

  test('a run that was stopped goes on where it was, and failures are sent again', async () => {
    const stop = new AbortController()
    let done = 0
    const progress = () => {
      if (++done === 4) stop.abort()
    }
    const text = await replay(traceFile(), {}, { signal: stop.signal, progress })
    expect(text).toMatch(/4 of 9 requests, then it was stopped/)
    expect(text).toContain('--resume')
    const before = cached.counts.requests
    const report = await reportOf(traceFile(), { resume: true })
    expect(report.runs[0]).toMatchObject({ requests: 9, failed: 0 })
    expect(cached.counts.requests - before).toBe(5)
    expect(report.notes.join()).toContain('resumed once')
    await expect(replay(traceFile(), {})).rejects.toThrow(/is there already/)
    await expect(replay(traceFile(), { resume: true, shrink: '2' })).rejects.toThrow(/begun with shrink 1, not 2/)
  })

  test('statuses, broken streams and errors within them are counted by what they say', async () => {
    const faults: ((response: ServerResponse) => void)[] = [
      (response) => response.writeHead(500).end('{"error": {"message": "out of memory"}}'),
      (response) => response.writeHead(200).end('data: {"choices": [{"delta": {"content": "a"}}]}\n\n'),
      (response) => response.writeHead(200).end('data: {"error": {"message": "gone"}}\n\n'),
      (response) => response.writeHead(200).end('data: {"choices": \n\n'),
      (response) => response.writeHead(200, { 'content-type': 'application/json' }).end('{"choices": []}'),
      (response) => response.writeHead(200).write('data: {}\n\n', () => void response.socket?.destroy()),
    ]
    // Two probes come first.
    const url = await server((response, nth) => {
      if (nth < 2 || nth % 2 === 1) streamed(response, { prompt_tokens: 100 * (nth + 1), completion_tokens: 1 })
      else faults[(nth / 2 - 1) % faults.length]!(response)
    })
    const [run] = (await reportOf(traceFile(4), { target: [url] })).runs
    expect([run!.requests, run!.failed]).toEqual([6, 6])
    const said = run!.errors.map(({ what }) => what).sort()
    expect(said).toEqual([
      'aborted',
      'in the stream: gone',
      'status 500: out of memory',
      'the answer is not JSON: Unexpected end of JSON input',
      'the answer is not streamed',
      'the stream broke off',
    ])
    // It never said what it reused.
    expect([run!.reusedTokens, run!.cost.actual]).toEqual([undefined, undefined])
  })

  test('a target that dies is given up, and what it had answered counts', async () => {
    const url = await server((response, nth) => {
      if (nth < 5) streamed(response, { prompt_tokens: 300 * (nth + 1), completion_tokens: 1 })
      else response.socket?.destroy()
    })
    const report = await reportOf(traceFile(6), { target: [url], giveUp: '4' })
    expect([report.runs[0]!.requests, report.runs[0]!.failed]).toEqual([3, 4])
    expect(report.notes.join()).toContain('given up after 4 failures in a row')
  })

  test('what was cached is read in each engine’s own field, sessions and keys are sent', async () => {
    const usages = [
      { usage: { prompt_tokens: 100, completion_tokens: 1, prompt_tokens_details: { cached_tokens: 64 } } },
      {
        usage: { prompt_tokens: 100, completion_tokens: 1, prompt_cache_hit_tokens: 32, prompt_cache_miss_tokens: 68 },
      },
      { usage: { prompt_tokens: 100, completion_tokens: 1 }, timings: { cache_n: 16, prompt_n: 84 } },
    ]
    const sent: unknown[] = []
    const url = await server((response, nth, headers) => {
      response.writeHead(200)
      response.write('data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n')
      response.end(`data: ${JSON.stringify(usages[nth])}\n\ndata: [DONE]\n\n`)
      sent.push([headers['authorization'], headers['x-refrain-session']])
    })
    const flags = { target: [url], api: 'tokens', limit: '3', keyEnv: ['KEY'] }
    const report = await reportOf(traceFile(1), flags, {
      environment: (name) => (name === 'KEY' ? 'secret' : undefined),
    })
    expect(report.runs[0]!.reusedTokens).toBe(112)
    expect(sent).toEqual([0, 1, 2].map(() => ['Bearer secret', 's0']))
    expect(readFileSync(join(folder, 'r.jsonl'), 'utf8')).not.toContain('secret')
  })

  test('a target that is not there is said before anything is sent', async () => {
    const gone = await mockUpstream()
    await gone.close()
    await expect(replay(traceFile(), { target: [cached.url, `dead=${gone.url}`] })).rejects.toThrow(
      /dead: .*ECONNREFUSED/,
    )
    expect(cached.counts.requests).toBe(0)
  })

  test.each([
    [
      'a broken line',
      'b.jsonl',
      '{"input_length": 10, "hash_ids": [1]}\n{"input_length": ',
      {},
      /b\.jsonl:2: it is not JSON/,
    ],
    ['no trace', 'n.json', '{}', {}, /it is no trace/],
    [
      'texts by tokens',
      'x.jsonl',
      '{"model": "m", "messages": [{"role": "user", "content": "a"}]}',
      { api: 'tokens' },
      /has messages, which go to chat/,
    ],
    ['an empty trace', 'e.json', '{"block_size": 64, "requests": []}', {}, /there is no request in it/],
    ['two paces', 'e.json', '', { speed: '2', sessions: '2' }, /give one of both/],
    ['a strange api', 'e.json', '', { api: 'soap' }, /--api: 'soap' is none of/],
    ['a page of another name', 'e.json', '', { report: 'x.pdf' }, /must end with \.html/],
    [
      'two of a name',
      'o.json',
      '{"block_size": 64, "requests": [{"t": 0, "in": 64, "hash_ids": [1]}]}',
      { target: ['a=http://x', 'a=http://y'] },
      /two are called a/,
    ],
    [
      'a key that is not set',
      'o.json',
      '{"block_size": 64, "requests": [{"t": 0, "in": 64, "hash_ids": [1]}]}',
      { keyEnv: ['NONE'] },
      /the environment has no NONE/,
    ],
  ])('refuses %s', async (_, name, text, flags, complaint) => {
    const path = write(name, text)
    const parts = { environment: () => undefined, progress: () => undefined, signal: new AbortController().signal }
    const all = { target: [cached.url], results: join(folder, 'r.jsonl'), ...flags }
    await expect(replayCommand([path], all, parts)).rejects.toThrow(complaint)
  })
})
