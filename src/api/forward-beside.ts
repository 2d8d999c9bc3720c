// Side questions in a chat body of any dialect that is on its way to servers elsewhere: what is asked, the body without
// them, each question as a chat of its own. Invariant: bad input is refused by the field that an engine of our own would
// name; a body without side questions costs a look at the names of its members.

import type { QuickAsk } from '../core/quick.js'
import { type ChatParts, chatParts, contentOf, isJoinable, withMember, withQuestion } from './aside-body.js'
import { besideAnswer } from './beside-answer.js'
import { readBody } from './body.js'
import { without } from './body-edit.js'
import { BodyScan, membersIn } from './body-scan.js'
import { chatJson } from './chat-json.js'
import type { BesideAsked, Forward, ForwardBeside, ForwardBody, ForwardUsage } from './contract.js'
import type { Dialect, Envelope } from './dialect/contract.js'
import { asObject, invalid, readingOf, unsupported } from './dialect/fields.js'
import { ChatBody, ChatStream } from './dialect/openai-chat-encode.js'
import { isContinued } from './dialect/openai-messages.js'
import { quick, quickOf } from './dialect/quick-field.js'
import { ignoredHeader } from './generate-route.js'
import { translatable } from './translate.js'

const CHAT_PATH = '/v1/chat/completions'
const QUOTE = 34
const TASK = [...Buffer.from('"task"')]
/** In front of a long content or behind it: every chat pays for this look. */
const NEAR = 128

export interface BesideContext {
  readonly scan: BodyScan
  readonly envelope: Envelope
  readonly forceUsage: boolean
  /** A body that is sent on, with the model's name at its members. */
  body(scan: BodyScan): ForwardBody
  /** Of the answer. */
  readonly headers: Record<string, string>
}

/** Whether a body asks anything on the side. */
export function asksBeside(path: string, scan: BodyScan): boolean {
  const isAsked = scan.member('quick') !== undefined && scan.raw('quick') !== 'null'
  if (path === CHAT_PATH) return isAsked || hasTask(scan)
  return isAsked && translatable(path) !== undefined
}

export function besideOf(asked: Forward, context: BesideContext): ForwardBeside {
  const dialect = translatable(asked.path)
  let read: BesideAsked | undefined
  return {
    isTask: dialect === undefined && hasTask(context.scan),
    asked() {
      read ??= new Beside(asked, context, dialect === undefined ? chatSource(context) : otherSource(dialect, context))
      return read
    },
  }
}

/** DeepSeek's form: a string called `task` in the last message. */
function hasTask({ bytes, elements, list }: BodyScan): boolean {
  const start = elements.starts.at(-1)
  const end = elements.ends.at(-1)
  if (list?.key !== 'messages' || start === undefined || end === undefined) return false
  if (!says(bytes, start, Math.min(end, start + NEAR)) && !says(bytes, Math.max(start, end - NEAR), end)) return false
  return membersIn(bytes, start, end).some(({ key, start: at }) => key === 'task' && bytes[at] === QUOTE)
}

/** Whether `"task"` begins in a range. */
function says(bytes: Buffer, from: number, to: number): boolean {
  for (let i = from; i < to; i++) {
    let same = 0
    while (same < TASK.length && bytes[i + same] === TASK[same]) same++
    if (same === TASK.length) return true
  }
  return false
}

/** What questions are made of. */
interface Source {
  readonly ask: QuickAsk
  /** The chat that they follow. */
  readonly parts: ChatParts
  readonly isJoinable: boolean
  /** The last message is the beginning of the answer. */
  readonly continues: boolean
}

/** Nothing of the body is parsed but what asks. @throws RefrainError by field. */
function chatSource({ scan, envelope: { limits }, headers }: BesideContext): Source {
  const count = scan.elements.starts.length
  if (count === 0) throw invalid('messages', 'must not be empty')
  const parts = chatParts(scan, isOfPrompt)
  const lastText = parts.messages.at(-1) as string
  const raw = `{"quick":${scan.raw('quick') ?? 'null'},"last":${lastText}}`
  const { quick: sent = null, last: sentLast } = readBody(Buffer.from(raw)).value //   invalid_json
  const last = asObject(sentLast, `messages[${count - 1}]`)
  const reading = readingOf(raw, limits.jsonDepth)
  const asked = sent === null ? undefined : quick.read(sent, 'quick', reading)
  nameIgnored(reading.ignored, headers)
  const continues = scan.value('continue_final_message') === true || isContinued([last])
  const maxTokens = numberIn(scan, 'max_completion_tokens') ?? numberIn(scan, 'max_tokens')
  // Of the messages, only the last is looked at.
  const messages = [...Array.from({ length: count - 1 }, () => null), last]
  const { request, isTask } = quickOf(asked, { messages, maxTokens, limits, continues })
  if (request.quick === undefined) throw new Error('neither quick nor task was asked for')
  return {
    ask: request.quick,
    // The task is put as one of our questions.
    parts: isTask ? { ...parts, messages: [...parts.messages.slice(0, -1), withoutTask(lastText)] } : parts,
    isJoinable: isJoinable(scan, lastText),
    continues,
  }
}

