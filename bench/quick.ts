// What do six small questions about a conversation cost, asked as one quick call, as six requests, or without any reuse?
//
// Method: for each of `--samples`, a new conversation of about 2,000 tokens is sent once to every server, so that its prefix
// is warm, and then asked: (i) one POST /v1/quick with six tasks; (ii) six chat requests one after another; (iii) six at
// once; (iv) the six one after another to llama-server (two threads, its prompt cache, the same file); (v) the six to
// Refrain without a cache. The same on all sides: suffixes of 12 to 16 tokens, two answers of exactly 16 tokens, four of one.
// Each side has a conversation of its own kind a sample, so that nobody finds another one's suffixes; sides take turns.
// Then the time to the first token of an answer with the six tasks beside it and without: prompt cold, prompt warm.
// Ceiling: the six answers hold 2 x 16 + 4 tokens; a call that computed nothing else would still take 15 decoding steps.
// Processor time beside wall time: on a machine that others use, its ratios move less.
// Goals: wall (i)/(ii) 0.5, (i)/(iv) 0.25, (i)/(v) 0.06; TTFT with/without 1.15 cold, 1.1 warm; 1 pass for four choices.
// Run: npm run bench -- quick [--samples N] [--only i,ii,iii,iv,v,ttft] [--model FILE.gguf] [--peer FOLDER_OF_LLAMA_SERVER]

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { pulledSmolLm2 } from '../src/testing/imported-model.js'
import { seeded } from '../src/testing/random.js'
import { llamaFolder, type Server, startLlama, startRefrain } from './workload/servers.js'

const { values } = parseArgs({
  options: {
    samples: { type: 'string', default: '3' },
    only: { type: 'string', default: 'i,ii,iii,iv,v,ttft' },
    words: { type: 'string', default: '1920' },
    model: { type: 'string', default: pulledSmolLm2() ?? '' },
    peer: { type: 'string', default: llamaFolder() ?? '' },
  },
})
if (values.model === '') {
  process.stderr.write('quick needs weights: refrain pull fetches them, or --model FILE.gguf names them\n')
  process.exit(2)
}
const samples = Number(values.samples)
const only = new Set(values.only.split(','))

interface Task {
  readonly instruction: string
  readonly choices?: readonly string[]
  readonly tokens: number
}

/** Four to eight tokens of words each: with the template's eight, a suffix of 12 to 16. */
const TASKS: readonly Task[] = [
  { instruction: 'Reply search or answer.', choices: ['search', 'answer'], tokens: 1 },
  { instruction: 'Write a title for it.', tokens: 16 },
  { instruction: 'Write a search query.', tokens: 16 },
  { instruction: 'Reply high or low.', choices: ['high', 'low'], tokens: 1 },
  { instruction: 'Reply code or other.', choices: ['code', 'other'], tokens: 1 },
  { instruction: 'Read more? Reply yes or no.', choices: ['yes', 'no'], tokens: 1 },
]

const WORDS =
  'the harbour tide ship sails morning wind chart table north light keeper rope signal water moon rises low'.split(' ')

interface Message {
  readonly role: 'user' | 'assistant'
  readonly content: string
}

/** `words` words of talk in eight messages, the last one the user's; the same for the same seed. */
function conversationOf(seed: number, words: number): Message[] {
  const random = seeded(seed)
  const say = (count: number) => Array.from({ length: count }, () => WORDS[random.below(WORDS.length)]).join(' ')
  return Array.from({ length: 7 }, (_, i) => ({
    role: i % 2 === 0 ? ('user' as const) : ('assistant' as const),
    content: `${seed} ${say(Math.round(words / 7))}`,
  }))
}

interface Outcome {
  readonly wallMs: number
  /** Prompt tokens that were computed. */
  readonly computed: number
  readonly completion: number
  readonly texts: readonly string[]
}

// biome-ignore lint/suspicious/noExplicitAny: answers of other programs
type Json = any

