// What of a session's log is asked for at every turn, kept while events are added: turns, open calls, the head as it was
// asked for, messages that nobody answered yet. Invariant: a function of the events in their order, and of nothing else.

import type { ToolDefinition } from '../core/request.js'
import { isBuiltInTool, type MemoryBlock } from './built-ins.js'
import type { EventBody, MemoryEvent, PolicySnapshot, SessionEvent, UsageEvent } from './log/event.js'

/** Tools and system text as they were asked for last, in force or not yet. */
export interface AskedHead {
  readonly system: string
  readonly tools: readonly ToolDefinition[]
}

export class SessionFold {
  /** Turns that were sent. */
  turns = 0
  head: AskedHead = { system: '', tools: [] }
  /** Names of the server's own tools that it was given; a client's own tool of such a name is the client's. */
  readonly builtIns = new Set<string>()
  /** What the last compile went by. */
  policy: PolicySnapshot | undefined
  usage: UsageEvent | undefined
  /** Position of `usage`. */
  usageAt = 0
  /** Calls without a result, by id; of two of one id the later. */
  readonly openCalls = new Map<string, { readonly name: string; readonly position: number }>()
  /** Events' names by their clients -> position. */
  readonly keys = new Map<string, number>()
  /** Sources that were revoked, what was made of them erased. */
  readonly gone = new Set<string>()
  /** All that its events rest on. */
  readonly sources = new Set<string>()
  /** By label. */
  readonly memory = new Map<string, MemoryBlock>()
  /** Messages that no finished turn answered yet. */
  unanswered: SessionEvent[] = []
  /** A turn failed or was left since the last of them. */
  wasTried = false
  /** The model or a client asked for a compaction that has not come yet. */
  compactAsked = false
  /** Position of the last event that changed what came before it: a compaction, a reset, a revocation, a head at once. */
  boundaryAt = 0
  boundaryKind: 'head' | 'compaction' | 'revocation' = 'head'
  /** UTF-16 units of all bodies, about. */
  chars = 0

  add(event: SessionEvent): void {
    const { body, position } = event
    for (const source of event.sources) this.sources.add(source)
    if (body.key !== undefined) this.keys.set(body.key, position)
    this.chars += weightOf(body)
    switch (body.kind) {
      case 'head':
        if (body.apply === 'now') this.#boundary(position, 'head')
        this.head = { system: body.system ?? this.head.system, tools: body.tools ?? this.head.tools }
        // One that was taken away may still be in view until the next boundary.
        for (const tool of body.tools ?? [])
          if (isBuiltInTool(tool)) this.builtIns.add(tool.name)
          else this.builtIns.delete(tool.name)
        break
      case 'turn':
        this.turns = body.turn
        break
      case 'policy':
        this.policy = body.snapshot
        for (const source of this.gone) if (!body.snapshot.revoked.includes(source)) this.gone.delete(source)
        break
      case 'usage':
        this.usage = body
        this.usageAt = position
        this.unanswered = []
        this.wasTried = false
        break
      case 'attempt':
        this.wasTried = true
        break
      case 'compaction':
        this.#boundary(position, 'compaction')
        if (body.trigger !== 'ttl') this.compactAsked = false
        break
      case 'reset':
      case 'revocation':
        if (body.kind === 'revocation') for (const source of body.sources) this.gone.add(source)
        this.#boundary(position, body.kind === 'reset' ? 'compaction' : 'revocation')
        this.unanswered = []
        break
      case 'memory':
        this.#remember(body)
        break
      default:
        this.#say(event)
    }
  }

  #say(event: SessionEvent): void {
    const { body, position } = event
    // In this order: a call of the session's own is answered by whoever made it.
    if (body.kind === 'tool_call') {
      this.openCalls.set(body.id, { name: body.name, position })
      if (body.name === 'compact' && this.builtIns.has(body.name)) this.compactAsked = true
    }
    if (body.kind === 'tool_result') this.openCalls.delete(body.callId)
    if (isMessage(body)) {
      this.unanswered.push(event)
      this.wasTried = false
    }
  }

  #boundary(position: number, kind: SessionFold['boundaryKind']): void {
    // A revocation explains whatever else is rewritten with it.
    if (this.boundaryAt > this.usageAt && this.boundaryKind === 'revocation') return
    this.boundaryAt = position
    this.boundaryKind = kind
  }

  #remember({ label, value, limitTokens, shared }: MemoryEvent): void {
    if (value === undefined) this.memory.delete(label)
    else {
      const more = { ...(limitTokens !== undefined && { limitTokens }), ...(shared !== undefined && { shared }) }
      this.memory.set(label, { value, ...more })
    }
  }

  /** Ids of shared memory blocks that it sees. */
  get shared(): ReadonlySet<string> {
    return new Set([...this.memory.values()].flatMap(({ shared }) => shared ?? []))
  }
}

function isMessage(body: EventBody): boolean {
  return (
    body.kind === 'user' ||
    body.kind === 'assistant' ||
    body.kind === 'tool_call' ||
    body.kind === 'tool_result' ||
    (body.kind === 'note' && body.tail === 'kept')
  )
}

/** Of an event without its texts. */
const EVENT_CHARS = 200

export function weightOf(body: EventBody): number {
  let chars = EVENT_CHARS
  for (const value of Object.values(body)) if (typeof value === 'string') chars += value.length
  if (body.kind === 'head') for (const { json } of body.tools ?? []) chars += json.length
  return chars
}