/** Of other dialects the whole body is read, as for a server that has them not. @throws RefrainError by field. */
function otherSource(dialect: Dialect, { scan, envelope, headers }: BesideContext): Source {
  if ((scan.raw('previous_response_id') ?? 'null') !== 'null') {
    throw unsupported('previous_response_id', 'cannot go with quick: the backend alone has what it names')
  }
  const { requests, ignored } = dialect.decode(readBody(scan.bytes), envelope)
  nameIgnored(ignored, headers)
  const [request] = requests
  if (request.quick === undefined) throw new Error(`${dialect.path} has no side questions`)
  const chat = new BodyScan(Buffer.from(chatJson(request)))
  const parts = chatParts(chat, isOfPrompt)
  const continues = request.prompt.kind === 'chat' && request.prompt.continueFinal === true
  return { ask: request.quick, parts, isJoinable: isJoinable(chat, parts.messages.at(-1)), continues }
}

/** What backends make of the rest is theirs to say. */
function nameIgnored(ignored: Iterable<string>, headers: Record<string, string>): void {
  const names = ignoredHeader([...ignored].filter((path) => path.startsWith('quick')))
  if (names !== '') headers['x-refrain-ignored'] = names
}

/** What makes a prompt, names whose caches it may share, and says who asks. */
const PROMPT = new Set([
  ...['model', 'tools', 'functions', 'documents', 'reasoning_effort', 'reasoning', 'thinking', 'enable_thinking'],
  ...['chat_template', 'chat_template_kwargs', 'add_special_tokens', 'mm_processor_kwargs', 'media_io_kwargs'],
  ...['cache_salt', 'prompt_cache_key', 'lora', 'lora_path', 'id_slot', 'data_parallel_rank'],
  ...['user', 'safety_identifier', 'service_tier'],
])

/** Some servers leave the tools out of the prompt where none may be called. */
function isOfPrompt(key: string, json: string): boolean {
  return PROMPT.has(key) || (key === 'tool_choice' && json === '"none"')
}

type Question = Parameters<BesideAsked['chat']>

class Beside implements BesideAsked {
  readonly tasks: QuickAsk['tasks']
  readonly at: QuickAsk['at']
  readonly body: ForwardBody
  readonly isJoinable: boolean
  readonly isSamePrompt: boolean
  readonly #asked: Forward
  readonly #context: BesideContext
  readonly #source: Source

  constructor(asked: Forward, context: BesideContext, source: Source) {
    const { ask } = source
    this.tasks = ask.tasks
    this.at = ask.at
    this.body = context.body(new BodyScan(without(context.scan, 'quick')))
    this.isJoinable = ask.at === 'user' && source.isJoinable
    this.isSamePrompt = asked.path === CHAT_PATH
    this.#asked = asked
    this.#context = context
    this.#source = source
  }

  chat(question: Question[0], { part, reply }: Question[1]): Forward {
    const { query, tenant, headers, credentials } = this.#asked
    const priority = query.priority === 'interactive' ? 'auxiliary' : query.priority
    const bytes = withQuestion(reply === undefined ? this.#source.parts : this.#behind(reply), question)
    return {
      // It is placed as what it follows: there its prefix is.
      query: { ...query, part, requestClass: 'auxiliary', priority, isBeside: true },
      ...{ tenant, headers, credentials },
      ...{ method: 'POST', path: CHAT_PATH, url: CHAT_PATH, stream: false, forceUsage: false },
      body: this.#context.body(new BodyScan(bytes)),
      aside: question.aside,
    }
  }

  answer() {
    return besideAnswer(this.#asked.path, numberIn(this.#context.scan, 'n') ?? 1)
  }

  taskAnswer(results: Parameters<BesideAsked['taskAnswer']>[0], usage: ForwardUsage): string {
    const { query, stream } = this.#asked
    const { scan, forceUsage } = this.#context
    const options = scan.value('stream_options') as { include_usage?: boolean } | undefined
    const created = Math.floor(Date.now() / 1000)
    const about = { id: `chatcmpl-${query.id}`, model: query.model, created, forceUsage }
    const shape = { n: 1, includeUsage: options?.include_usage === true, isTask: true }
    const { promptTokens, cachedTokens = 0 } = usage
    const cache = { working: 0, memory: cachedTokens, disk: 0, computed: promptTokens - cachedTokens }
    const counts = { promptTokens, cache, committedTokens: 0 }
    const events = [
      { type: 'start' as const, ...counts },
      { type: 'quick' as const, answers: [], results },
      { type: 'finish' as const, ...counts, completionTokens: 0 },
    ]
    if (stream) {
      const encoder = new ChatStream(about, shape)
      return events.map((event) => encoder.event(event)).join('') + encoder.ending
    }
    const encoder = new ChatBody(about, shape)
    for (const event of events) encoder.event(event)
    return encoder.body()
  }

  /** The chat and what was answered; an answer that was begun for the server is one message with its rest. */
  #behind(reply: string): ChatParts {
    const { parts, continues } = this.#source
    const { rest, messages } = parts
    if (!continues) return { rest, messages: [...messages, reply] }
    const begun = contentOf(messages.at(-1))
    const said = contentOf(reply) ?? ''
    const content = Array.isArray(begun) ? [...begun, { type: 'text', text: said }] : `${begun ?? ''}${said as string}`
    return { rest, messages: [...messages.slice(0, -1), withMember(reply, 'content', content)] }
  }
}

function withoutTask(message: string): string {
  const bytes = Buffer.from(message)
  return without({ bytes, members: membersIn(bytes, 0, bytes.length) }, 'task').toString('utf8')
}

function numberIn(scan: BodyScan, key: string): number | undefined {
  const value = scan.value(key)
  return typeof value === 'number' ? value : undefined
}
