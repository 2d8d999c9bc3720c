// The output items of one response while they grow, and the events that tell of them. Invariant: one item is open at a
// time and is closed before the next is opened; every delta has its item and its part announced first; the joined deltas
// are the text of the done events; a call that was cut off gets no done event, or a client would run it.

import type { CallDelta, SplitText, TokenLogprob } from '../../core/events.js'
import { sealReasoning } from './openai-responses-shape.js'
import { type ClientTool, inputOfArguments } from './openai-responses-tools.js'

export type Logprobs = readonly (TokenLogprob & { readonly top: readonly TokenLogprob[] })[]

/** Tells an event: its type, and its members beside type and number as JSON without braces. */
export type Tell = (type: string, members: string) => void

export interface ItemsOptions {
  /** Without its prefix; ids of items are made of it. */
  readonly id: string
  readonly byModelName: ReadonlyMap<string, ClientTool>
  /** Whether reasoning is sent sealed, too. */
  readonly sealsReasoning: boolean
  readonly tell: Tell
}

type ItemStatus = 'in_progress' | 'completed' | 'incomplete'

interface OpenText {
  readonly kind: 'reasoning' | 'message'
  readonly id: string
  text: string
  readonly logprobs: object[]
}

interface OpenCall {
  readonly kind: 'call'
  readonly id: string
  readonly callId: string
  /** The call's number in the answer. */
  readonly number: number
  readonly tool: ClientTool
  text: string
}

export class ResponseItems {
  readonly #options: ItemsOptions
  /** JSON of the items that are closed. */
  readonly done: string[] = []
  #open: OpenText | OpenCall | undefined
  #hasAnswer = false
  /** Of tokens whose text has not shown yet. */
  #heldLogprobs: object[] = []

  constructor(options: ItemsOptions) {
    this.#options = options
  }

  add({ reasoning, content, calls }: SplitText, logprobs: Logprobs | undefined): void {
    if (reasoning !== '') this.#addReasoning(reasoning)
    if (logprobs !== undefined) this.#heldLogprobs.push(...logprobs.map(wireLogprob))
    if (content !== '') this.#addText(content)
    if (reasoning !== '' || calls.length > 0) this.#heldLogprobs = []
    for (const call of calls) this.#addCall(call)
  }

