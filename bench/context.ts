// What does each way of keeping a context short cost, when a session of the textbook case really sends its 50 requests?
// Ceiling: the textbook's arithmetic, 2.95M tokens of input for a head of 10,000 tokens that grows by 2,000 a step.
//
//   npm run bench -- context [--steps N] [--only append-only,summary] [--no-traces]
//
// Method: (i) one server a way, on the scripted engine, asked over HTTP by the client package; answers are a sentence and a call
// of a tool, results are of such a length that each step adds 2,000 tokens; all figures are of the answers' usage, those of
// summaries' own requests of the turns that the server explains. Prices of a token of input: 0.1 read from the cache,
// 1.25 computed and kept, 1 where there is no cache. Ways that shorten under pressure have a window of 64,000 tokens (80 % of it is
// the trigger), the others one that holds everything. At the end each turn is compiled and rendered again and compared with
// what was sent; then eight forks ask eight things at once on a cold cache, against one that does. (ii) recorded
// conversations under the same ways: bench/context-strategies.ts, run as it is; what was lost is told there.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { Refrain, RefrainError, type Reply, type Session, type Usage } from '../src/client/index.js'
import type { Program } from '../src/compose.js'
import { SECTIONS } from '../src/session/compaction/check.js'
import { PRICES } from '../src/testing/context-play.js'
import { scriptedProgram } from '../src/testing/scripted-program.js'

const { values } = parseArgs({
  options: {
    steps: { type: 'string', default: '50' },
    only: { type: 'string', default: '' },
    'no-traces': { type: 'boolean', default: false },
  },
})
const STEPS = Number(values.steps)
const [HEAD, STEP] = [10_000, 2000]
const [WIDE, NARROW] = [200_000, 64_000]
const BLOCK = 64
/** Bytes of the scripted tokenizer's tokens. */
const TOKEN = 3

interface Way {
  readonly name: string
  readonly window: number
  /** Blocks of the cache; 0: none. */
  readonly cacheBlocks: number
  readonly lifecycle: object
  /** Before each request but the first. */
  readonly before?: (session: Session, step: number) => Promise<void>
}

const shortening = (strategy: string): Way => ({
  name: strategy,
  window: NARROW,
  cacheBlocks: 65_536,
  lifecycle: { steps: [], strategy },
})
const growing = { window: WIDE, cacheBlocks: 65_536, lifecycle: {} }

const WAYS: readonly Way[] = [
  { name: 'append-only', ...growing },
  { name: 'pruned in place each step', ...growing, before: pruned },
  shortening('summary'),
  shortening('discard-75'),
  shortening('discard-all'),
  { name: 'prefix broken each step', ...growing, before: broken },
  { name: 'no cache', ...growing, cacheBlocks: 0 },
]

async function pruned(session: Session): Promise<void> {
  try {
    await session.compact({ strategy: 'micro' })
  } catch (error) {
    // The latest three results stay: before there are more, nothing would be shorter.
    if (!(error instanceof RefrainError) || error.code !== 'compaction_rejected') throw error
  }
}

/** A clock in front of the system text. */
async function broken(session: Session, step: number): Promise<void> {
  const system = `It is ${String(step).padStart(4, '0')} o'clock. ${sizes.system}`
  await session.append([{ type: 'head', apply: 'now', system }])
}

const TOOLS = [
  {
    type: 'function',
    function: { name: 'read', parameters: { type: 'object', properties: { path: { type: 'string' } } } },
  },
] as const
const SUMMARY = SECTIONS.map((section) => `## ${section}\nnone`).join('\n')

/** A text of so many bytes that is like no other. */
function filler(bytes: number, seed: string): string {
  return `${seed} `.repeat(Math.ceil(bytes / (seed.length + 1))).slice(0, bytes)
}

/** Texts that make the head and a step as long as they are to be; set by `calibrate`. */
const sizes = { system: filler(HEAD * TOKEN, 'rule'), resultBytes: STEP * TOKEN }

