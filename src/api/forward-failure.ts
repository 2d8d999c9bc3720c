// Errors in the shapes of the dialects that are sent on: a body while no byte is out, an event after that. Invariant: an
// event of a failure is the last thing of a stream; nothing that says a good end follows it.

import { anthropicError } from './dialect/anthropic-shape.js'
import { failureOf, responseJson } from './dialect/openai-responses-shape.js'
import { errorBody } from './dialect/openai-shape.js'

export interface FailureShape {
  body(error: unknown, requestId: string): string
  /** Whether a backend's refusal has this shape. */
  fits(body: string): boolean
  /** `written`: the first and the last bytes of the stream so far. */
  event(error: unknown, written: Written): string
  /** What is sent after a silence. */
  readonly keepalive: string
}

export interface Written {
  readonly id: string
  readonly first?: Buffer | string | undefined
  readonly last?: Buffer | string | undefined
}

const hasError = (body: string) => /"error"\s*:\s*\{/.test(body)

const openai: FailureShape = {
  fits: hasError,
  body: (error) => errorBody(error),
  event: (error) => `data: ${errorBody(error)}\n\n`,
  keepalive: ': keepalive\n\n',
}

const anthropic: FailureShape = {
  fits: (body) => hasError(body) && /"type"\s*:\s*"error"/.test(body),
  body: anthropicError,
  event: (error, { id }) => `event: error\ndata: ${anthropicError(error, id)}\n\n`,
  // The only sign of life that this API's clients know.
  keepalive: 'event: ping\ndata: {"type":"ping"}\n\n',
}

const responses: FailureShape = {
  fits: hasError,
  body: (error) => errorBody(error),
  event(error, { first, last }) {
    const id = /"id":\s?"(resp_[\w-]+)"/.exec(headOf(first))?.[1] ?? 'resp_0'
    const model = /"model":\s?"((?:[^"\\]|\\.)*)"/.exec(headOf(first))?.[1] ?? ''
    const number = Number([...headOf(last).matchAll(/"sequence_number":\s?(\d+)/g)].at(-1)?.[1] ?? -1) + 1
    const about = { id, model, created: Math.floor(Date.now() / 1000), forceUsage: false }
    const echo = '"metadata":{},"parallel_tool_calls":true,"tool_choice":"auto","tools":[]'
    const response = responseJson({ about, echo, status: 'failed', output: [], error: failureOf(error) })
    return `event: response.failed\ndata: {"type":"response.failed","sequence_number":${number},"response":${response}}\n\n`
  },
  keepalive: ': keepalive\n\n',
}

const HEAD_BYTES = 65_536

function headOf(bytes: Buffer | string | undefined): string {
  return bytes === undefined ? '' : bytes.slice(0, HEAD_BYTES).toString('utf8')
}

const SHAPES: Readonly<Record<string, FailureShape>> = {
  '/v1/messages': anthropic,
  '/v1/messages/count_tokens': anthropic,
  '/v1/responses': responses,
}

export function shapeOf(path: string): FailureShape {
  return SHAPES[path] ?? openai
}
