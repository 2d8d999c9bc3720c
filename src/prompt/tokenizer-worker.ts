// The tokenizer's thread: segments in, ids out, one message after the other. Its vocabulary is its own copy, made from the
// same tokenizer.json. Started by tokenizer-thread.ts, which says what becomes of a failure: an error here ends the thread.

import { parentPort, workerData } from 'node:worker_threads'
import { IdList } from './bpe.js'
import { SegmentEncoder } from './segment-encoder.js'
import { parseTokenizerJson } from './tokenizer-json.js'
import type { ThreadReply, ThreadRequest, ThreadSetup } from './tokenizer-thread.js'

if (parentPort === null) throw new Error('tokenizer-worker.js is started by the tokenizer')
const parent = parentPort
const encoder = new SegmentEncoder(parseTokenizerJson((workerData as ThreadSetup).tokenizerJson))
const list = new IdList()

parent.on('message', ({ id, segments }: ThreadRequest) => {
  const ids = segments.map((segment) => {
    list.length = 0
    encoder.encode(segment, list)
    return list.copy(0)
  })
  const reply: ThreadReply = { id, ids }
  parent.postMessage(
    reply,
    ids.map(({ buffer }) => buffer as ArrayBuffer),
  )
})
