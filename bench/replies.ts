// Does the prefix stay put, whatever a client does to the answers that it sends back, and what does that cost?
//
// Method: conversations of tau-airline through each wire API against the scripted engine, which gives each answer of the
// file in one- and two-byte tokens (its tokenizer makes three-byte ones); the client sends answers back with every
// combination of the rewrites of src/testing/agent-client.ts, one conversation each; then with a billing header that changes
// on every request, a system message every third turn, and 300 tokens of reasoning under each retention policy. Counted is
// reused / the most that could have been: all of the last prompt and its answer but the last token, in whole blocks of 64
// (of the last user turn's first prompt, where the policy drops reasoning). Peer: the same without kept replies.
// Cost: one turn's search for the kept replies and their splicing, without the tokenizer, of 40 KB and of 400 KB.
// Goal: 0.98 in every combination. Arguments: --every N (combinations) --sessions N

import { parseArgs } from 'node:util'
import { scriptedTemplate } from '../src/backend/scripted-template.js'
import { createScriptedTokenizer } from '../src/backend/scripted-tokenizer.js'
import type { ChatMessage } from '../src/core/request.js'
import { splice } from '../src/prompt/splice.js'
import { recall } from '../src/session/recall.js'
import { createMemoryReplies } from '../src/session/replies.js'
import { callKey, canonical, replyId } from '../src/session/transcript.js'
import {
  openAgentHouse,
  rewrites,
  type Speech,
  speeches,
  type Talk,
  type Turn,
  talk,
} from '../src/testing/agent-client.js'
import { hasTauAirline, tauAirline, thoughtOf } from '../src/testing/tau-airline.js'

const { values } = parseArgs({
  options: { every: { type: 'string', default: '1' }, sessions: { type: 'string', default: '40' } },
})
if (!hasTauAirline) {
  process.stderr.write('replies needs ../shared/data/tau-airline, which is absent\n')
  process.exit(2)
}
const every = Number(values.every)
const count = Number(values.sessions)
const all = rewrites()
const [exact] = all as [Talk['rewrite']]

interface Counted {
  readonly conversations: number
  readonly requests: number
  readonly worst: number
  readonly mean: number
}

async function measure(
  how: { readonly options?: object; readonly flags?: object },
  runs: readonly (Omit<Talk, 'speech'> & { readonly speech: Speech; readonly lines: Parameters<typeof talk>[1] })[],
): Promise<Counted> {
  const house = await openAgentHouse({ ...how.options }, { ...how.flags })
  let [worst, hits, ideal, requests] = [1, 0, 0, 0]
  for (const { lines, ...options } of runs) {
    const talked = await talk(house, lines, options)
    worst = Math.min(worst, talked.hits / talked.ideal)
    hits += talked.hits
    ideal += talked.ideal
    requests += talked.requests
  }
  await house.close()
  return { conversations: runs.length, requests, worst: rounded(worst), mean: rounded(hits / ideal) }
}

const rounded = (value: number) => Math.round(value * 10_000) / 10_000

const withHeader = (history: readonly Turn[], n: number): readonly Turn[] =>
  history.map((turn, i) =>
    i === 0 ? { role: 'system', content: `x-anthropic-billing-header: cch=${n}5ee5;\n${turn.content}` } : turn,
  )

function withNudges(lines: ReturnType<typeof tauAirline>[number]): typeof lines {
  return lines.flatMap((line, i) =>
    i > 0 && i % 6 === 1
      ? [line, { role: 'system', content: `<total>${200_000 - i} tokens left</total>` } as const]
      : [line],
  )
}

