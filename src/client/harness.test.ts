// The example harness on the scripted backend, over HTTP, to the end of its 50 steps.

import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Program } from '../compose.js'
import { scriptedProgram } from '../testing/scripted-program.js'
import { Refrain } from './index.js'

let program: Program
let baseUrl: string
const NAMES = ['next_page', 'search', 'take_note', 'no_such_tool']

beforeAll(async () => {
  let n = 0
  program = await scriptedProgram(
    {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' },
      'sessions.log.store': 'memory',
      'sessions.lifecycle': { results: { batchChars: 10_000, singleChars: 5000, previewChars: 300 } },
    },
    {
      // Now and then another tool, one that is not there, and arguments that are no object, which makes it no call.
      script: ({ request }) => {
        if (request.toolChoice?.mode === 'none') return 'Valves before pumps.'
        const name = ++n % 9 === 0 ? NAMES[(n / 9) % NAMES.length] : 'next_page'
        return `<tool_call>\n{"name": "${name}", "arguments": ${n % 7 === 0 ? '[1]' : '{"word": "Valve", "note": "x"}'}}\n</tool_call>`
      },
    },
  )
  baseUrl = await program.start()
})
afterAll(() => program.stop(0))

test('50 steps: results go back, the context stays within its budget, forks go on, long results are read on', async () => {
  const path = fileURLToPath(new URL('../../examples/harness.mjs', import.meta.url))
  const { runHarness } = await import(path)
  const lines: string[] = []
  const counted = await runHarness({ baseUrl, budget: 3000, say: (line: string) => lines.push(line) })
  expect(counted).toMatchObject({ steps: 51, forks: 2 })
  expect(counted.calls).toBeGreaterThanOrEqual(40)
  expect(counted.compactions).toBeGreaterThan(1)
  expect(counted.readOn).toBeGreaterThanOrEqual(3)
  expect(counted.hitRate).toBeGreaterThan(0.7)
  const session = new Refrain({ baseUrl }).sessions.open(counted.session)
  const { turns } = await session.get()
  for (let turn = turns - 2; turn <= turns; turn++) expect((await session.context(turn)).matches).toBe(true)
  expect(lines.at(-1)).toMatch(/^res_\w+: \d+ characters/)
})
