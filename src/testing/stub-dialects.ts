// Answers of a stub upstream in the dialects beside chat: Anthropic's Messages and OpenAI's Responses, as one body or as a
// stream, a word a piece.

import type { ServerResponse } from 'node:http'
import { beginStream, type StubAnswer } from './stub-upstream.js'

/** One event of either dialect, whose data name its type too. */
export function told(type: string, more: object): string {
  return `event: ${type}\ndata: ${JSON.stringify({ type, ...more })}\n\n`
}

function whole(response: ServerResponse, body: object): void {
  response.writeHead(200, { 'content-type': 'application/json' })
  response.end(JSON.stringify(body))
}

/** Thinks `thought` first where there is one. */
export function messaging(words: readonly string[], thought = ''): StubAnswer {
  return ({ body }, response) => {
    const about = { id: 'msg_1', type: 'message', role: 'assistant', model: 'm', stop_sequence: null }
    const usage = { input_tokens: 40, output_tokens: words.length }
    const blocks = [...(thought === '' ? [] : [{ type: 'thinking', thinking: thought, signature: 's' }])]
    if (body['stream'] !== true) {
      const content = [...blocks, { type: 'text', text: words.join('') }]
      return whole(response, { ...about, content, stop_reason: 'end_turn', usage })
    }
    beginStream(response)
    const start = { ...about, content: [], stop_reason: null, usage: { input_tokens: 40, output_tokens: 1 } }
    response.write(told('message_start', { message: start }))
    for (const [index, block] of blocks.entries()) {
      const empty = { ...block, thinking: '', signature: '' }
      const delta = { type: 'thinking_delta', thinking: thought }
      response.write(told('content_block_start', { index, content_block: empty }))
      response.write(told('content_block_delta', { index, delta }) + told('content_block_stop', { index }))
    }
    const index = blocks.length
    response.write(told('content_block_start', { index, content_block: { type: 'text', text: '' } }))
    for (const text of words) {
      response.write(told('content_block_delta', { index, delta: { type: 'text_delta', text } }))
    }
    response.write(told('content_block_stop', { index }))
    const delta = { stop_reason: 'end_turn', stop_sequence: null }
    response.end(told('message_delta', { delta, usage: { output_tokens: words.length } }) + told('message_stop', {}))
  }
}

export function responding(words: readonly string[]): StubAnswer {
  return ({ body }, response) => {
    const text = words.join('')
    const part = { type: 'output_text', text, annotations: [] }
    const item = { type: 'message', id: 'item_1', role: 'assistant', status: 'completed', content: [part] }
    const usage = { input_tokens: 40, output_tokens: words.length, total_tokens: 40 + words.length }
    const about = { id: 'resp_1', object: 'response', created_at: 1, model: 'm', tools: [] }
    const done = { ...about, status: 'completed', output: [item], usage }
    if (body['stream'] !== true) return whole(response, done)
    beginStream(response)
    let sequence = 0
    const tell = (type: string, more: object) => response.write(told(type, { ...more, sequence_number: sequence++ }))
    const at = { item_id: 'item_1', output_index: 0, content_index: 0 }
    tell('response.created', { response: { ...about, status: 'in_progress', output: [] } })
    tell('response.output_item.added', { output_index: 0, item: { ...item, status: 'in_progress', content: [] } })
    tell('response.content_part.added', { ...at, part: { ...part, text: '' } })
    for (const delta of words) tell('response.output_text.delta', { ...at, delta })
    tell('response.output_text.done', { ...at, text })
    tell('response.content_part.done', { ...at, part })
    tell('response.output_item.done', { output_index: 0, item })
    tell('response.completed', { response: done })
    response.end()
  }
}
