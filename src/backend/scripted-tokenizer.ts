// The text side of the scripted backend: a tokenizer without a vocabulary (three UTF-8 bytes a token) and a template
// without jinja. Invariant: decode(encode(text)) is text, byte for byte, and equal prefixes give equal ids up to the
// token that the difference falls into. Stands where a real model's tokenizer and template stand, steps 4 and 5.

import type { ChatMessage } from '../core/request.js'
import type { ChatTemplate, Detokenizer, RenderOptions, Tokenizer } from '../prompt/contract.js'

/** The id that ends an answer. */
export const END_ID = 0
const ONE = 1
const TWO = ONE + 0x100
const THREE = TWO + 0x10000
const VOCAB_SIZE = THREE + 0x1000000
const END_SPELLING = '<end>'

/**
 * Bytes a token: 3. Ids: 0 ends; then all one-byte, two-byte and three-byte strings in order.
 *
 *   0 | 1 .. 256 | 257 .. 65792 | 65793 .. 16843008
 *   end  1 byte     2 bytes        3 bytes
 */
export function createScriptedTokenizer(): Tokenizer {
  const bytesOf = (id: number): Uint8Array => {
    if (id >= THREE) return Uint8Array.of((id - THREE) >> 16, ((id - THREE) >> 8) & 255, (id - THREE) & 255)
    if (id >= TWO) return Uint8Array.of((id - TWO) >> 8, (id - TWO) & 255)
    return id >= ONE ? Uint8Array.of(id - ONE) : new Uint8Array(0)
  }
  return {
    vocabSize: VOCAB_SIZE,
    eosTokenIds: [END_ID],
    encode(text) {
      const bytes = Buffer.from(text, 'utf8')
      const whole = Math.floor(bytes.length / 3)
      const rest = bytes.length - whole * 3
      const ids = new Int32Array(whole + (rest > 0 ? 1 : 0))
      for (let i = 0; i < whole; i++) {
        const at = i * 3
        ids[i] = THREE + ((bytes[at] as number) << 16) + ((bytes[at + 1] as number) << 8) + (bytes[at + 2] as number)
      }
      if (rest === 1) ids[whole] = ONE + (bytes[whole * 3] as number)
      if (rest === 2) ids[whole] = TWO + ((bytes[whole * 3] as number) << 8) + (bytes[whole * 3 + 1] as number)
      return ids
    },
    decode(ids, options) {
      const parts: Uint8Array[] = []
      for (let i = 0; i < ids.length; i++) {
        const id = ids[i] as number
        parts.push(id === END_ID && options?.special === 'keep' ? Buffer.from(END_SPELLING) : bytesOf(id))
      }
      return Buffer.concat(parts).toString('utf8')
    },
    bytesOf,
    spellingOf: (id) => (id === END_ID ? END_SPELLING : Buffer.from(bytesOf(id)).toString('latin1')),
    isSpecial: (id) => id === END_ID,
    specialId: (spelling) => (spelling === END_SPELLING ? END_ID : undefined),
    stream: () => createByteStream(bytesOf),
  }
}

function createByteStream(bytesOf: (id: number) => Uint8Array): Detokenizer {
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  return {
    push: (id) => decoder.decode(bytesOf(id), { stream: true }),
    end: () => decoder.decode(),
  }
}

/** Plain text: tools as one line of JSON each, then `role: content` lines. Prefixes of a chat render to prefixes. */
export function createScriptedTemplate(): ChatTemplate {
  return {
    render(messages, options: RenderOptions) {
      const tools = options.tools.map((tool) => `tool: ${tool.json}\n`).join('')
      let text = tools
      const spans = messages.map((message, i) => {
        const start = text.length
        text += line(message)
        return { message: i, start, end: text.length }
      })
      const tail = text.length
      return { text: text + (options.addGenerationPrompt ? 'assistant: ' : ''), spans, tail }
    },
  }
}

function line(message: ChatMessage): string {
  const calls = (message.toolCalls ?? []).map((call) => ` ${call.name}(${call.arguments})`).join('')
  return `${message.role}: ${message.content}${calls}\n`
}