  /** Closes what is open. An answer without text and calls gets an empty message: agents wait for one. */
  end(reason: 'stop' | 'length'): void {
    this.#close(reason === 'length' ? 'incomplete' : 'completed')
    if (reason === 'length' || this.#hasAnswer) return
    this.#openText('message')
    this.#close('completed')
  }

  /** JSON of all items, the open one as it is. */
  get output(): readonly string[] {
    if (this.#open === undefined) return this.done
    return [...this.done, JSON.stringify(this.#item(this.#open, 'incomplete'))]
  }

  #addReasoning(delta: string): void {
    const open = this.#open?.kind === 'reasoning' ? this.#open : this.#openText('reasoning')
    open.text += delta
    this.#tellPart('response.reasoning_text.delta', open, `"delta":${JSON.stringify(delta)}`)
  }

  #addText(delta: string): void {
    const open = this.#open?.kind === 'message' ? this.#open : this.#openText('message')
    open.text += delta
    const logprobs = this.#heldLogprobs
    this.#heldLogprobs = []
    open.logprobs.push(...logprobs)
    const members = `"delta":${JSON.stringify(delta)},"logprobs":${JSON.stringify(logprobs)}`
    this.#tellPart('response.output_text.delta', open, members)
  }

  #addCall({ index, id, name, argumentsDelta = '' }: CallDelta): void {
    if (name !== undefined) this.#openCall(index, id, name)
    const open = this.#open
    if (open?.kind !== 'call' || open.number !== index) throw new Error(`a piece of call ${index}, which is not open`)
    if (argumentsDelta === '') return
    open.text += argumentsDelta
    // The input of a custom tool stands inside of the arguments: it is told when they are complete.
    if (open.tool.kind === 'custom') return
    this.#tell('response.function_call_arguments.delta', open, `"delta":${JSON.stringify(argumentsDelta)}`)
  }

  #openText(kind: OpenText['kind']): OpenText {
    this.#close('completed')
    const open: OpenText = { kind, id: this.#itemId(kind === 'message' ? 'msg' : 'rs'), text: '', logprobs: [] }
    this.#announce(open)
    this.#tellPart('response.content_part.added', open, `"part":${JSON.stringify(partOf(open))}`)
    if (kind === 'message') this.#hasAnswer = true
    return open
  }

  #openCall(number: number, callId: string | undefined, name: string): void {
    this.#close('completed')
    const tool = this.#options.byModelName.get(name) ?? { kind: 'function', name }
    this.#announce({
      kind: 'call',
      id: this.#itemId(tool.kind === 'custom' ? 'ctc' : 'fc'),
      callId: callId ?? `call_${this.#options.id}x${number}`,
      number,
      tool,
      text: '',
    })
    this.#hasAnswer = true
  }

  #announce(open: OpenText | OpenCall): void {
    this.#open = open
    const item = { ...this.#item(open, 'in_progress'), ...(open.kind === 'call' ? {} : { content: [] }) }
    this.#options.tell(
      'response.output_item.added',
      `"output_index":${this.done.length},"item":${JSON.stringify(item)}`,
    )
  }

  #close(wanted: 'completed' | 'incomplete'): void {
    const open = this.#open
    if (open === undefined) return
    const status = wanted === 'incomplete' && open.kind === 'call' && isJson(open.text) ? 'completed' : wanted
    const item = JSON.stringify(this.#item(open, status))
    if (open.kind !== 'call') this.#closeText(open)
    else if (status === 'completed') this.#closeCall(open)
    if (open.kind !== 'call' || status === 'completed') {
      this.#options.tell('response.output_item.done', `"output_index":${this.done.length},"item":${item}`)
    }
    this.done.push(item)
    this.#open = undefined
  }

  #closeText(open: OpenText): void {
    const text = `"text":${JSON.stringify(open.text)}`
    if (open.kind === 'reasoning') this.#tellPart('response.reasoning_text.done', open, text)
    else this.#tellPart('response.output_text.done', open, `${text},"logprobs":${JSON.stringify(open.logprobs)}`)
    this.#tellPart('response.content_part.done', open, `"part":${JSON.stringify(partOf(open))}`)
  }

  #closeCall(open: OpenCall): void {
    if (open.tool.kind === 'custom') {
      const input = JSON.stringify(inputOfArguments(open.text))
      this.#tell('response.custom_tool_call_input.delta', open, `"delta":${input}`)
      this.#tell('response.custom_tool_call_input.done', open, `"input":${input}`)
      return
    }
    const members = `"name":${JSON.stringify(open.tool.name)},"arguments":${JSON.stringify(open.text)}`
    this.#tell('response.function_call_arguments.done', open, members)
  }

  #item(open: OpenText | OpenCall, status: ItemStatus): object {
    if (open.kind === 'call') return callItem(open, status)
    const { id, kind, text } = open
    const content = [partOf(open)]
    if (kind === 'message') return { id, type: 'message', status, role: 'assistant', content }
    const sealed = this.#options.sealsReasoning && { encrypted_content: text === '' ? '' : sealReasoning(text) }
    return { id, type: 'reasoning', summary: [], content, ...sealed, status }
  }

  #itemId(prefix: string): string {
    return `${prefix}_${this.#options.id}${this.done.length}`
  }

  #tell(type: string, open: OpenText | OpenCall, members: string): void {
    this.#options.tell(type, `"item_id":"${open.id}","output_index":${this.done.length},${members}`)
  }

  #tellPart(type: string, open: OpenText, members: string): void {
    this.#tell(type, open, `"content_index":0,${members}`)
  }
}

function callItem({ id, callId, tool, text }: OpenCall, status: ItemStatus): object {
  const { name, namespace } = tool
  const named = { name, ...(namespace === undefined ? {} : { namespace }) }
  if (tool.kind === 'custom') {
    const input = status === 'in_progress' ? '' : inputOfArguments(text)
    return { id, type: 'custom_tool_call', call_id: callId, ...named, input, status }
  }
  return { id, type: 'function_call', status, call_id: callId, ...named, arguments: text }
}

function partOf(open: OpenText): object {
  if (open.kind === 'reasoning') return { type: 'reasoning_text', text: open.text }
  return { type: 'output_text', annotations: [], logprobs: open.logprobs, text: open.text }
}

/** Whether a call that the answer's length cut off was complete already. */
function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

function wireLogprob(entry: TokenLogprob & { readonly top: readonly TokenLogprob[] }): object {
  return { ...wireToken(entry), top_logprobs: entry.top.map(wireToken) }
}

function wireToken({ text, bytes, logprob }: TokenLogprob) {
  // JSON has no infinities; -9999 is what OpenAI's own API documents for a token that is all but impossible.
  return { token: text, logprob: Number.isFinite(logprob) ? logprob : -9999, bytes }
}
