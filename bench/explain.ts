// What does explaining cost a request, for a turn of 40 KB?
//
// Method: an agent's conversation of 40 KB (system text, 12 tools, calls with results) grows by a call and its result of 1 KB
// a turn; its prompts are rendered, tokenized and hashed beforehand. Timed is what explain adds, one session after another:
// `path`, which the request waits for (a comparison), and `behind`, which is made when the event loop is free (digests,
// places, reasons). Turns that add, first turns, and turns whose system text has a clock apart; the cost for each of 100
// events, with explain and without. Goal: path + behind of an added turn <= 30 us. Ceiling: a digest of what is new.
// Run: npm run bench -- explain [sessions]

import { scriptedTemplate } from '../src/backend/scripted-template.js'
import { createScriptedTokenizer } from '../src/backend/scripted-tokenizer.js'
import { createChainMemo, makeRoot } from '../src/cache/chain.js'
import { systemClock } from '../src/core/clock.js'
import type { GenerateEvent } from '../src/core/events.js'
import type { ChatMessage, GenerateRequest } from '../src/core/request.js'
import type { TurnFacts } from '../src/explain/contract.js'
import { createExplainer } from '../src/explain/explainer.js'
import { seeded } from '../src/testing/random.js'

const sessions = Number(process.argv[2] ?? 400)
const TURNS = 12
const random = seeded(1)
const code = (chars: number): string => {
  let text = ''
  while (text.length < chars)
    text += `const value${random.below(1e6)} = await cache.read(block, ${random.below(1e6)}) // <${random.below(99)}>\n`
  return text.slice(0, chars)
}

const tools = Array.from({ length: 12 }, (_, i) => ({
  name: `tool_${i}`,
  json: JSON.stringify({
    type: 'function',
    function: { name: `tool_${i}`, description: code(300), parameters: { type: 'object' } },
  }),
}))

const step = (i: number): ChatMessage[] => [
  {
    role: 'assistant',
    content: code(120),
    toolCalls: [{ id: `call_${i}`, name: 'tool_1', arguments: '{"path":"a"}' }],
  },
  { role: 'tool', content: code(1000), toolCallId: `call_${i}` },
]

const { template, end, specials } = scriptedTemplate({ template: 'chatml', end: '', specials: [] })
const tokenizer = createScriptedTokenizer({ end, specials })
const chainOf = createChainMemo(32 * 1024 * 1024)
const layout = { layers: 1, kvHeads: 1, headDim: 1, dtype: 'fp16' } as const
const root = makeRoot({
  weightsDigest: 'b',
  tokenizerDigest: 'b',
  layout,
  rounding: 'none',
  arithmetic: 'bench',
  tenantSalt: 'default',
})

function factsOf(messages: readonly ChatMessage[]): TurnFacts {
  const rendered = template.render(messages, { tools, addGenerationPrompt: true })
  const tokens = tokenizer.encode(rendered.text, { special: 'parse', bos: 'none' })
  const request: GenerateRequest = {
    id: '',
    model: 'bench',
    tenant: { name: 'default', salt: 'default', admin: true },
    prompt: { kind: 'chat', messages, tools },
    sampling: {
      temperature: 0,
      topP: 1,
      topK: 0,
      minP: 0,
      repetitionPenalty: 1,
      presencePenalty: 0,
      frequencyPenalty: 0,
      logitBias: {},
    },
    ...{ stop: [], stopTokenIds: [], ignoreEos: false, n: 1, echo: false, priority: 'interactive' },
  }
  return {
    request,
    model: 'bench',
    backend: 'bench',
    tokenizer,
    template,
    rendered,
    tokens,
    chain: chainOf(root, tokens),
  }
}

function conversation(clock: boolean): TurnFacts[] {
  const body: ChatMessage[] = [{ role: 'user', content: code(400) }]
  for (let i = 0; JSON.stringify(body).length < 22_000; i++) body.push(...step(i))
  const system = code(4000)
  return Array.from({ length: TURNS }, (_, turn) => {
    body.push(...step(1000 + turn))
    const now = clock ? `It is 08:${String(turn + 10)}.` : 'Be brief.'
    return factsOf([{ role: 'system', content: `${now} ${system}` }, ...body])
  })
}

