// An agent that holds a conversation through one of the wire APIs and sends each answer back in the words of its own: the
// rewrites of wire contract 2.7 and of the recorded clients, each a switch. It knows the answers that the scripted model is
// to give, and counts what was reused against the most that could have been.

import * as dialects from '../api/dialect/index.js'
import { scriptedPieces } from '../backend/scripted-tokenizer.js'
import type { ComposeOptions, Program } from '../compose.js'
import { BLOCK_TOKENS } from '../core/block.js'
import type { Job } from '../core/request.js'
import { post, scriptedProgram } from './scripted-program.js'

export interface Said {
  readonly content: string
  readonly reasoning?: string
  /** Of the reasoning, where the wire API has one. */
  readonly signature?: string
  readonly calls?: readonly { readonly id: string; readonly name: string; readonly arguments: string }[]
}

/** What the conversation is made of: what others say, and what the model is to answer. */
export type Line =
  | { readonly role: 'system' | 'user'; readonly content: string }
  | { readonly role: 'tool'; readonly content: string; readonly call: number }
  | ({ readonly role: 'assistant' } & Said)

/** Each name is what a client does with that part of an answer; the first one keeps it. */
export const REWRITES = {
  content: ['exact', 'trimmed', 'parts'],
  nothing: ['null', 'empty', 'missing'],
  arguments: ['exact', 'compact', 'python', 'sorted'],
  reasoning: ['exact', 'trimmed', 'last-delta', 'dropped'],
  ids: ['exact', 'cut'],
} as const

export type Rewrite = { readonly [K in keyof typeof REWRITES]: (typeof REWRITES)[K][number] }

/** All of them together. */
export function rewrites(): Rewrite[] {
  return Object.entries(REWRITES).reduce<Rewrite[]>(
    (all, [name, values]) => all.flatMap((each) => values.map((value) => ({ ...each, [name]: value }))),
    [{} as Rewrite],
  )
}

/** So many of them that every pair of two parts' values is there. */
export function pairedRewrites(): Rewrite[] {
  const names = Object.keys(REWRITES) as (keyof Rewrite)[]
  const pairsOf = (each: Rewrite) =>
    names.flatMap((a, i) => names.slice(i + 1).map((b) => `${a}=${each[a]} ${b}=${each[b]}`))
  const all = rewrites()
  const left = new Set(all.flatMap(pairsOf))
  const chosen: Rewrite[] = []
  while (left.size > 0) {
    const news = all.map((each) => pairsOf(each).filter((pair) => left.has(pair)).length)
    const best = all[news.indexOf(Math.max(...news))] as Rewrite
    for (const pair of pairsOf(best)) left.delete(pair)
    chosen.push(best)
  }
  return chosen
}

export interface AgentHouse {
  readonly program: Program
  /** The last job that the model was given. */
  job(): Job
  /** What the model says next. */
  say(answer: Said): void
  close(): Promise<void>
}

/** A whole server whose model writes ChatML, Hermes calls and reasoning, in one- and two-byte tokens. */
export async function openAgentHouse(
  options: Record<string, unknown> = {},
  flags: Record<string, unknown> = {},
): Promise<AgentHouse> {
  let answer = ''
  let job: Job | undefined
  const script: ComposeOptions['script'] = (asked) => {
    job = asked
    return scriptedPieces(answer)
  }
  const model = { template: 'chatml', toolCalls: 'hermes', reasoning: 'think', ...options }
  const program = await scriptedProgram(
    { 'backend.options': model, 'model.aliases': { '*': 'smollm2-135m-instruct' }, ...flags },
    { script },
  )
  return {
    program,
    job: () => job as Job,
    say(said) {
      answer = written(said)
    },
    close: () => program.stop(0),
  }
}

