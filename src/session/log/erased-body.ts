// What is left of an event's body when its content is erased: its kind, and what pairs it with another (a call's id, a
// turn's number). Pure. Invariant: no text that a user, a tool or the model wrote, and no digest of it.

import type { EventBody, Keyed } from './event.js'

/** Ids are a client's or a model's own; what does not look like one is text. */
const ID = /^[\w.:-]{1,128}$/
const idOf = (id: string) => (ID.test(id) ? id : 'erased')

export function erasedBody(body: EventBody): EventBody {
  switch (body.kind) {
    case 'head':
      return { kind: 'head', apply: body.apply }
    case 'user':
    case 'assistant':
      return { kind: body.kind, content: '' }
    case 'tool_call':
      return { kind: 'tool_call', id: idOf(body.id), name: '', arguments: '{}' }
    case 'tool_result':
      return { kind: 'tool_result', callId: idOf(body.callId), content: '' }
    case 'attempt':
      return { kind: 'attempt', outcome: body.outcome, reason: '' }
    case 'note':
      return { kind: 'note', tail: body.tail, label: '', content: '' }
    case 'memory':
      return { kind: 'memory', label: '' }
    case 'compaction':
      return { kind: 'compaction', trigger: body.trigger, steps: [], charsBefore: 0, charsAfter: 0 }
    case 'policy':
      return { kind: 'policy', snapshot: { retention: body.snapshot.retention, revoked: [], shared: {} } }
    case 'turn':
      return { ...withoutKey(body), digest: '', promptDigest: '', rendering: '{}', verdicts: {} }
    // They name sources, layers and places, no content.
    case 'layer':
    case 'revocation':
    case 'fork':
    case 'reset':
    case 'usage':
      return withoutKey(body)
  }
}

/** A client's own name for an event is its text too. */
function withoutKey<B extends EventBody>(body: B & Keyed): B {
  const { key: _, ...rest } = body
  return rest as unknown as B
}
