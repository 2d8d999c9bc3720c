// How much is computed twice, and how long does it take, when agents send growing histories four at a time?
//
// Method: the first 8 sessions of tau-airline, 12 turns of each, 24 tokens generated a turn; Refrain cold, again warm,
// again after a restart (SIGTERM), again after kill -9, with the cache off, and llama-server (-np 4, its defaults, two
// threads), one after another in one run. Ceiling: what an unbounded cache of 64-token blocks computes when the requests
// come one after another. Arguments: --sessions N --turns N --only cold,warm,... --model FILE.gguf --peer FOLDER_OF_LLAMA_SERVER --out FILE.json

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { pulledSmolLm2 } from '../src/testing/imported-model.js'
import { type Answer, ask, inLanes, percentile } from './workload/client.js'
import { llamaFolder, type Server, startLlama, startRefrain } from './workload/servers.js'
import { type Turn, tauSessions } from './workload/tau.js'

const { values } = parseArgs({
  options: {
    sessions: { type: 'string', default: '8' },
    turns: { type: 'string', default: '12' },
    only: { type: 'string', default: 'cold,warm,restart,kill,off,llama' },
    model: { type: 'string', default: pulledSmolLm2() ?? '' },
    peer: { type: 'string', default: llamaFolder() ?? '' },
    out: { type: 'string', default: '' },
  },
})
const LANES = 4
const MAX_TOKENS = 24
const only = new Set(values.only.split(','))

const sessions = tauSessions(Number(values.sessions), Number(values.turns))
if (sessions === undefined) {
  process.stderr.write('agent-sessions needs ../shared/data/tau-airline, which is absent\n')
  process.exit(2)
}

interface Report {
  readonly requests: number
  readonly promptTokens: number
  readonly working: number
  readonly memory: number
  readonly disk: number
  readonly computed: number
  readonly computedPerRequest: number
  readonly ttftP50Ms: number
  readonly ttftP95Ms: number
  readonly wallS: number
  readonly ideal?: number
  readonly computedToIdeal?: number
}

async function drive(name: string, server: Server, ideal: number | undefined): Promise<Report> {
  const answers: Answer[] = []
  const lists = (sessions as Turn[][]).map((turns, session) => turns.map((messages) => ({ messages, session })))
  const total = lists.flat().length
  const started = performance.now()
  await inLanes(lists, LANES, async ({ messages, session }) => {
    answers.push(await ask({ url: server.url, messages, maxTokens: MAX_TOKENS, session: `s${session}` }))
    process.stderr.write(`\r${name}: ${answers.length}/${total}  `)
  })
  const sum = (of: (answer: Answer) => number) => answers.reduce((all, answer) => all + of(answer), 0)
  const computed = sum((answer) => answer.computed)
  const ttfts = answers.map(({ ttftMs }) => ttftMs)
  const report: Report = {
    requests: total,
    promptTokens: sum((answer) => answer.promptTokens),
    working: sum((answer) => answer.working),
    memory: sum((answer) => answer.memory),
    disk: sum((answer) => answer.disk),
    computed,
    computedPerRequest: Math.round(computed / total),
    ttftP50Ms: Math.round(percentile(ttfts, 50)),
    ttftP95Ms: Math.round(percentile(ttfts, 95)),
    wallS: Number(((performance.now() - started) / 1000).toFixed(1)),
    ...(ideal !== undefined && { ideal, computedToIdeal: Number((computed / ideal).toFixed(3)) }),
  }
  process.stderr.write(`\r${name}: ${JSON.stringify(report)}\n`)
  return report
}

/** Tokens that an unbounded cache of 64-token blocks computes, one request after another; counted on the server's ids. */
async function idealOf(server: Server): Promise<number> {
  const seen = new Set<string>()
  let computed = 0
  for (const messages of (sessions as Turn[][]).flat()) {
    const response = await fetch(`${server.url}/v1/tokenize`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ messages }),
    })
    const { tokens } = (await response.json()) as { tokens: number[] }
    let shared = 0
    let prefix = ''
    for (let end = 64; end <= tokens.length; end += 64) {
      prefix += `,${tokens.slice(end - 64, end).join()}`
      if (seen.has(prefix) && shared === end - 64 && end < tokens.length) shared = end
      seen.add(prefix)
    }
    computed += tokens.length - shared
  }
  return computed
}

const results: Record<string, Report> = {}

async function drivePeer(): Promise<void> {
  if (values.model === '' || values.peer === '') {
    process.stderr.write('no weights or no llama-server: its run is left out\n')
    return
  }
  const server = await startLlama({ folder: values.peer, model: values.model, args: ['-np', String(LANES), '-t', '2'] })
  results['llama'] = await drive('llama', server, undefined)
  await server.stop()
}

const data = mkdtempSync(join(tmpdir(), 'refrain-bench-'))
const refrainArgs = ['--data-dir', data, '--log-level', 'warn']
try {
  if (['cold', 'warm', 'restart', 'kill'].some((name) => only.has(name))) {
    let server = await startRefrain(refrainArgs)
    const ideal = await idealOf(server)
    results['cold'] = await drive('cold', server, ideal)
    if (only.has('warm')) results['warm'] = await drive('warm', server, undefined)
    await server.stop('SIGTERM')
    if (only.has('restart')) {
      server = await startRefrain(refrainArgs)
      results['restart'] = await drive('restart', server, undefined)
      await server.stop('SIGKILL')
    }
    if (only.has('kill')) {
      server = await startRefrain(refrainArgs)
      results['kill'] = await drive('kill', server, undefined)
      await server.stop('SIGTERM')
    }
  }
  if (only.has('off')) {
    const server = await startRefrain(refrainArgs, { REFRAIN_CACHE__ENABLED: 'false' })
    results['off'] = await drive('off', server, undefined)
    await server.stop()
  }
  if (only.has('llama')) await drivePeer()
} finally {
  rmSync(data, { recursive: true, force: true })
}
const { cold, llama } = results
const ratio = cold && llama ? { wallToLlama: Number((cold.wallS / llama.wallS).toFixed(3)) } : {}
const text = JSON.stringify({ bench: 'agent-sessions', ...ratio, ...results })
if (values.out !== '') writeFileSync(values.out, `${text}\n`)
process.stdout.write(`${text}\n`)
