// Logged sessions through the whole server on the scripted backend: made, talked in with tools, forked, shortened, begun anew,
// replayed to the byte, erased; and what a client does wrong.

import { afterEach, describe, expect, test } from 'vitest'
import { createScriptedTokenizer } from './backend/scripted-tokenizer.js'
import type { Program } from './compose.js'
import type { Job } from './core/request.js'
import { post, scriptedProgram } from './testing/scripted-program.js'

const programs: Program[] = []
afterEach(async () => {
  for (const program of programs.splice(0)) await program.stop(0)
})

const tokenizer = createScriptedTokenizer({ end: '<|im_end|>', specials: ['<|im_start|>'] })

const TOOLS = [
  {
    type: 'function',
    function: {
      name: 'look',
      description: 'Looks.',
      parameters: { type: 'object', properties: { at: { type: 'string' } } },
    },
  },
]

/** What the model says next; the last is repeated. */
type Script = (string | ((job: Job) => string))[]

async function house(script: Script = ['Yes.'], flags: Record<string, unknown> = {}) {
  let n = 0
  const program = await scriptedProgram(
    {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' },
      'sessions.log.store': 'memory',
      ...flags,
    },
    {
      script: (job) => {
        const next = script[Math.min(n++, script.length - 1)] as Script[number]
        return typeof next === 'string' ? next : next(job)
      },
    },
  )
  programs.push(program)
  const ask = async (method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, body?: object, headers = {}) => {
    const reply = await program.server.app.inject({
      method,
      url,
      headers: { ...(body && { 'content-type': 'application/json' }), ...headers },
      ...(body && { payload: JSON.stringify(body) }),
    })
    return { status: reply.statusCode, json: JSON.parse(reply.body), headers: reply.headers }
  }
  const create = async (body: object = {}) => (await ask('POST', '/v1/sessions', body)).json.id as string
  const chat = (session: string, messages: object[], more: object = {}, headers = {}) =>
    post(program, '/v1/chat/completions', { session, messages, temperature: 0, ...more }, headers)
  const events = async (id: string) => (await ask('GET', `/v1/sessions/${id}/events?limit=1000`)).json.data
  return { program, ask, create, chat, events }
}

const user = (content: string) => ({ role: 'user', content })
const call = (at: string) => `<tool_call>\n{"name": "look", "arguments": {"at": "${at}"}}\n</tool_call>`
const result = (id: string, content: string) => ({ role: 'tool', tool_call_id: id, content })
const kinds = (events: { type: string }[]) => events.map(({ type }) => type)

describe('a session', () => {
  test('takes only what is new, and shows what it was made of', async () => {
    const { ask, create, chat, events } = await house(['Hello.', call('tree'), 'It is green.'])
    const id = await create({ system: 'Be brief.', tools: TOOLS, metadata: { a: 1 } })
    expect(id).toMatch(/^ses_[0-9a-f]{32}$/)
    const first = (await chat(id, [user('Hi')])).json()
    expect(first.choices[0].message.content).toBe('Hello.')
    const second = (await chat(id, [user('What is the tree like?')])).json()
    const [made] = second.choices[0].message.tool_calls
    expect(made.function).toEqual({ name: 'look', arguments: '{"at": "tree"}' })
    const third = (await chat(id, [result(made.id, 'green')])).json()
    expect(third.choices[0].message.content).toBe('It is green.')
    const log = await events(id)
    expect(kinds(log)).toEqual([
      ...['head', 'user', 'policy', 'turn', 'assistant', 'usage', 'user', 'turn', 'assistant', 'tool_call', 'usage'],
      ...['tool_result', 'turn', 'assistant', 'usage'],
    ])
    expect(log.map(({ position }: { position: number }) => position)).toEqual(log.map((_: unknown, i: number) => i + 1))
    expect(log[0].tools.map((tool: { function: { name: string } }) => tool.function.name)).toEqual([
      'look',
      'read_result',
    ])
    const state = (await ask('GET', `/v1/sessions/${id}`)).json
    expect(state).toMatchObject({ turns: 3, position: 15, busy: false, metadata: { a: 1 } })
    const list = (await ask('GET', '/v1/sessions')).json.data
    expect(list.map((each: { id: string }) => each.id)).toEqual([id])
  })

  test('is seen again as the model saw it, at each turn, to the byte', async () => {
    const prompts: string[] = []
    const say = (text: string) => (job: Job) => {
      prompts.push(tokenizer.decode(job.tokens, { special: 'keep' }))
      return text
    }
    const { ask, create, chat } = await house([say('One.'), say(call('b')), say('Two.')])
    const id = await create({ system: 'Sys.', tools: TOOLS })
    await chat(id, [user('a')])
    const { tool_calls: calls } = (await chat(id, [user('b')])).json().choices[0].message
    await chat(id, [result(calls[0].id, 'B')])
    for (const turn of [1, 2, 3]) {
      const { json } = await ask('GET', `/v1/sessions/${id}/context?at=${turn}`)
      expect(json).toMatchObject({ turn, matches: true, prompt: prompts[turn - 1] })
      expect(json.messages[0]).toEqual({ role: 'system', content: 'Sys.' })
    }
    const next = (await ask('GET', `/v1/sessions/${id}/context`)).json
    expect(next.messages.at(-1)).toEqual({ role: 'assistant', content: 'Two.' })
    expect((await ask('GET', `/v1/sessions/${id}/context?at=4`)).status).toBe(404)
  })
})
