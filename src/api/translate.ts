// A request whose dialect its backend has not: asked as a chat, answered in its own dialect. Invariant: decoder and encoder
// are those that serve the embedded engine, so a client sees no difference. The one place of the forwarding path where a
// whole body is parsed.

import { readBody } from './body.js'
import { forwardBody } from './body-edit.js'
import { BodyScan } from './body-scan.js'
import { chatJson } from './chat-json.js'
import type { Translation } from './contract.js'
import type { About, Dialect, Envelope } from './dialect/contract.js'
import * as dialects from './dialect/index.js'

/** Dialects that can be told as a chat. */
const TRANSLATED: readonly Dialect[] = (Object.values(dialects) as Dialect[]).filter(
  ({ path }) => path === '/v1/messages' || path === '/v1/responses',
)

/** The dialect of `path`, where its requests can be asked as a chat. */
export function translatable(path: string): Dialect | undefined {
  return TRANSLATED.find((dialect) => dialect.path === path)
}

export interface Translating {
  readonly dialect: Dialect
  readonly bytes: Buffer
  readonly envelope: Envelope
  /** The model's name at its members. */
  readonly model: string
  readonly about: Omit<About, 'id' | 'created'>
}

/** @throws RefrainError where the dialect refuses the body, or a chat cannot say it. */
export function translate({ dialect, bytes, envelope, model, about }: Translating): Translation {
  const decoded = dialect.decode(readBody(bytes), envelope)
  const scan = new BodyScan(Buffer.from(chatJson({ ...decoded.requests[0], model })))
  const told = { ...about, id: dialect.idPrefix + envelope.id, created: Math.floor(Date.now() / 1000) }
  const { ignored } = decoded
  if (decoded.stream) {
    const encoder = decoded.streamEncoder(told)
    return {
      body: forwardBody(scan),
      ignored,
      event: (event) => encoder.event(event),
      end: () => encoder.ending,
      failure: (error) => encoder.failure(error),
    }
  }
  const encoder = decoded.bodyEncoder(told)
  return {
    body: forwardBody(scan),
    ignored,
    event(event) {
      encoder.event(event)
      return ''
    },
    end: () => encoder.body(),
    failure: () => '',
  }
}
