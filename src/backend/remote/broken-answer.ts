// A chat stream that broke off behind content, so that another server can go on where it stopped. Invariant: only plain
// text is continued; what a client gets is one answer: one id, one role, one usage that counts both parts.

import { ChatEvents } from './chat-events.js'
import type { BrokenChat } from './contract.js'
import { dataOf } from './stream-watch.js'

type Json = Record<string, unknown>

/** Longer answers are not kept. */
const KEPT_BYTES = 4 * 1024 * 1024

export class BrokenAnswer implements BrokenChat {
  readonly #parts: Buffer[] = []
  #bytes = 0
  #first: Json | undefined
  #tokens = 0

  /** Whole events on their way to the client. */
  keep(bytes: Buffer): void {
    this.#bytes += bytes.length
    if (this.#bytes <= KEPT_BYTES) this.#parts.push(bytes)
  }

  /** Undefined: it cannot be continued. */
  soFar(): { readonly message: string; readonly tokens: number } | undefined {
    if (this.#bytes > KEPT_BYTES) return undefined
    const all = Buffer.concat(this.#parts)
    let content = ''
    let tokens = 0
    for (const event of new ChatEvents(0).add(all)) {
      if (event.type === 'end') return undefined
      if (event.type !== 'token') continue
      const { split } = event
      if (event.logprobs !== undefined || split === undefined || split.reasoning !== '' || split.calls.length > 0) {
        return undefined
      }
      content += split.content
      tokens++
    }
    if (content === '') return undefined
    this.#first ??= jsonOf(dataIn(all)[0])
    this.#tokens = tokens
    return { message: `{"role":"assistant","content":${JSON.stringify(content)}}`, tokens }
  }

  /** Events of the server that goes on, as the rest of the first one's. */
  continued(bytes: Buffer): Buffer {
    const events = dataIn(bytes).map((data) => this.#event(data))
    return Buffer.from(events.join(''))
  }

  #event(data: string): string {
    const chunk = data === '[DONE]' ? undefined : jsonOf(data)
    if (chunk === undefined) return `data: ${data}\n\n`
    const choices = Array.isArray(chunk['choices']) ? (chunk['choices'] as Json[]) : []
    for (const choice of choices) {
      const delta = choice['delta'] as Json | undefined
      if (delta?.['role'] === undefined) continue
      // The role was told, and what comes with it is mostly nothing.
      if (!delta['content'] && choice['finish_reason'] == null) return ''
      choice['delta'] = { ...delta, role: undefined }
    }
    const usage = chunk['usage'] as Json | null | undefined
    if (usage) chunk['usage'] = this.#usage(usage)
    const { id = chunk['id'], created = chunk['created'] } = this.#first ?? {}
    return `data: ${JSON.stringify({ ...chunk, id, created })}\n\n`
  }

  /** What the second server takes for the end of its prompt was the first one's to say. */
  #usage(usage: Json): Json {
    const prompt = numberOf(usage['prompt_tokens']) - this.#tokens
    const completion = numberOf(usage['completion_tokens']) + this.#tokens
    return { ...usage, prompt_tokens: prompt, completion_tokens: completion }
  }
}

function dataIn(bytes: Buffer): string[] {
  return bytes
    .toString('utf8')
    .split(/\r?\n\r?\n/)
    .flatMap((event) => dataOf(Buffer.from(event)) ?? [])
}

function jsonOf(data: string | undefined): Json | undefined {
  try {
    const value: unknown = JSON.parse(data ?? '')
    return typeof value === 'object' && value !== null ? (value as Json) : undefined
  } catch {
    // Goes through as it is.
    return undefined
  }
}

function numberOf(value: unknown): number {
  return typeof value === 'number' ? value : 0
}
