// What does a session of 4,000 tokens wait for when it comes back after a restart, against its first time?
//
// Method: one server, one cold request of about 4,000 tokens, streamed, one token generated; SIGTERM; a new server on the
// same data folder; the same request. The prefix comes from disk, what is left is computed. Three rounds with different
// text; medians. Ceiling: reading 92 MB of blocks, and the partial last block. Argument: --rounds N

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { type Answer, ask, percentile } from './workload/client.js'
import { startRefrain } from './workload/servers.js'

const { values } = parseArgs({ options: { rounds: { type: 'string', default: '3' } } })
const TOKENS = 4000

/** About `TOKENS` tokens of text that no other round has. */
function sessionOf(round: number): readonly unknown[] {
  const words = Array.from({ length: 505 }, (_, i) => `step ${(i * 7919 + round * 104_729) % 9973} done;`)
  return [{ role: 'user', content: `Round ${round}. ${words.join(' ')}` }]
}

const pairs: { cold: Answer; back: Answer }[] = []
for (let round = 0; round < Number(values.rounds); round++) {
  const data = mkdtempSync(join(tmpdir(), 'refrain-return-'))
  const args = ['--data-dir', data, '--log-level', 'warn']
  try {
    const first = await startRefrain(args)
    // The graphs' first runs allocate: warm-up apart.
    await ask({ url: first.url, messages: [{ role: 'user', content: 'Hello' }], maxTokens: 2 })
    const cold = await ask({ url: first.url, messages: sessionOf(round), maxTokens: 2 })
    await first.stop('SIGTERM')
    const second = await startRefrain(args)
    await ask({ url: second.url, messages: [{ role: 'user', content: 'Good morning' }], maxTokens: 2 })
    const back = await ask({ url: second.url, messages: sessionOf(round), maxTokens: 2 })
    await second.stop('SIGTERM')
    pairs.push({ cold, back })
    const show = (answer: Answer) => `${answer.ttftMs.toFixed(0)} ms (disk ${answer.disk}, computed ${answer.computed})`
    process.stderr.write(`round ${round}: ${cold.promptTokens} tokens, cold ${show(cold)}, back ${show(back)}\n`)
  } finally {
    rmSync(data, { recursive: true, force: true })
  }
}
const median = (of: (pair: (typeof pairs)[number]) => number) => percentile(pairs.map(of), 50)
const result = {
  bench: 'return',
  rounds: pairs.length,
  promptTokens: median(({ cold }) => cold.promptTokens),
  target: TOKENS,
  coldTtftMs: Math.round(median(({ cold }) => cold.ttftMs)),
  backTtftMs: Math.round(median(({ back }) => back.ttftMs)),
  backToCold: Number(median(({ cold, back }) => back.ttftMs / cold.ttftMs).toFixed(3)),
  computed: median(({ back }) => back.computed),
}
process.stdout.write(`${JSON.stringify(result)}\n`)
