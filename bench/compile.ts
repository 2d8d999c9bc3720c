// What does compiling cost after an append, at 2,000 events against at 200, and against compiling everything from scratch?
// Ceiling: 1.5x from 200 to 2,000.
//
//   npm run bench -- compile [rounds]
//
// A session of a tool loop: every fifth event a user's, else answers with a call and results of 2,000 characters; a memory
// block, a plan in the tail, a summary at the 50th event. At each size a step of four events (answer, call, result, plan) is
// appended and compiled again and again; its middle is told, of rounds that take turns between the sizes so that who else is
// on the machine hits all alike. The baseline is compiling from scratch at the same sizes. Warm-up: a tenth of the rounds.

import { CURRENT_COMPILER, compileContext, createIncrementalCompiler } from '../src/session/compile/compilers.js'
import type { EventBody, PolicySnapshot, SessionEvent } from '../src/session/log/event.js'

const SIZES = [200, 2000, 20_000]
const rounds = Number(process.argv[2] ?? 400)
const POLICY: PolicySnapshot = { retention: 'as-sent', revoked: [], shared: {} }

const step = (i: number): EventBody[] => [
  { kind: 'assistant', content: `step ${i}`, reasoning: 'because' },
  { kind: 'tool_call', id: `call_${i}`, name: 'read', arguments: `{"path": "src/file-${i}.ts"}` },
  { kind: 'tool_result', callId: `call_${i}`, content: `${i} `.repeat(400) },
  { kind: 'note', tail: 'ephemeral', label: 'plan', content: `now at ${i}` },
]

function placed(bodies: readonly EventBody[], from: number): SessionEvent[] {
  return bodies.map((body, i) => ({
    ...{ body, sources: [`src_${(from + i) % 7}`], id: `evt_${from + i}`, session: 'ses_b', tenant: 't' },
    ...{ position: from + i, at: 0, digest: '', previous: '' },
  }))
}

function logOf(events: number): SessionEvent[] {
  const bodies: EventBody[] = [
    {
      kind: 'head',
      apply: 'boundary',
      system: 'You are careful. '.repeat(200),
      tools: [{ name: 'read', json: '{"name":"read"}' }],
    },
    { kind: 'memory', label: 'persona', value: 'calm' },
  ]
  for (let i = 0; bodies.length < events; i++) {
    if (bodies.length === 50) {
      const summary = {
        step: 'summary',
        to: 40,
        text: 'what was',
        generation: 1,
        added: [],
        requests: ['do it'],
      } as const
      bodies.push({ kind: 'compaction', trigger: 'pressure', steps: [summary], charsBefore: 2, charsAfter: 1 })
    }
    bodies.push({ kind: 'user', content: `request ${i}` }, ...step(i))
  }
  return placed(bodies.slice(0, events), 1)
}

const logs = SIZES.map(logOf)
const times: number[][] = SIZES.map(() => [])
const scratch: number[][] = SIZES.map(() => [])

for (let round = -Math.ceil(rounds / 10); round < rounds; round++) {
  for (const [i, log] of logs.entries()) {
    // What grew for some rounds begins anew, so that a size stays what it is called.
    const compiler = createIncrementalCompiler()
    compiler.append(log)
    compiler.compile(POLICY)
    for (let more = 0; more < 5; more++) {
      const events = placed(step(1_000_000 + round * 5 + more), log.length + 1 + more * 4)
      const begun = process.hrtime.bigint()
      compiler.append(events)
      compiler.compile(POLICY)
      const took = Number(process.hrtime.bigint() - begun) / 1000
      if (round >= 0) times[i]!.push(took)
    }
    if (round < 0 || round % 20 !== 0) continue
    const begun = process.hrtime.bigint()
    compileContext(log, POLICY, CURRENT_COMPILER)
    scratch[i]!.push(Number(process.hrtime.bigint() - begun) / 1000)
  }
}

const middle = (values: readonly number[]) =>
  [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN
const us = (value: number) => Math.round(value * 10) / 10
const out = SIZES.map((events, i) => ({ events, appendUs: us(middle(times[i]!)), scratchUs: us(middle(scratch[i]!)) }))
for (const { events, appendUs, scratchUs } of out) {
  process.stdout.write(
    `${String(events).padStart(6)} events: ${appendUs} us after an append, ${scratchUs} us from scratch\n`,
  )
}
const ratio = Math.round((middle(times[1]!) / middle(times[0]!)) * 100) / 100
process.stdout.write(`${JSON.stringify({ bench: 'compile', rounds, sizes: out, ratio2000To200: ratio })}\n`)
