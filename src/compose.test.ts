// What the config says reaches the path of a request: a key that is read and joined to nothing would pass every test of its
// part.

import { afterEach, expect, test } from 'vitest'
import type { Program } from './compose.js'
import { chat, post, scriptedProgram } from './testing/scripted-program.js'

const programs: Program[] = []
afterEach(async () => {
  for (const program of programs.splice(0)) await program.stop(0)
})

async function program(flags: Record<string, unknown>): Promise<Program> {
  const made = await scriptedProgram(flags)
  programs.push(made)
  return made
}

const PATHS = ['/v1/chat/completions', '/v1/messages', '/v1/responses']
const bodyFor = (path: string) =>
  path === '/v1/responses' ? { input: 'hi', max_output_tokens: 4 } : chat('hi', { max_tokens: 4 })

test.each(PATHS)('limits.requestsPerMinute bounds %s, and says when to come again', async (path) => {
  const one = await program({ 'limits.requestsPerMinute': 1 })
  expect((await post(one, path, bodyFor(path))).status).toBe(200)
  const refused = await post(one, path, bodyFor(path))
  expect(refused.status).toBe(429)
  expect(Number(refused.headers['retry-after'])).toBeGreaterThan(0)
})

test('limits.tokensPerMinute counts the answer too', async () => {
  const one = await program({
    'limits.tokensPerMinute': 20,
    'backend.options': { answer: 'a long answer of words '.repeat(20) },
  })
  expect((await post(one, '/v1/chat/completions', chat('hi', { max_tokens: 60 }))).status).toBe(200)
  expect((await post(one, '/v1/chat/completions', chat('hi'))).status).toBe(429)
})

test.each([
  ['/v1/chat/completions', { ...chat('hi'), reasoning_effort: 'high' }, 'reasoning_effort'],
  ['/v1/messages', { ...chat('hi'), max_tokens: 4, output_config: { effort: 'high' } }, 'output_config'],
  ['/v1/responses', { input: 'hi', reasoning: { effort: 'high' } }, 'reasoning'],
])('%s: an effort that the model cannot be asked for is named', async (path, body, field) => {
  const chatml = await program({ 'backend.options': { template: 'chatml', answer: 'yes' } })
  const reply = await post(chatml, path, body)
  expect(reply.status).toBe(200)
  expect(String(reply.headers['x-refrain-ignored']).split(', ')).toContain(field)
})

test('explain.turns: 0 leaves out what tells of turns', async () => {
  const off = await program({ 'explain.turns': 0 })
  const reply = await off.server.app.inject({ method: 'GET', url: '/v1/sessions/s/turns' })
  expect(reply.statusCode).toBe(404)
})