interface House {
  readonly program: Program
  readonly refrain: Refrain
  readonly url: string
}

async function house({ window, cacheBlocks, lifecycle }: Omit<Way, 'name'>, folder: string): Promise<House> {
  let calls = 0
  const program = await scriptedProgram(
    {
      'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think', cacheBlocks },
      'model.contextLength': window,
      'sessions.log.durability': 'process',
      'sessions.lifecycle': lifecycle,
      'explain.turns': 1000,
      dataDir: folder,
    },
    {
      script: ({ request }) => {
        if (request.requestClass === 'compaction') return SUMMARY
        const call = `{"name": "read", "arguments": {"path": "src/f${String(calls++).padStart(3, '0')}.ts"}}`
        return `${filler(270, 'step')}\n<tool_call>\n${call}\n</tool_call>`
      },
    },
  )
  const url = await program.start()
  return { program, refrain: new Refrain({ baseUrl: url }), url }
}

/** The step's results are logged first, so that they are there when something is done before the request. */
async function run({ refrain }: House, steps: number, before?: Way['before']): Promise<[Session, Reply[]]> {
  const session = await refrain.sessions.create({ system: sizes.system, tools: TOOLS })
  const replies: Reply[] = []
  for (let step = 0; step < steps; step++) {
    const call = replies.at(-1)?.tool_calls[0]
    if (call === undefined) await session.append([{ type: 'user', content: 'Read all of it, please, and go on.' }])
    else {
      const content = filler(sizes.resultBytes, `result${String(step).padStart(4, '0')}`)
      await session.append([{ type: 'tool_result', call_id: call.id, content }])
      await before?.(session, step)
    }
    replies.push(await session.chat([], { temperature: 0 }))
  }
  return [session, replies]
}

/** What a first prompt and a step have beside the fillers is counted by two requests, and taken off them. */
async function calibrate(folder: string): Promise<void> {
  const own = await house(growing, folder)
  const [, [first, second]] = await run(own, 2)
  await own.program.stop(0)
  const [head, next] = [first?.usage.prompt_tokens ?? 0, second?.usage.prompt_tokens ?? 0]
  sizes.system = sizes.system.slice(0, sizes.system.length - (head - HEAD) * TOKEN)
  sizes.resultBytes -= (next - head - STEP) * TOKEN
}

interface Figures {
  readonly way: string
  /** Of all requests, those for summaries included. */
  readonly inputTokens: number
  readonly computedTokens: number
  readonly cachedTokens: number
  readonly hitRate: number
  readonly cost: number
  readonly summaries: number
  readonly boundaries: number
  readonly lastPrompt: number
  /** Of the turns, those that compile and render to what was sent, byte for byte. */
  readonly replayed: string
}

async function figuresOf(way: Way, session: Session, replies: readonly Reply[]): Promise<Figures> {
  const own = replies.map(({ usage }) => ({ tokens: usage.prompt_tokens, cached: cachedOf(usage) }))
  const side = (await session.turns())
    .filter((turn) => turn.class === 'compaction')
    .map(({ prompt_tokens: tokens, cache }) => ({ tokens, cached: tokens - (cache?.computed ?? 0) }))
  const all = [...own, ...side]
  const inputTokens = all.reduce((sum, { tokens }) => sum + tokens, 0)
  const cachedTokens = all.reduce((sum, { cached }) => sum + cached, 0)
  const computedTokens = inputTokens - cachedTokens
  let boundaries = 0
  for await (const event of session.events())
    if (event.type === 'compaction' || (event.type === 'head' && event.position > 1)) boundaries++
  let matching = 0
  for (let turn = 1; turn <= replies.length; turn++) if ((await session.context(turn)).matches === true) matching++
  return {
    ...{ way: way.name, inputTokens, computedTokens, cachedTokens, hitRate: round(cachedTokens / inputTokens, 3) },
    cost: Math.round(
      computedTokens * (way.cacheBlocks === 0 ? PRICES.plain : PRICES.write) + cachedTokens * PRICES.read,
    ),
    ...{ summaries: side.length, boundaries, lastPrompt: replies.at(-1)?.usage.prompt_tokens ?? 0 },
    replayed: `${matching}/${replies.length}`,
  }
}