async function ofSpeech(name: string, speech: Speech): Promise<Record<string, Counted>> {
  const sessions = tauAirline(count, thoughtOf(40))
  const long = tauAirline(count, thoughtOf(300))
  const plain = { speech, rewrite: exact, shown: 'all' } as const
  const chosen = all.filter((_, i) => i % every === 0)
  const result: Record<string, Counted> = {}
  const add = async (what: string, ...[how, runs]: Parameters<typeof measure>) => {
    result[what] = await measure(how, runs)
    process.stderr.write(`${name}, ${what}: ${JSON.stringify(result[what])}\n`)
  }
  const combined = chosen.map((rewrite, i) => ({ ...plain, rewrite, lines: sessions[i % sessions.length]! }))
  await add('every combination', {}, combined)
  const some = combined.slice(0, 20)
  await add('without kept replies', { flags: { 'replies.memoryBytes': 0 } }, some)
  await add(
    'billing header',
    {},
    some.map((run) => ({ ...run, sent: withHeader })),
  )
  await add(
    'system messages',
    {},
    some.map((run) => ({ ...run, lines: withNudges([...run.lines]) })),
  )
  for (const [retention, shown] of [
    ['as-sent', 'all'],
    ['drop-at-user-turn', 'since-user'],
    ['keep-with-tools', 'all'],
  ] as const) {
    const runs = some.map((run, i) => ({ ...run, shown, lines: long[i % long.length]! }))
    await add(`300 tokens of reasoning, ${retention}`, { options: { retention } }, runs)
  }
  return result
}

/** Milliseconds of finding and splicing a conversation's replies, p50. */
async function cost(
  bytes: number,
): Promise<{ readonly recall: number; readonly splice: number; readonly replies: number }> {
  const scope = { tenantSalt: 't', model: 'm' }
  const store = createMemoryReplies({ memoryBytes: 1e8 })
  const { template, end, specials } = scriptedTemplate({ template: 'chatml', end: '', specials: [] })
  const tokenizer = createScriptedTokenizer({ end, specials })
  const options = { store, scope, fillReasoning: true, continueFinal: false }
  const opening = '<|im_start|>assistant\n'
  const messages: ChatMessage[] = [{ role: 'system', content: 'You are an agent. '.repeat(400) }]
  let [size, i] = [0, 0]
  while (size < bytes) {
    messages.push({ role: i === 0 ? 'user' : 'tool', content: `const value${i} = await read(path, ${i})\n`.repeat(35) })
    const toolCalls = [{ id: `call_${i}`, name: 'read', arguments: `{"path": "/src/${i}.ts",  "limit": 20.0}` }]
    const message = { content: `I look at file ${i}.\n\n`, reasoning: `Let me see ${i}. `.repeat(10), toolCalls }
    const { transcript, after } = await recall(messages, options)
    const ids = tokenizer.encode(`${message.reasoning}${message.content}`, { special: 'text', bos: 'none' })
    const said = { role: 'assistant', ...message } as const
    store.keep({
      ...{
        tenant: 't',
        transcript: transcript.add(said).key,
        call: callKey(scope, `call_${i}`, canonical(said)),
        after,
      },
      reply: { id: replyId(opening, ids), opening, ids, rest: '', message },
    })
    messages.push({ ...said, content: said.content.trim() })
    size = messages.reduce((sum, { content }) => sum + content.length, 0)
    i++
  }
  const times = { recall: [] as number[], splice: [] as number[] }
  let replies = 0
  for (let run = 0; run < 60; run++) {
    // As each request's body gives them: strings of its own.
    const sent = JSON.parse(JSON.stringify(messages)) as ChatMessage[]
    const started = performance.now()
    const recalled = await recall(sent, options)
    const found = performance.now()
    const rendered = template.render(recalled.messages, { tools: [], addGenerationPrompt: true })
    const ready = performance.now()
    const pieces = splice(rendered, { ...recalled, beyondTemplate: true, tokenizer })
    times.recall.push(found - started)
    times.splice.push(performance.now() - ready)
    replies = pieces.filter(({ kind }) => kind === 'ids').length
  }
  const p50 = (list: number[]) => rounded(list.sort((a, b) => a - b)[list.length >> 1] as number)
  return { recall: p50(times.recall), splice: p50(times.splice), replies }
}

const turnMs = { '40 KB': await cost(40_000), '400 KB': await cost(400_000) }
process.stderr.write(`${JSON.stringify(turnMs)}\n`)
const results: Record<string, object> = {}
for (const [name, speech] of Object.entries(speeches)) results[name] = await ofSpeech(name, speech)
process.stdout.write(`${JSON.stringify({ bench: 'replies', goal: 0.98, turnMs, results })}\n`)