/** As the model writes it: as its template would, but for white space that no template keeps. */
function written({ content, reasoning, calls = [] }: Said): string {
  const thought = reasoning === undefined ? '' : `<think>\n${reasoning}\n</think>\n\n`
  const made = calls.map(
    (call) => `<tool_call>\n{"name": "${call.name}",  "arguments": ${call.arguments}}\n</tool_call>`,
  )
  return `${thought}${[...(content === '' ? [] : [content]), ...made].join('\n')}`
}

/** A wire API as an agent speaks it. */
export interface Speech {
  readonly path: string
  /** The body of a request whose answer is `rewrite` of what came. */
  body(history: readonly Turn[], rewrite: Rewrite): Record<string, unknown>
  /** The answer in a body that came back. */
  // biome-ignore lint/suspicious/noExplicitAny: a reply's shape is the dialect's
  heard(json: any): Said
  // biome-ignore lint/suspicious/noExplicitAny: a reply's shape is the dialect's
  usage(json: any): { readonly cached: number; readonly prompt: number }
}

export type Turn =
  | { readonly role: 'system' | 'user'; readonly content: string }
  | { readonly role: 'tool'; readonly content: string; readonly callId: string }
  | ({ readonly role: 'assistant' } & Said)

export interface Talk {
  readonly speech: Speech
  readonly rewrite: Rewrite
  /** Which reasoning the model is shown again: how far the prefix can reach. */
  readonly shown: 'all' | 'since-user' | 'none'
  /** Changes what is sent at the `n`th request. */
  readonly sent?: (history: readonly Turn[], n: number) => readonly Turn[]
  /** The client's session key. */
  readonly session?: string
}

export interface Talked {
  readonly hits: number
  readonly ideal: number
  readonly requests: number
}

let talks = 0

/** Holds the conversation; the first request of it, which has no past, does not count. */
export async function talk(house: AgentHouse, lines: readonly Line[], options: Talk): Promise<Talked> {
  const { speech, rewrite, shown, sent = (turns) => turns, session } = options
  const headers: Record<string, string> = session === undefined ? {} : { 'x-refrain-session': session }
  // Nothing of other conversations counts.
  const salt = { cache_salt: `talk-${talks++}` }
  const history: Turn[] = []
  let lastCalls: readonly string[] = []
  let [hits, ideal, requests] = [0, 0, 0]
  /** Tokens of the last request: with its answer, without, and of the first prompt of the user turn. */
  let [known, lastPrompt, turnStart] = [0, 0, 0]
  let isNewTurn = false
  for (const line of lines) {
    if (line.role !== 'assistant') {
      isNewTurn ||= line.role === 'user'
      const callId = line.role === 'tool' ? (lastCalls[line.call] ?? 'none') : ''
      history.push(line.role === 'tool' ? { role: 'tool', content: line.content, callId } : line)
      continue
    }
    house.say(line)
    const body = { ...speech.body(sent(history, requests), rewrite), ...salt }
    const reply = await post(house.program, speech.path, body, headers)
    if (reply.status !== 200) throw new Error(`${reply.status} ${reply.text}`)
    const json = reply.json()
    const { cached, prompt } = speech.usage(json)
    const heard = speech.heard(json)
    const reach = { all: known, 'since-user': isNewTurn ? turnStart : known, none: lastPrompt }[shown]
    if (isNewTurn) turnStart = prompt
    if (requests > 0) {
      hits += cached
      ideal += BLOCK_TOKENS * Math.floor(Math.min(reach, prompt - 1) / BLOCK_TOKENS)
    }
    known = prompt + scriptedPieces(written(line)).length
    lastPrompt = prompt
    isNewTurn = false
    requests++
    lastCalls = (heard.calls ?? []).map(({ id }) => returnedId(id, rewrite))
    history.push({ role: 'assistant', ...heard })
  }
  return { hits, ideal, requests }
}

function returnedId(id: string, { ids }: Rewrite): string {
  return ids === 'cut' ? id.slice(0, 12) : id
}

// --- the rewrites ----------------------------------------------------------------------------------------------------