async function post(url: string, path: string, body: object): Promise<Json> {
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  const answer: Json = await response.json()
  if (!response.ok) throw new Error(`${path}: ${response.status} ${JSON.stringify(answer)}`)
  return answer
}

const warm = (server: Server, messages: readonly Message[]) =>
  post(server.url, '/v1/chat/completions', { messages, max_tokens: 1, temperature: 0 })

/** One task as a request of its own. */
async function single(server: Server, messages: readonly Message[], task: Task): Promise<Outcome> {
  const started = performance.now()
  const answer = await post(server.url, '/v1/chat/completions', {
    messages: [...messages, { role: 'user', content: task.instruction }],
    ...{ max_tokens: task.tokens, temperature: 0, ignore_eos: true, cache_prompt: true },
  })
  const { usage, timings } = answer
  return {
    wallMs: performance.now() - started,
    computed: timings?.prompt_n ?? usage.prompt_tokens - (usage.prompt_tokens_details?.cached_tokens ?? 0),
    completion: usage.completion_tokens,
    texts: [answer.choices[0].message.content],
  }
}

const total = (outcomes: readonly Outcome[], wallMs: number): Outcome => ({
  wallMs,
  computed: outcomes.reduce((sum, { computed }) => sum + computed, 0),
  completion: outcomes.reduce((sum, { completion }) => sum + completion, 0),
  texts: outcomes.flatMap(({ texts }) => texts),
})

async function inTurn(server: Server, messages: readonly Message[]): Promise<Outcome> {
  const started = performance.now()
  const outcomes: Outcome[] = []
  for (const task of TASKS) outcomes.push(await single(server, messages, task))
  return total(outcomes, performance.now() - started)
}

async function atOnce(server: Server, messages: readonly Message[]): Promise<Outcome> {
  const started = performance.now()
  const outcomes = await Promise.all(TASKS.map((task) => single(server, messages, task)))
  return total(outcomes, performance.now() - started)
}

const quickTasks = (tasks: readonly Task[]) =>
  tasks.map(({ instruction, choices, tokens }) => ({
    ...{ task: 'custom', instruction },
    ...(choices ? { choices } : { max_tokens: tokens, ignore_eos: true }),
  }))

async function quickCall(server: Server, messages: readonly Message[], tasks = TASKS): Promise<Outcome> {
  const started = performance.now()
  const { usage, results } = await post(server.url, '/v1/quick', { messages, tasks: quickTasks(tasks) })
  return {
    wallMs: performance.now() - started,
    computed: usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens,
    completion: usage.completion_tokens,
    texts: results.map((result: Json) => result.text ?? result.choice),
  }
}

/** Steps of the engine so far; with one request in it, each is one forward pass. */
async function steps(server: Server): Promise<number> {
  // What the engine's thread says of a step comes with its next turn.
  await sleep(500)
  const text = await (await fetch(`${server.url}/metrics`)).text()
  return Number(/^refrain_step_duration_seconds_count (\d+)/m.exec(text)?.[1] ?? Number.NaN)
}

/** Time of the processor that a server took so far; NaN where the system does not say it so. */
function cpuMs({ pid }: Server): number {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /, '')
      .split(' ')
    return 10 * (Number(fields[11]) + Number(fields[12]))
  } catch {
    return Number.NaN
  }
}

interface First {
  readonly wallMs: number
  readonly cpuMs: number
}

