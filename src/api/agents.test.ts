// What real agents and client libraries send (recorded) is taken, streamed to its end, and leaves little that is ignored.

import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { payloadsOf, post, scriptedProgram } from '../testing/scripted-program.js'

const root = fileURLToPath(new URL('../../../shared/fixtures/agent-clients/', import.meta.url))
const present = existsSync(root)

interface Recorded {
  readonly name: string
  readonly path: string
  readonly body: Record<string, unknown>
}

function recorded(): Recorded[] {
  if (!present) return []
  return readdirSync(root, { recursive: true, encoding: 'utf8' })
    .filter((name) => /\d{3}-.*\.json$/.test(name))
    .map((name) => ({ name, ...JSON.parse(readFileSync(join(root, name), 'utf8')) }) as Recorded)
    .filter(({ path }) => /\/chat\/completions$/.test(path))
}

let program: Program
beforeAll(async () => {
  program = await scriptedProgram({
    'model.aliases': { 'mock-*': 'smollm2-135m-instruct' },
    'backend.options': { answer: 'An answer.' },
  })
})
afterAll(() => program.stop(0))

test.skipIf(!present)('every recorded chat request is answered (needs ../shared)', async () => {
  const requests = recorded()
  expect(requests.length).toBeGreaterThan(50)
  const refused: string[] = []
  const ignored = new Set<string>()
  for (const { name, body } of requests) {
    const reply = await post(program, '/v1/chat/completions', body)
    if (reply.status !== 200) refused.push(`${name}: ${reply.json().error.message}`)
    else if (body['stream'] === true) expect(payloadsOf(reply.text).at(-1)).toBe('[DONE]')
    const named = reply.headers['x-refrain-ignored']
    if (typeof named === 'string') for (const field of named.split(', ')) ignored.add(field)
  }
  expect(refused).toEqual([])
  expect([...ignored]).toEqual([])
})