/** A part of an answer as the client sends it back. */
export function returned(said: Said, rewrite: Rewrite): Said {
  const { reasoning = '' } = said
  const thought = {
    exact: reasoning,
    trimmed: reasoning.trim(),
    'last-delta': reasoning.slice(-7),
    dropped: '',
  }[rewrite.reasoning]
  return {
    content: rewrite.content === 'exact' ? said.content : said.content.trim(),
    ...(thought !== '' && { reasoning: thought }),
    ...(said.calls && {
      calls: said.calls.map((call) => ({
        ...call,
        id: returnedId(call.id, rewrite),
        arguments: respelled(call.arguments, rewrite),
      })),
    }),
  }
}

function respelled(json: string, { arguments: how }: Rewrite): string {
  if (how === 'exact') return json
  const value = JSON.parse(json) as Record<string, unknown>
  if (how === 'compact') return JSON.stringify(value)
  if (how === 'sorted') return JSON.stringify(Object.fromEntries(Object.entries(value).sort().reverse()))
  return JSON.stringify(value, null, 1)
    .replace(/\n */g, ' ')
    .replace(/[\u0080-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

// --- the wire APIs ---------------------------------------------------------------------------------------------------

const tool = (name: string) => ({ name, description: `Does ${name}.`, parameters: { type: 'object', properties: {} } })
const TOOLS = ['look', 'book', 'think', 'calculate'].map(tool)

const chatSpeech: Speech = {
  path: '/v1/chat/completions',
  body: (history, rewrite) => ({
    model: 'm',
    tools: TOOLS.map((each) => ({ type: 'function', function: each })),
    messages: history.map((turn) => {
      if (turn.role === 'tool') return { role: 'tool', tool_call_id: turn.callId, content: turn.content }
      if (turn.role !== 'assistant') return turn
      const { content, reasoning, calls = [] } = returned(turn, rewrite)
      return {
        role: 'assistant',
        ...chatContent(content, calls.length > 0, rewrite),
        ...(reasoning !== undefined && { reasoning_content: reasoning }),
        ...(calls.length > 0 && {
          tool_calls: calls.map(({ id, name, arguments: json }) => ({
            id,
            type: 'function',
            function: { name, arguments: json },
          })),
        }),
      }
    }),
  }),
  heard(json) {
    const { content, reasoning_content: reasoning, tool_calls: calls } = json.choices[0].message
    return {
      content: content ?? '',
      ...(reasoning && { reasoning }),
      // biome-ignore lint/suspicious/noExplicitAny: a reply's shape is the dialect's
      ...(calls && { calls: calls.map(({ id, function: made }: any) => ({ id, ...made })) }),
    }
  },
  usage: ({ usage }) => ({ cached: usage.prompt_tokens_details.cached_tokens, prompt: usage.prompt_tokens }),
}

function chatContent(content: string, hasCalls: boolean, { content: form, nothing }: Rewrite): object {
  if (content === '' && hasCalls) {
    if (nothing === 'missing') return {}
    return { content: nothing === 'null' ? null : '' }
  }
  if (form !== 'parts') return { content }
  const half = Math.ceil(content.length / 2)
  const texts = [content.slice(0, half), content.slice(half), ' \n'].filter((text) => text !== '')
  return { content: texts.map((text) => ({ type: 'text', text })) }
}

const responsesSpeech: Speech = {
  path: '/v1/responses',
  body: (history, rewrite) => ({
    model: 'm',
    store: false,
    tools: TOOLS.map((each) => ({ type: 'function', ...each })),
    input: history.flatMap((turn): object[] => {
      if (turn.role === 'tool') return [{ type: 'function_call_output', call_id: turn.callId, output: turn.content }]
      if (turn.role !== 'assistant') return [{ role: turn.role, content: turn.content }]
      const { content, reasoning, calls = [] } = returned(turn, rewrite)
      const text = (each: string) => ({ type: 'output_text', text: each, annotations: [] })
      const half = rewrite.content === 'parts' ? Math.ceil(content.length / 2) : content.length
      const parts = [content.slice(0, half), content.slice(half)].filter((each) => each !== '')
      return [
        ...(reasoning === undefined
          ? []
          : [{ type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: reasoning }] }]),
        ...(content === '' ? [] : [{ type: 'message', role: 'assistant', content: parts.map(text) }]),
        ...calls.map(({ id, name, arguments: json }) => ({
          type: 'function_call',
          call_id: id,
          name,
          arguments: json,
        })),
      ]
    }),
  }),
  heard({ output }) {
    // biome-ignore lint/suspicious/noExplicitAny: a reply's shape is the dialect's
    const of = (type: string): any[] => output.filter((item: any) => item.type === type)
    const textOf = (items: { content: { text: string }[] }[]) =>
      items.flatMap(({ content }) => content.map(({ text }) => text)).join('')
    const reasoning = textOf(of('reasoning'))
    const calls = of('function_call').map(({ call_id: id, name, arguments: json }) => ({ id, name, arguments: json }))
    return {
      content: textOf(of('message')),
      ...(reasoning !== '' && { reasoning }),
      ...(calls.length > 0 && { calls }),
    }
  },
  usage: ({ usage }) => ({ cached: usage.input_tokens_details.cached_tokens, prompt: usage.input_tokens }),
}

const messagesSpeech: Speech = {
  path: '/v1/messages',
  body: (history, rewrite) => ({
    model: 'm',
    max_tokens: 30_000,
    tools: TOOLS.map(({ parameters, ...each }) => ({ ...each, input_schema: parameters })),
    system: history[0]?.role === 'system' ? [{ type: 'text', text: history[0].content }] : [],
    messages: history.slice(history[0]?.role === 'system' ? 1 : 0).map((turn) => {
      if (turn.role === 'tool') {
        return { role: 'user', content: [{ type: 'tool_result', tool_use_id: turn.callId, content: turn.content }] }
      }
      if (turn.role !== 'assistant') return turn
      const { content, reasoning, calls = [] } = returned(turn, rewrite)
      const half = rewrite.content === 'parts' ? Math.ceil(content.length / 2) : content.length
      const texts = [content.slice(0, half), content.slice(half)].filter((text) => text !== '')
      return {
        role: 'assistant',
        content: [
          ...(reasoning === undefined
            ? []
            : [{ type: 'thinking', thinking: reasoning, signature: turn.signature ?? '' }]),
          ...texts.map((text) => ({ type: 'text', text })),
          ...calls.map(({ id, name, arguments: json }) => ({ type: 'tool_use', id, name, input: JSON.parse(json) })),
        ],
      }
    }),
  }),
  heard({ content }) {
    // biome-ignore lint/suspicious/noExplicitAny: a reply's shape is the dialect's
    const of = (type: string): any[] => content.filter((block: any) => block.type === type)
    const reasoning = of('thinking').map(({ thinking }) => thinking)
    const calls = of('tool_use').map(({ id, name, input }) => ({ id, name, arguments: JSON.stringify(input) }))
    return {
      content: of('text')
        .map(({ text }) => text)
        .join(''),
      ...(reasoning.length > 0 && { reasoning: reasoning.join('\n'), signature: of('thinking').at(-1).signature }),
      ...(calls.length > 0 && { calls }),
    }
  },
  usage: ({ usage: { input_tokens: rest, cache_read_input_tokens: cached, cache_creation_input_tokens: fresh } }) => ({
    cached,
    prompt: rest + cached + fresh,
  }),
}

/** Of the wire APIs that agents speak, those that are served. */
export const speeches: Readonly<Record<string, Speech>> = Object.fromEntries(
  Object.entries({ chat: chatSpeech, responses: responsesSpeech, messages: messagesSpeech }).filter(([, { path }]) =>
    Object.values(dialects).some((dialect) => dialect.path === path),
  ),
)
