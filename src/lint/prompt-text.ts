// A logged request as the texts that its prompt is made of, in the order in which a model sees them: tools, system text,
// messages. Invariant: what does not reach a model (cache markers, ids of a request, sampling) is in none of them, so that
// equal texts mean equal prompts under any template.

export interface PromptPiece {
  readonly kind: 'tool' | 'system' | 'message'
  /** The tool's name, or the message's role. */
  readonly name: string
  readonly text: string
  readonly reasoning: string
}

export interface LoggedPrompt {
  readonly model: string
  /** What the client calls the conversation; undefined: it does not say. */
  readonly session: string | undefined
  readonly pieces: readonly PromptPiece[]
  readonly bytes: number
}

type Json = Readonly<Record<string, unknown>>

/** Undefined: the record holds no request with a prompt. */
export function promptOf(record: unknown): LoggedPrompt | undefined {
  const found = bodyOf(record)
  if (found === undefined) return undefined
  const { body, session } = found
  const pieces = [...listOf(body['tools']).map(toolPiece), ...systemPieces(body), ...messagesOf(body).flatMap(pieceOf)]
  if (pieces.length === 0) return undefined
  const bytes = pieces.reduce((sum, piece) => sum + pieceBytes(piece), 0)
  return { model: textOf(body['model']), session: session ?? sessionOf(body), pieces, bytes }
}

/** About what a template puts around each. */
const FRAME_BYTES = 12

export function pieceBytes({ text, reasoning }: PromptPiece): number {
  return Buffer.byteLength(text) + (reasoning === '' ? 0 : Buffer.byteLength(reasoning)) + FRAME_BYTES
}

/** Bodies as they are logged: bare, in a batch (`body`, `params`), beside headers (`request`), or in a HAR entry. */
function bodyOf(record: unknown): { readonly body: Json; readonly session?: string | undefined } | undefined {
  const outer = objectOf(record)
  if (outer === undefined) return undefined
  if (isPrompt(outer)) return { body: outer }
  const request = objectOf(outer['request']) ?? outer
  const session = headerOf(request['headers'] ?? outer['headers'])
  const posted = objectOf(request['postData'])?.['text']
  for (const each of [posted, request['body'], request['params'], outer['body'], request]) {
    const body = objectOf(typeof each === 'string' ? parsed(each) : each)
    if (body !== undefined && isPrompt(body)) return { body, session }
  }
  return undefined
}

function isPrompt(body: Json): boolean {
  return Array.isArray(body['messages']) || typeof body['input'] === 'string' || Array.isArray(body['input'])
}

/** HAR lists headers, others write an object. */
function headerOf(headers: unknown): string | undefined {
  const all = Array.isArray(headers)
    ? headers.map((each) => [textOf(objectOf(each)?.['name']), objectOf(each)?.['value']] as const)
    : Object.entries(objectOf(headers) ?? {})
  const found = all.find(([name]) => name.toLowerCase() === 'x-refrain-session')?.[1]
  return typeof found === 'string' ? found : undefined
}

function sessionOf(body: Json): string | undefined {
  const { prompt_cache_key: key, session_id: session } = body
  if (typeof key === 'string') return key
  if (typeof session === 'string') return session
  const user = objectOf(body['metadata'])?.['user_id']
  return typeof user === 'string' && user.includes('session') ? user : undefined
}

function systemPieces(body: Json): PromptPiece[] {
  const text = shown(body['system'] ?? body['instructions']).text
  return text === '' ? [] : [{ kind: 'system', name: 'system', text, reasoning: '' }]
}

function messagesOf(body: Json): readonly unknown[] {
  const { messages, input } = body
  return typeof input === 'string' ? [{ role: 'user', content: input }] : listOf(messages ?? input)
}

function toolPiece(tool: unknown): PromptPiece {
  const object = objectOf(tool) ?? {}
  const name = textOf(object['name'] ?? objectOf(object['function'])?.['name'])
  const { cache_control: _, ...shownToModel } = object
  return { kind: 'tool', name, text: JSON.stringify(shownToModel), reasoning: '' }
}

function pieceOf(message: unknown): PromptPiece[] {
  const object = objectOf(message)
  if (object === undefined) return []
  const role = textOf(object['role'] ?? object['type'])
  const { text, reasoning } = shown(object['content'] ?? object['output'] ?? object['summary'])
  const calls = listOf(object['tool_calls']).map((call) => callText(objectOf(objectOf(call)?.['function'])))
  const own = object['type'] === 'function_call' ? [callText(object)] : []
  const thought = textOf(object['reasoning_content'] ?? object['reasoning'])
  const isSystem = role === 'system' || role === 'developer'
  return [
    {
      kind: isSystem ? 'system' : 'message',
      name: role,
      text: [text, ...calls, ...own].filter((each) => each !== '').join('\n'),
      reasoning: thought + reasoning,
    },
  ]
}

function callText(call: Json | undefined): string {
  return call === undefined ? '' : `${textOf(call['name'])} ${asText(call['arguments'] ?? call['input'])}`
}

/** What of a content a model sees. */
function shown(content: unknown): { readonly text: string; readonly reasoning: string } {
  if (typeof content === 'string') return { text: content, reasoning: '' }
  const texts: string[] = []
  let reasoning = ''
  for (const part of listOf(content)) {
    const object = objectOf(part) ?? {}
    const { type } = object
    if (type === 'thinking') reasoning += textOf(object['thinking'])
    else if (type === 'tool_use') texts.push(callText(object))
    else if (type === 'tool_result') texts.push(shown(object['content']).text)
    else if (typeof object['text'] === 'string') texts.push(object['text'])
    else if (part !== undefined) texts.push(JSON.stringify({ ...object, cache_control: undefined }))
  }
  return { text: texts.join('\n'), reasoning }
}

function asText(value: unknown): string {
  return typeof value === 'string' ? value : value === undefined ? '' : JSON.stringify(value)
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : []
}

function objectOf(value: unknown): Json | undefined {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : undefined
}

/** Undefined: not JSON. */
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
