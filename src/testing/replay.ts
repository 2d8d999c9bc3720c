// Replays recorded requests of real clients against a whole server whose scripted model answers what the recording's did,
// and counts what of each prompt was reused against the most that could have been. Two yardsticks: token prefixes that an
// earlier request shares, and earlier conversations whose messages come back with the same content.

import { createScriptedTokenizer } from '../backend/scripted-tokenizer.js'
import type { ComposeOptions, Program } from '../compose.js'
import { BLOCK_TOKENS } from '../core/block.js'
import type { Job } from '../core/request.js'
import { type RequestSettled, requestSettled } from '../core/signals.js'
import { lowerHeaders, type Recording } from './recordings.js'
import { post, scriptedProgram } from './scripted-program.js'

export interface Replayed {
  readonly recording: Recording
  readonly status: number
  readonly text: string
  readonly job: Job | undefined
  /** Tokens of the prompt that were reused. */
  readonly hits: number
  /** The most that could have been. */
  readonly ideal: number
  readonly session: string | undefined
}

export interface ReplayHouse {
  readonly program: Program
  replay(recording: Recording): Promise<Replayed>
  close(): Promise<void>
}

const OPTIONS = { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' }
/** The header of the answer, which the next turn begins its reply with, and what is cut inside of a token. */
const SLACK_TOKENS = 16

interface Past {
  /** Of the prompt and of its answer. */
  readonly tokens: Int32Array
  /** Tokens of the prompt alone. */
  readonly prompt: number
  readonly messages: readonly string[]
  readonly head: string
  readonly run: string
}

export async function openReplay(flags: Record<string, unknown> = {}): Promise<ReplayHouse> {
  let answer = ''
  let job: Job | undefined
  let settled: RequestSettled | undefined
  const script: ComposeOptions['script'] = (asked) => {
    job = asked
    return answer
  }
  const program = await scriptedProgram(
    { 'backend.options': OPTIONS, 'model.aliases': { '*': 'smollm2-135m-instruct' }, ...flags },
    { script },
  )
  const stop = requestSettled.subscribe((each) => {
    settled = each
  })
  const past: Past[] = []
  const tokenizer = createScriptedTokenizer()
  return {
    program,
    async replay(recording) {
      answer = replyText(recording)
      job = undefined
      settled = undefined
      const reply = await post(program, recording.path, inFull(recording.body), headersOf(recording))
      // A cast: assigned by callbacks, which the compiler does not see.
      const [ran, told] = [job as Job | undefined, settled as RequestSettled | undefined]
      const { status, text } = reply
      const session = told?.session
      if (ran === undefined || told === undefined) {
        return { recording, status, text, job: ran, hits: 0, ideal: 0, session }
      }
      const { run } = recording
      const now = { tokens: ran.tokens, prompt: ran.tokens.length, run, ...contentOf(recording) }
      const ideal = idealOf(now, past)
      // What was generated is there too, as it was sampled.
      const sampled = tokenizer.encode(answer, { special: 'text', bos: 'none' })
      past.push({ ...now, tokens: Int32Array.from([...ran.tokens, ...sampled]) })
      return { recording, status, text, job: ran, hits: told.working + told.memory + told.disk, ideal, session }
    },
    async close() {
      stop()
      await program.stop(0)
    },
  }
}

/** Texts that the recordings only name are as long as they were, and the same for the same digest. */
export function inFull<T>(body: T): T {
  const text = JSON.stringify(body).replace(/<text (\d+) chars sha256:(\w{8})>/g, (_, count: string, digest: string) =>
    `${digest} `.repeat(Math.ceil(Number(count) / 9)).slice(0, Number(count)),
  )
  return JSON.parse(text) as T
}

/** What a client's own connection added is left out. */
function headersOf(recording: Recording): Record<string, string> {
  const { 'content-length': _l, 'accept-encoding': _e, host: _h, connection: _c, ...rest } = lowerHeaders(recording)
  return rest
}

/** Full blocks, and never the last token: it is computed for its logits. */
function idealOf(now: Past, past: readonly Past[]): number {
  const shared = Math.max(0, ...past.map((before) => sharedStart(now.tokens, before.tokens)))
  const continued = past.filter(
    (before) => now.head === before.head && before.messages.every((message, i) => message === now.messages[i]),
  )
  // The same was said in another run, too, in other tokens: a run goes on with its own.
  const own = continued.filter(({ run }) => run === now.run)
  const said = (own.length > 0 ? own : continued).map(({ prompt }) => prompt - SLACK_TOKENS)
  const most = Math.max(shared, ...said)
  return Math.floor(Math.min(most, now.tokens.length - 1) / BLOCK_TOKENS) * BLOCK_TOKENS
}

function sharedStart(a: Int32Array, b: Int32Array): number {
  const end = Math.min(a.length, b.length)
  let shared = 0
  while (shared < end && a[shared] === b[shared]) shared++
  return shared
}

/** Names that clients and servers give to what they send, and marks that move on: no content. */
const NO_CONTENT = new Set(['id', 'cache_control', 'status'])

function contentOf({ body }: Recording): Pick<Past, 'messages' | 'head'> {
  const plain = (value: unknown) => JSON.stringify(value, (key, member) => (NO_CONTENT.has(key) ? undefined : member))
  const items = (body['messages'] ?? body['input']) as readonly unknown[]
  const { tools, system, instructions } = body
  return { messages: items.map(plain), head: plain({ tools, system, instructions }) }
}

// --- replies ---------------------------------------------------------------------------------------------------------

interface Reply {
  reasoning: string
  content: string
  readonly calls: { name: string; arguments: string }[]
}

/** What a model of the Hermes form would have written to give the recorded reply. */
export function replyText(recording: Recording): string {
  const { reasoning, content, calls } = replyOf(recording)
  const thought = reasoning === '' ? '' : `<think>\n${reasoning}\n</think>\n\n`
  const called = calls.map(
    (call) => `<tool_call>\n{"name": "${call.name}", "arguments": ${call.arguments}}\n</tool_call>`,
  )
  return thought + [content, ...called].filter((part) => part !== '').join('\n')
}

// biome-ignore lint/suspicious/noExplicitAny: three wire formats, read as far as the recordings need
type Json = any

export function replyOf({ path, reply_body: body }: Recording): Reply {
  const reply: Reply = { reasoning: '', content: '', calls: [] }
  const events: Json[] = typeof body === 'string' ? eventsOf(body) : [body]
  for (const event of events) {
    if (path.startsWith('/v1/chat')) addChat(reply, event)
    else if (path.startsWith('/v1/responses')) addResponses(reply, event)
    else addMessages(reply, event)
  }
  return reply
}

function eventsOf(stream: string): Json[] {
  return stream.split('\n').flatMap((line) => {
    if (!line.startsWith('data: ') || line === 'data: [DONE]') return []
    try {
      return [JSON.parse(line.slice(6)) as Json]
    } catch {
      // The stream was cut here, as the recording's fault wants it.
      return []
    }
  })
}

function addChat(reply: Reply, event: Json): void {
  const delta = event?.choices?.[0]?.delta ?? event?.choices?.[0]?.message
  if (delta === undefined) return
  reply.reasoning += delta.reasoning_content ?? delta.reasoning ?? ''
  reply.content += delta.content ?? ''
  for (const [i, call] of (delta.tool_calls ?? []).entries()) {
    const at = call.index ?? i
    reply.calls[at] ??= { name: '', arguments: '' }
    reply.calls[at].name += call.function?.name ?? ''
    reply.calls[at].arguments += call.function?.arguments ?? ''
  }
}

function addResponses(reply: Reply, event: Json): void {
  const items = event?.type === 'response.output_item.done' ? [event.item] : (event?.output ?? [])
  for (const item of items) {
    const text = (item.content ?? []).map((part: Json) => part.text ?? '').join('')
    if (item.type === 'reasoning') reply.reasoning += text
    else if (item.type === 'function_call') reply.calls.push({ name: item.name, arguments: item.arguments })
    else if (item.type === 'message') reply.content += text
  }
}

function addMessages(reply: Reply, event: Json): void {
  const blocks = event?.type === 'content_block_start' ? [event.content_block] : (event?.content ?? [])
  for (const block of blocks) {
    if (block.type === 'tool_use') {
      const whole = Object.keys(block.input ?? {}).length > 0
      reply.calls.push({ name: block.name, arguments: whole ? JSON.stringify(block.input) : '' })
    } else if (block.type === 'thinking') reply.reasoning += block.thinking ?? ''
    else reply.content += block.text ?? ''
  }
  const delta = event?.type === 'content_block_delta' ? event.delta : {}
  reply.reasoning += delta.thinking ?? ''
  reply.content += delta.text ?? ''
  const last = reply.calls.at(-1)
  if (last !== undefined) last.arguments += delta.partial_json ?? ''
}
