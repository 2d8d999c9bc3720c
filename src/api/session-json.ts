// Sessions, their events and contexts as JSON. Invariant: names are in the API's spelling, tools as they were sent.

import type { ChatMessage, ToolDefinition } from '../core/request.js'
import type {
  CompactionView,
  ContextView,
  SessionEvent,
  SessionRecord,
  SessionState,
  SharedMemory,
  SourceView,
} from '../session/contract.js'
import { snakeKeys } from './snake-keys.js'

export function sessionObject(session: SessionRecord | SessionState): object {
  const { id, tenant, model, createdAt, usedAt, position, parent, metadata } = session
  return {
    id,
    object: 'session',
    tenant,
    model,
    created: Math.floor(createdAt / 1000),
    created_ms: createdAt,
    used_ms: usedAt,
    position,
    ...('turns' in session && { turns: session.turns, events: session.events, busy: session.busy }),
    ...(parent && { parent: { session: parent.session, at: parent.at } }),
    metadata: metadata === undefined ? {} : (JSON.parse(metadata) as object),
  }
}

export function eventObject({
  id,
  session,
  position,
  at,
  sources,
  layer,
  digest,
  previous,
  body,
}: SessionEvent): object {
  const { kind, ...own } = wireBody(body)
  return {
    object: 'session.event',
    id,
    session,
    position,
    created_ms: at,
    type: kind,
    ...(snakeKeys(own, NAMED) as object),
    sources,
    ...(layer !== undefined && { layer }),
    digest,
    previous,
  }
}

/** Members with ids of sources and blocks as their keys. */
const NAMED = ['verdicts', 'shared', 'tools']

/** `id` is the event's; what else has one says of what. */
function wireBody(body: SessionEvent['body']): { readonly kind: string } & Readonly<Record<string, unknown>> {
  if (body.kind === 'head') return { ...body, ...(body.tools && { tools: body.tools.map(toolObject) }) }
  if (body.kind === 'tool_call') {
    const { id, ...rest } = body
    return { ...rest, callId: id }
  }
  if (body.kind === 'layer') {
    const { id, sources: _, ...rest } = body
    return { ...rest, layerId: id }
  }
  // Their own `digest` and `sources` are not the event's.
  if (body.kind === 'turn') {
    const { digest, ...rest } = body
    return { ...rest, contextDigest: digest }
  }
  if (body.kind === 'revocation') {
    const { sources, ...rest } = body
    return { ...rest, revoked: sources }
  }
  return { ...body }
}

function toolObject({ json }: ToolDefinition): object {
  return JSON.parse(json) as object
}

function messageObject({ role, content, name, toolCalls, toolCallId, reasoning }: ChatMessage): object {
  return {
    role,
    content,
    ...(name !== undefined && { name }),
    ...(reasoning !== undefined && { reasoning_content: reasoning }),
    ...(toolCalls !== undefined && {
      tool_calls: toolCalls.map((call) => ({
        id: call.id,
        type: 'function',
        function: { name: call.name, arguments: call.arguments },
      })),
    }),
    ...(toolCallId !== undefined && { tool_call_id: toolCallId }),
  }
}

export function contextObject({ messages, tail, tools, turn, matches, ...view }: ContextView): object {
  return {
    object: 'session.context',
    ...(turn !== undefined && { turn, matches }),
    ...(snakeKeys(view) as object),
    tools: tools.map(toolObject),
    messages: messages.map(messageObject),
    tail: tail.map(messageObject),
  }
}

export function compactionObject({ event, charsBefore, charsAfter, steps }: CompactionView): object {
  return {
    object: 'session.compaction',
    position: event.position,
    chars_before: charsBefore,
    chars_after: charsAfter,
    steps,
  }
}

export function sourceObject({ source, state, at, sessions }: SourceView): object {
  return {
    id: source,
    object: 'source',
    state,
    changed_ms: at,
    sessions: sessions.map(({ session, cleanLayer }) => ({ session, clean_layer: cleanLayer ?? null })),
  }
}

export function memoryObject({ id, label, value, limitTokens }: SharedMemory): object {
  return { id, object: 'memory', label, value, ...(limitTokens !== undefined && { limit_tokens: limitTokens }) }
}
