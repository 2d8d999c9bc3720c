// A summary that is rejected is an alarm, not one more request at every turn.

import { expect, test } from 'vitest'
import type { GenerateEvent } from '../core/events.js'
import { call, head, PLAIN_POLICY, result, says, user } from '../testing/random-log.js'
import { Compacting } from './compacting.js'
import { SECTIONS } from './compaction/check.js'
import { parseLifecycle } from './compaction/lifecycle.js'
import type { SessionPorts } from './contract.js'
import type { EventBody } from './log/event.js'
import { newSessionId } from './log/ids.js'
import { createMemoryLog } from './log/memory.js'
import { OpenSession } from './open-session.js'

const WINDOW = 8000
const filler = (i: number) => 'word '.repeat(100) + String.fromCharCode(97 + i)
const step = (i: number): EventBody[] => [says(filler(i)), call(`c${i}`), result(`c${i}`, filler(i))]

test('under pressure a rejected summary is written anew only once the context has grown a little', async () => {
  let text = 'no summary'
  let written = 0
  const unused = () => expect.unreachable('not for a compaction')
  const ports: SessionPorts = {
    model: () => ({ name: 'm', contextLength: WINDOW, retention: 'as-sent' }),
    ...{ shown: unused, render: unused, eraseBlocks: unused, forget: unused, revoked: unused },
    ...{ countTokens: (_, said) => Math.ceil(said.length / 4), saltOf: () => 'salt' },
    async *generate(): AsyncGenerator<GenerateEvent, void> {
      written++
      yield { type: 'token', choice: 0, ids: [1], text }
    },
  }
  const limits = { sessionEvents: 1000, sessionBytes: 1e9, sources: 10 }
  const log = createMemoryLog({ limits, maxBytes: 1e9 })
  const lifecycle = parseLifecycle({ steps: [], keep: 2 })
  const compacting = new Compacting({ log, ports, lifecycle, idleMs: 0 })
  const begun = [head('sys'), user('go'), ...Array.from({ length: 21 }, (_, i) => i).flatMap(step)].map((body) => ({
    body,
  }))
  const record = await log.create({ id: newSessionId(), tenant: 'default', model: 'm' }, begun)
  const open = new OpenSession(record, log)
  await open.load()
  const relieve = () =>
    compacting.relieve(open, { trigger: 'pressure', policy: PLAIN_POLICY, signal: new AbortController().signal })

  expect([await relieve(), written]).toEqual([false, 1])
  await open.append([{ body: says('short') }])
  expect([await relieve(), written]).toEqual([false, 1])
  await open.append(step(21).map((body) => ({ body })))
  text = SECTIONS.map((section) => `## ${section}\nnone`).join('\n')
  expect([await relieve(), written]).toEqual([true, 2])
  expect(open.compile(PLAIN_POLICY).messages.length).toBeLessThan(8)
})