async function* events(promptTokens: number, computed: number, count: number): AsyncGenerator<GenerateEvent> {
  const cache = { working: 0, memory: promptTokens - computed, disk: 0, computed }
  yield { type: 'start', promptTokens, cache, committedTokens: computed }
  for (let i = 0; i < count; i++) yield { type: 'token', choice: 0, ids: [1], text: 'a' }
  yield { type: 'end', choice: 0, reason: 'stop' }
  yield { type: 'finish', promptTokens, completionTokens: count, cache, committedTokens: computed }
}

const median = (numbers: readonly number[]): number =>
  [...numbers].sort((a, b) => a - b)[numbers.length >> 1] ?? Number.NaN
const micros = (ms: number): number => Number((ms * 1000).toFixed(1))

async function drain(all: AsyncIterable<GenerateEvent>): Promise<number> {
  const at = performance.now()
  for await (const event of all) if (event.type === 'finish') break
  return performance.now() - at
}

async function measure(clock: boolean, count: number) {
  const explainer = createExplainer(
    { turns: 64, sessions: 1000, memoryBytes: 64 * 1024 * 1024, keepText: false },
    { clock: systemClock },
  )
  const turns = conversation(clock)
  const times = {
    first: { path: [] as number[], behind: [] as number[] },
    next: { path: [] as number[], behind: [] as number[] },
  }
  for (let session = 0; session < count; session++) {
    for (const [i, facts] of turns.entries()) {
      const request = { ...facts.request, id: `${session}-${i}`, session: `s${session}` }
      const tokens = facts.tokens.length
      const begun = performance.now()
      const watch = explainer.record({ ...facts, request })
      const recorded = performance.now()
      if (watch === undefined) throw new Error('explain is off')
      await drain(watch(events(tokens, i === 0 || clock ? tokens : 400, 0)))
      const told = performance.now()
      explainer.flush()
      const kind = i === 0 ? times.first : times.next
      kind.path.push(recorded - begun)
      kind.behind.push(performance.now() - told)
    }
  }
  const sizes = turns.map(({ rendered }) => Buffer.byteLength(rendered?.text ?? ''))
  explainer.close()
  const told = ({ path, behind }: typeof times.first) => ({
    path: micros(median(path)),
    behind: micros(median(behind)),
  })
  return { kilobytes: Math.round(median(sizes) / 1000), first: told(times.first), next: told(times.next) }
}

/** For each event of a stream of 100, in microseconds. */
async function measureEvents(count: number) {
  const explainer = createExplainer(
    { turns: 64, sessions: 10, memoryBytes: 1e8, keepText: false },
    { clock: systemClock },
  )
  const [facts] = conversation(false) as [TurnFacts]
  const [plain, watched]: [number[], number[]] = [[], []]
  for (let i = 0; i < count; i++) {
    const request = { ...facts.request, id: `e-${i}`, session: 'events' }
    const watch = explainer.record({ ...facts, request })
    if (watch === undefined) throw new Error('explain is off')
    watched.push(await drain(watch(events(facts.tokens.length, 400, 100))))
    plain.push(await drain(events(facts.tokens.length, 400, 100)))
  }
  explainer.close()
  return { plain: micros(median(plain) / 100), watched: micros(median(watched) / 100) }
}

await measure(false, 100)
await measure(true, 20)
const added = await measure(false, sessions)
const clock = await measure(true, Math.ceil(sessions / 10))
const perEvent = await measureEvents(sessions)
const total = Number((added.next.path + added.next.behind).toFixed(1))
process.stderr.write(
  `added: ${JSON.stringify(added)}\nclock: ${JSON.stringify(clock)}\nevents: ${JSON.stringify(perEvent)}\n`,
)
process.stdout.write(
  `${JSON.stringify({ bench: 'explain', sessions, goal: { microseconds: 30 }, added, clock, perEvent, addedMicroseconds: total, ok: total <= 30 })}\n`,
)
