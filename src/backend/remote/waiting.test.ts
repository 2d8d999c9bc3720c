// How many requests wait at a server, in the words of each kind, and what is asked of one that does not say.

import { describe, expect, test } from 'vitest'
import type { Remote, RemoteFacts, RemoteOptions } from './contract.js'
import { gaugeIn } from './gauges.js'
import { askWaiting } from './waiting.js'

/** A server of a kind that answers these paths; `asked` are the others too. */
function serverOf(
  kind: RemoteFacts['kind'],
  answers: Record<string, string | number>,
  options: Partial<RemoteOptions> = {},
) {
  const asked: string[] = []
  const remote = {
    options,
    facts: { kind, models: [], lacks: [] } as RemoteFacts,
    call: async (_method: string, path: string) => {
      asked.push(path)
      const answer = answers[path] ?? 404
      return typeof answer === 'number' ? { status: answer, value: '' } : { status: 200, value: answer }
    },
  }
  return { remote: remote as unknown as Remote, asked, answers }
}

const VLLM = `# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a b} c"} 3.0
vllm:num_requests_waiting{engine="1",model_name="a"} 2.0
vllm:num_requests_waiting_by_reason{engine="0"} 9.0
`

describe('a server says how many wait', () => {
  test.each([
    ['vllm', {}, { '/metrics': VLLM }, 5],
    ['vllm', { dataParallelRank: 1 }, { '/metrics': VLLM }, 2],
    [
      'sglang',
      {},
      { '/v1/loads': '{"loads":[{"dp_rank":0,"num_waiting_reqs":2},{"dp_rank":1,"num_waiting_reqs":5}]}' },
      7,
    ],
    [
      'sglang',
      { dataParallelRank: 1 },
      { '/get_load': '[{"dp_rank":0,"num_waiting_reqs":2},{"dp_rank":1,"num_waiting_reqs":4}]' },
      4,
    ],
    ['sglang', {}, { '/metrics': 'sglang:num_queue_reqs{model_name="m"} 6\n' }, 6],
    ['llama-cpp', {}, { '/metrics': 'llamacpp:requests_deferred 4\n' }, 4],
    ['refrain', {}, { '/metrics': 'refrain_requests_waiting 1\n' }, 1],
  ] as const)('%s %j', async (kind, options, answers, requests) => {
    const { remote } = serverOf(kind, answers, options)
    expect(await askWaiting(remote)).toEqual({ requests, withRunning: false })
  })

  test('llama-server without metrics: whoever comes waits for its slots once all are busy', async () => {
    const slots = (...busy: boolean[]) => JSON.stringify(busy.map((is_processing, id) => ({ id, is_processing })))
    const { remote, answers, asked } = serverOf('llama-cpp', { '/metrics': 501, '/slots': slots(true, false) })
    expect(await askWaiting(remote)).toEqual({ requests: 0, withRunning: true })
    answers['/slots'] = slots(true, true)
    expect(await askWaiting(remote)).toEqual({ requests: 2, withRunning: true })
    expect(asked).toEqual(['/metrics', '/slots', '/slots'])
  })

  test('what it does not offer is asked for once, until it was away; a busy one is asked again', async () => {
    const { remote, asked, answers } = serverOf('vllm', { '/metrics': 503 })
    for (let i = 0; i < 2; i++) expect(await askWaiting(remote)).toBeUndefined()
    answers['/metrics'] = '<html>vllm</html>'
    for (let i = 0; i < 3; i++) expect(await askWaiting(remote)).toBeUndefined()
    expect(asked).toHaveLength(3)
    Object.assign(remote, { facts: { kind: 'vllm', models: [], lacks: [] } })
    answers['/metrics'] = VLLM
    expect((await askWaiting(remote))?.requests).toBe(5)
    const { remote: plain, asked: none } = serverOf('openai', {})
    expect(await askWaiting(plain)).toBeUndefined()
    expect(none).toEqual([])
  })
})

test('a gauge is read by its whole name, and nonsense is none', () => {
  expect(gaugeIn('a_b 1\nxa 3\na 2\n', 'a')).toBe(2)
  for (const text of ['', 'a', 'a x\n', 'a -1\n', 'a NaN\n', '# a 4\n']) expect(gaugeIn(text, 'a')).toBeUndefined()
})
