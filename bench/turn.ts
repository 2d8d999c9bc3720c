// What does a turn cost before it reaches a backend, when the conversation is long?
//
// Method: an agent's conversation (system text, 12 tools, calls with results of code) of 40 KB and of 400 KB grows by a call
// and its result of 1 KB a turn; in one process and on one thread, each turn's body is decoded, rendered, tokenized and
// hashed as serve.ts does it, each step timed; the first turn apart. Once with the scripted model (ChatML), once with a real
// vocabulary and template: Qwen's, where ../shared/tools/get-templates has put them, or SmolLM2's, where it was pulled.
// Goal: 10 ms p50 at 400 KB, tokenizing at most twice that of 40 KB. Ceiling: the new text's own cost.
// Run: npm run bench -- turn [turns]

import { randomUUID } from 'node:crypto'
import { existsSync, readdirSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { readBody } from '../src/api/body.js'
import { openaiChat } from '../src/api/dialect/openai-chat.js'
import { scriptedTemplate } from '../src/backend/scripted-template.js'
import { createScriptedTokenizer } from '../src/backend/scripted-tokenizer.js'
import { createChainMemo, makeRoot } from '../src/cache/chain.js'
import { Gguf } from '../src/model/gguf.js'
import type { ChatTemplate, Tokenizer } from '../src/prompt/contract.js'
import { buildTokenizerJson, tokenizerTraits } from '../src/prompt/gguf-tokenizer.js'
import { createTemplate } from '../src/prompt/template.js'
import { createTokenizer } from '../src/prompt/tokenizer.js'
import { pulledSmolLm2 } from '../src/testing/imported-model.js'
import { realTemplates } from '../src/testing/real-templates.js'

const SIZES = { '40 KB': 40_000, '400 KB': 400_000 }
const PHASES = ['decode', 'render', 'tokenize', 'hash'] as const
const turns = Number(process.argv[2] ?? 20)

interface Parts {
  readonly name: string
  readonly template: ChatTemplate
  readonly tokenizer: Tokenizer
}

function scriptedParts(): Parts {
  const { template, end, specials } = scriptedTemplate({ template: 'chatml', end: '', specials: [] })
  return { name: 'scripted', template, tokenizer: createScriptedTokenizer({ end, specials }) }
}

async function realParts(): Promise<Parts | undefined> {
  const peers = join(homedir(), '.cache', 'refrain-peers')
  const folder = existsSync(peers) ? readdirSync(peers).find((name) => name.startsWith('llama-models-')) : undefined
  const qwen = folder === undefined ? undefined : join(peers, folder, 'ggml-vocab-qwen2.gguf')
  const path = qwen !== undefined && existsSync(qwen) ? qwen : pulledSmolLm2()
  if (path === undefined) return undefined
  const gguf = await Gguf.open(path)
  const metadata = Object.fromEntries(gguf.metadata)
  await gguf.close()
  const traits = tokenizerTraits(metadata)
  const source = (path === qwen ? realTemplates()?.get('Qwen-Qwen3-0.6B') : undefined) ?? traits.template ?? ''
  const dateNow = () => new Date()
  return {
    name: path === qwen ? 'qwen' : 'smollm2',
    template: createTemplate(source, { ...traits, dateNow, toolFallback: 'hermes' }),
    tokenizer: createTokenizer(buildTokenizerJson(metadata), {
      ...traits,
      memoBytes: 64 * 1024 * 1024,
      workerUrl: new URL('../src/prompt/tokenizer-worker.js', import.meta.url),
    }),
  }
}

// --- the conversation --------------------------------------------------------------------------------------------------

const WORDS = 'request prefix block cache token session backend stream tenant router index segment limit window'.split(
  ' ',
)
let state = 1
const random = (below: number): number => {
  state = (Math.imul(state, 48271) >>> 0) % 0x7fffffff
  return state % below
}
const word = () => WORDS[random(WORDS.length)]!

/** About `chars` characters that read like a source file; no two are alike. */
function code(chars: number): string {
  let text = ''
  for (let line = 1; text.length < chars; line++) {
    const name = `${word()}${word()[0]!.toUpperCase()}${word().slice(1)}${random(1000)}`
    text += `${String(line).padStart(5)}  const ${name} = await ${word()}.${word()}(${word()}, ${random(100000)}) // ${word()} <${word()}>\n`
  }
  return text.slice(0, chars)
}

const tools = Array.from({ length: 12 }, (_, i) => ({
  type: 'function',
  function: {
    name: `tool_${i}`,
    description: code(300),
    parameters: { type: 'object', properties: { path: { type: 'string' }, line: { type: 'integer' } } },
  },
}))

function step(i: number, chars: number): object[] {
  const id = `call_${String(i).padStart(9, '0')}`
  const call = {
    id,
    type: 'function',
    function: { name: `tool_${i % 12}`, arguments: JSON.stringify({ path: word(), line: i }) },
  }
  return [
    { role: 'assistant', content: code(120), tool_calls: [call] },
    { role: 'tool', tool_call_id: id, content: code(chars) },
  ]
}

function conversation(bytes: number): object[] {
  const messages: object[] = [
    { role: 'system', content: code(Math.min(12_000, bytes / 4)) },
    { role: 'user', content: code(400) },
  ]
  let size = JSON.stringify({ messages, tools }).length
  for (let i = 0; size < bytes; i++) {
    const more = step(i, 1500)
    size += JSON.stringify(more).length
    messages.push(...more)
  }
  return messages
}

// --- the measurement -----------------------------------------------------------------------------------------------------

type Times = Record<(typeof PHASES)[number], number>

const envelope = {
  tenant: { name: 'default', salt: 'default', admin: true },
  session: 'bench',
  priority: 'interactive',
  limits: { n: 8, prompts: 64, stopStrings: 16, stopChars: 1000, logitBias: 1024, jsonDepth: 128 },
} as const

const root = makeRoot({
  weightsDigest: 'bench',
  tokenizerDigest: 'bench',
  layout: { layers: 1, kvHeads: 1, headDim: 1, dtype: 'fp16' },
  rounding: 'none',
  arithmetic: 'bench',
  tenantSalt: 'default',
})

function turnOf({ template, tokenizer }: Parts, chainOf: ReturnType<typeof createChainMemo>) {
  return async (body: Buffer): Promise<{ times: Times; tokens: number }> => {
    const at = [performance.now()]
    const [request] = openaiChat.decode(readBody(body), { ...envelope, id: randomUUID() }).requests
    at.push(performance.now())
    const { prompt } = request
    if (prompt.kind !== 'chat') throw new Error('no chat')
    const { text } = template.render(prompt.messages, { tools: prompt.tools, addGenerationPrompt: true })
    at.push(performance.now())
    const options = { special: 'parse', bos: 'none' } as const
    const tokens = await (tokenizer.encodeAsync?.(text, options) ?? tokenizer.encode(text, options))
    at.push(performance.now())
    chainOf(root, tokens)
    at.push(performance.now())
    const times = Object.fromEntries(PHASES.map((phase, i) => [phase, at[i + 1]! - at[i]!])) as Times
    return { times, tokens: tokens.length }
  }
}

const sum = (times: Times): number => PHASES.reduce((all, phase) => all + times[phase], 0)
const median = (numbers: readonly number[]): number =>
  [...numbers].sort((a, b) => a - b)[numbers.length >> 1] ?? Number.NaN
const rounded = (ms: number): number => Number(ms.toFixed(3))

async function measure(parts: Parts, bytes: number) {
  const run = turnOf(parts, createChainMemo(32 * 1024 * 1024))
  const messages = conversation(bytes)
  const bodyOf = () => Buffer.from(JSON.stringify({ model: 'bench', messages, tools, stream: true }))
  const first = await run(bodyOf())
  const times: Times[] = []
  for (let turn = 0; turn < turns; turn++) {
    messages.push(...step(1000 + turn, 700))
    // As other work does between two turns.
    await new Promise((resolve) => setTimeout(resolve, 2))
    times.push((await run(bodyOf())).times)
  }
  const p50 = Object.fromEntries(PHASES.map((phase) => [phase, rounded(median(times.map((each) => each[phase])))]))
  return {
    kilobytes: Math.round(bodyOf().length / 1000),
    tokens: first.tokens,
    first: Object.fromEntries([
      ...PHASES.map((phase) => [phase, rounded(first.times[phase])]),
      ['all', rounded(sum(first.times))],
    ]),
    p50: { ...p50, all: rounded(median(times.map(sum))) } as Times & { all: number },
  }
}

const results: Record<string, object> = {}
for (const parts of [scriptedParts(), await realParts()]) {
  if (parts === undefined) continue
  // Warm up the compiler, with text of its own.
  await measure(parts, 40_000)
  const bySize: Record<string, Awaited<ReturnType<typeof measure>>> = {}
  for (const [size, bytes] of Object.entries(SIZES)) {
    const result = await measure(parts, bytes)
    bySize[size] = result
    process.stderr.write(
      `${parts.name} ${size}: first ${JSON.stringify(result.first)} p50 ${JSON.stringify(result.p50)}\n`,
    )
  }
  const ratio = bySize['400 KB']!.p50.tokenize / bySize['40 KB']!.p50.tokenize
  results[parts.name] = { ...bySize, tokenizeRatio: rounded(ratio) }
  await parts.tokenizer.close?.()
}
process.stdout.write(`${JSON.stringify({ bench: 'turn', turns, goal: { allMs: 10, tokenizeRatio: 2 }, results })}\n`)