const cachedOf = (usage: Usage) => usage.prompt_tokens_details.cached_tokens
const round = (value: number, digits: number) => Number(value.toFixed(digits))

/** Full blocks that eight forks, and one session in their place, compute of the same prompt when nothing is cached. */
async function forks({ refrain, url }: House, session: Session): Promise<{ one: number; eight: number }> {
  const made = await session.fork({ n: 9 })
  const ask = async (each: Session | undefined, i = 0) => {
    const reply = await each?.chat(`Way ${i}.`, { temperature: 0 })
    return (reply?.usage.prompt_tokens_details.cache_write_tokens ?? 0) / BLOCK
  }
  const clear = () => fetch(`${url}/v1/cache`, { method: 'DELETE' })
  await clear()
  const one = await ask(made[0])
  await clear()
  const eight = await Promise.all(made.slice(1).map(ask))
  await Promise.all(made.map((each) => refrain.sessions.delete(each.id)))
  return { one, eight: eight.reduce((sum, blocks) => sum + blocks, 0) }
}

const only = values.only.split(',').filter((name) => name !== '')
const folder = mkdtempSync(join(tmpdir(), 'refrain-context-'))
const figures: Figures[] = []
let forked: { one: number; eight: number } | undefined
try {
  await calibrate(join(folder, 'calibration'))
  process.stdout.write(
    '| way | input tokens | computed | hit rate | cost | against append-only | boundaries | summaries | last prompt | turns replayed |\n| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n',
  )
  for (const [i, way] of WAYS.entries()) {
    if (only.length > 0 && !only.includes(way.name)) continue
    const own = await house(way, join(folder, String(i)))
    const [session, replies] = await run(own, STEPS, way.before)
    const each = await figuresOf(way, session, replies)
    if (way.name === 'append-only') forked = await forks(own, session)
    await own.program.stop(0)
    figures.push(each)
    const base = figures[0]?.cost ?? each.cost
    const row = [
      ...[each.way, each.inputTokens, each.computedTokens, `${(each.hitRate * 100).toFixed(1)} %`, each.cost],
      ...[`${(each.cost / base).toFixed(2)}x`, each.boundaries, each.summaries, each.lastPrompt, each.replayed],
    ]
    process.stdout.write(`| ${row.join(' | ')} |\n`)
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
}

/** Recorded conversations, by the bench beside this one. */
function traces(): unknown {
  const script = fileURLToPath(new URL('context-strategies.js', import.meta.url))
  const { status, stdout } = spawnSync(process.execPath, [script], {
    ...{ encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'], maxBuffer: 64 * 2 ** 20 },
  })
  if (status !== 0) throw new Error(`context-strategies ended with ${status}`)
  const lines = stdout.trimEnd().split('\n')
  process.stdout.write(`${lines.slice(0, -1).join('\n')}\n`)
  return (JSON.parse(lines.at(-1) ?? '{}') as { result: unknown }).result
}

const costOf = (name: string) => figures.find(({ way }) => way === name)?.cost
const against = (a: string, b: string) => {
  const [over, under] = [costOf(a), costOf(b)]
  return over === undefined || under === undefined ? undefined : round(over / under, 3)
}
const result = {
  bench: 'context',
  steps: STEPS,
  uncachedToCached: against('no cache', 'append-only'),
  brokenToUncached: against('prefix broken each step', 'no cache'),
  forkIntoEight: forked,
  textbook: figures,
  ...(!values['no-traces'] && { traces: traces() }),
}
process.stdout.write(`${JSON.stringify(result)}\n`)