/** Ms to the first piece of an answer of 8 tokens; the stream is read to its end. */
async function firstToken(server: Server, messages: readonly Message[], tasks: readonly Task[]): Promise<First> {
  const started = performance.now()
  const before = cpuMs(server)
  const response = await fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      ...{ messages, max_tokens: 8, temperature: 0, ignore_eos: true, stream: true },
      ...(tasks.length > 0 && { quick: { tasks: quickTasks(tasks), at: 'user' } }),
    }),
  })
  if (!response.ok || response.body === null) throw new Error(`${response.status} ${await response.text()}`)
  let text = ''
  let first: First | undefined
  for await (const bytes of response.body as unknown as AsyncIterable<Uint8Array>) {
    text += Buffer.from(bytes).toString('utf8')
    if (first === undefined && /"delta":\{"content":"[^"]/.test(text)) {
      first = { wallMs: performance.now() - started, cpuMs: cpuMs(server) - before }
    }
  }
  if (tasks.length > 0 && !text.includes('"quick":'))
    throw new Error(`no answers beside the stream: ${text.slice(-500)}`)
  if (first === undefined) throw new Error(`no token came: ${text.slice(-500)}`)
  return first
}

function median(list: readonly number[]): number {
  const sorted = [...list].sort((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}

const folder = mkdtempSync(join(tmpdir(), 'refrain-quick-'))
const servers: Server[] = []
const report: Record<string, unknown> = { bench: 'quick', samples }

async function startOurs(name: string, cache: string): Promise<Server> {
  const config = join(folder, `${name}.yaml`)
  writeFileSync(config, `engine: { threads: 2 }\ncache: { ${cache} }\nlog: { level: warn }\n`)
  // The import is the same for all; the cache is not.
  const server = await startRefrain(['--config', config, '--data-dir', join(folder, 'data'), '--model', values.model])
  servers.push(server)
  return server
}

async function stop(server: Server): Promise<void> {
  await server.stop()
  servers.splice(servers.indexOf(server), 1)
}

/** Runs `sides` in turn on conversations of their own, `warm` first; the median of each. */
async function compare(
  server: Server,
  sides: Readonly<Record<string, (server: Server, messages: readonly Message[]) => Promise<Outcome>>>,
  isWarm: boolean,
): Promise<void> {
  const outcomes = new Map<string, (Outcome & { cpuMs: number })[]>()
  for (let sample = 0; sample < samples; sample++) {
    for (const [i, [name, run]] of Object.entries(sides).entries()) {
      const messages = conversationOf(1000 * (i + 1) + sample, Number(values.words))
      if (isWarm) await warm(server, messages)
      const before = cpuMs(server)
      const outcome = { ...(await run(server, messages)), cpuMs: cpuMs(server) - before }
      outcomes.set(name, [...(outcomes.get(name) ?? []), outcome])
      process.stderr.write(
        `quick: ${name} ${Math.round(outcome.wallMs)} ms, ${outcome.cpuMs} of the processor, ${outcome.computed} computed\n`,
      )
    }
  }
  for (const [name, all] of outcomes) {
    report[name] = {
      wallMs: Math.round(median(all.map(({ wallMs }) => wallMs))),
      cpuMs: Math.round(median(all.map((each) => each.cpuMs))),
      computed: median(all.map(({ computed }) => computed)),
      completion: median(all.map(({ completion }) => completion)),
    }
  }
}

async function firstTokens(server: Server): Promise<void> {
  const times: Record<string, First[]> = { coldPlain: [], coldQuick: [], warmPlain: [], warmQuick: [] }
  const words = Number(values.words)
  const last: Message = { role: 'user', content: 'When is low water at the pier?' }
  for (let sample = 0; sample < samples; sample++) {
    for (const [at, name] of Object.keys(times).entries()) {
      const messages = conversationOf(90_000 + 10 * sample + at, words)
      const isWarm = name.startsWith('warm')
      if (isWarm) await warm(server, messages.slice(0, -1))
      const asked = isWarm ? [...messages.slice(0, -1), last] : messages
      const first = await firstToken(server, asked, name.endsWith('Quick') ? TASKS : [])
      times[name]!.push(first)
      process.stderr.write(`quick: ${name} ${Math.round(first.wallMs)} ms, ${first.cpuMs} of the processor\n`)
    }
  }
  for (const [name, list] of Object.entries(times)) {
    report[`ttft.${name}`] = {
      wallMs: Math.round(median(list.map(({ wallMs }) => wallMs))),
      cpuMs: Math.round(median(list.map((first) => first.cpuMs))),
    }
  }
}

/** Passes of one call with four choice tasks, and whether its answers are those of the same suffixes alone. */
async function onePass(server: Server): Promise<void> {
  const messages = conversationOf(7, Number(values.words))
  await warm(server, messages)
  const before = await steps(server)
  await quickCall(
    server,
    messages,
    TASKS.filter(({ choices }) => choices !== undefined),
  )
  report['passesForChoices'] = (await steps(server)) - before
  const texts = TASKS.filter(({ choices }) => choices === undefined)
  const together = await quickCall(server, messages, texts)
  const apart: string[] = []
  for (const task of texts) apart.push(...(await single(server, messages, task)).texts)
  report['textsEqual'] = together.texts.every((text, i) => text === apart[i]?.trim())
}

try {
  const ours = await startOurs('ours', 'memoryBytes: 2 GiB, diskBytes: 0')
  const opening = conversationOf(1, 300)
  await warm(ours, opening)
  await quickCall(ours, opening)
  const { usage } = await warm(ours, conversationOf(2, Number(values.words)))
  report['promptTokens'] = usage.prompt_tokens
  await onePass(ours)
  const mine = Object.entries({ i: quickCall, ii: inTurn, iii: atOnce } as const).filter(([name]) => only.has(name))
  await compare(ours, Object.fromEntries(mine), true)
  if (only.has('ttft')) await firstTokens(ours)
  await stop(ours)
  if (only.has('iv') && values.peer !== '') {
    const model = values.model
    const llama = await startLlama({
      folder: values.peer,
      model,
      args: ['-t', '2', '-np', '1', '-c', '8192', '--jinja'],
    })
    servers.push(llama)
    await warm(llama, opening)
    await compare(llama, { iv: inTurn }, true)
    await stop(llama)
  }
  if (only.has('v')) {
    const off = await startOurs('off', 'enabled: false')
    await warm(off, opening)
    await compare(off, { v: inTurn }, false)
    await stop(off)
  }
  const wall = (name: string) => (report[name] as { wallMs: number } | undefined)?.wallMs
  const cpu = (name: string) => (report[name] as { cpuMs: number } | undefined)?.cpuMs
  const ratio = (a: number | undefined, b: number | undefined) => a && b && Math.round((1000 * a) / b) / 1000
  report['wallToInTurn'] = ratio(wall('i'), wall('ii'))
  report['wallToAtOnce'] = ratio(wall('i'), wall('iii'))
  report['wallToLlama'] = ratio(wall('i'), wall('iv'))
  report['wallToNoReuse'] = ratio(wall('i'), wall('v'))
  report['cpuToInTurn'] = ratio(cpu('i'), cpu('ii'))
  report['cpuToLlama'] = ratio(cpu('i'), cpu('iv'))
  report['cpuToNoReuse'] = ratio(cpu('i'), cpu('v'))
  for (const [name, state] of [
    ['ttftCold', 'cold'],
    ['ttftWarm', 'warm'],
  ]) {
    report[name!] = ratio(wall(`ttft.${state}Quick`), wall(`ttft.${state}Plain`))
    report[`${name}Cpu`] = ratio(cpu(`ttft.${state}Quick`), cpu(`ttft.${state}Plain`))
  }
  report['loadavg'] = loadavg().map((load) => Math.round(load * 10) / 10)
  for (const [name, value] of Object.entries(report))
    process.stdout.write(`${name.padEnd(18)} ${JSON.stringify(value)}\n`)
  process.stdout.write(`${JSON.stringify(report)}\n`)
} finally {
  for (const server of [...servers]) await server.stop()
  rmSync(folder, { recursive: true, force: true })
}
