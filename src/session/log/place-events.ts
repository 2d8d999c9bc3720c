// Gives the events of an append their place: position, id, time, sources, digest. Pure but for ids and time, one for every
// store, which says how bytes are sealed and keeps what comes back. Invariant: it throws before anything of it is kept.

import { RefrainError } from '../../core/errors.js'
import type { Append } from './contract.js'
import { contribute, type NamedSources, type Rests, type Sources } from './contributing.js'
import type { NewEvent, SessionEvent } from './event.js'
import { type EventPlace, eventDigest } from './event-digest.js'
import { newEventId } from './ids.js'

/** Where a session stands before an append. */
export interface Standing {
  readonly tenant: string
  readonly session: string
  readonly position: number
  /** Digest of the event at `position`. */
  readonly digest: string
  /** Time of its last event; later ones are not before it. */
  readonly at: number
  /** Stored bytes of its own events. */
  readonly bytes: number
  readonly rests: Rests
}

export interface PlaceOptions {
  readonly named: NamedSources
  readonly limits: AppendLimits
  /** Unix milliseconds. */
  readonly now: number
  /** Stored bytes of an event's content. */
  seal(place: EventPlace, content: StoredContent): Uint8Array
}

/** Bounds of one session, from config `sessions.log`. */
export interface AppendLimits {
  /** Its parents' events included. */
  readonly sessionEvents: number
  readonly sessionBytes: number
  /** Different ones that one event may rest on. */
  readonly sources: number
}

/** What of an event is not its place. */
export type StoredContent = Pick<SessionEvent, 'body' | 'sources' | 'layer' | 'erased'>

export interface PlacedEvent {
  readonly event: SessionEvent
  readonly bytes: Uint8Array
}

/** What later events are looked up by. */
export type NameKind = 'call' | 'layer' | 'artifact'

export interface EventName {
  readonly kind: NameKind
  readonly name: string
  readonly position: number
  readonly sources: Sources
}

/** What the context rests on from the event at `position` on. */
export interface RestsAt {
  readonly position: number
  readonly rests: Rests
}

export interface Placed {
  readonly events: readonly PlacedEvent[]
  readonly names: readonly EventName[]
  /** Where what the context rests on changed: a fork may begin in the midst of an append. */
  readonly turns: readonly RestsAt[]
  readonly after: Standing
}

const MAX_SOURCE_CHARS = 512

/** @throws RefrainError `conflict`, `session_limit`, `invalid_request`; nothing is changed then. */
export function placeEvents(standing: Standing, append: Append, options: PlaceOptions): Placed {
  const { position, session } = standing
  if (append.expected !== undefined && append.expected !== position) {
    const where = `the session stands at position ${position}, not at ${append.expected}`
    throw new RefrainError('conflict', `${where}; read what was added and try again`, { param: 'expected_position' })
  }
  const names = new Names(options.named)
  const events: PlacedEvent[] = []
  const turns: RestsAt[] = []
  let after = standing
  for (const [i, fresh] of append.events.entries()) {
    check(fresh, names, `events[${i}]`)
    const { sources, rests } = contribute(after.rests, fresh, names)
    const at = Math.max(options.now, after.at)
    const place = { session, position: after.position + 1, id: newEventId(), at, kind: fresh.body.kind }
    const content = { body: fresh.body, sources, ...(fresh.layer !== undefined && { layer: fresh.layer }) }
    const bytes = options.seal(place, content)
    const digest = eventDigest(after.digest, place, bytes)
    const { id } = place
    const event = { id, session, tenant: standing.tenant, position: place.position, at, digest, previous: after.digest }
    events.push({ event: { ...event, ...content }, bytes })
    names.add(fresh, place.position, sources)
    if (rests !== after.rests) turns.push({ position: place.position, rests })
    after = { ...after, position: place.position, digest, at, bytes: after.bytes + bytes.length, rests }
    checkLimits(after, sources, options.limits)
  }
  return { events, names: names.added, turns, after }
}

/** Names of this append's own events before those of earlier ones. */
class Names implements NamedSources {
  readonly #earlier: NamedSources
  readonly added: EventName[] = []

  constructor(earlier: NamedSources) {
    this.#earlier = earlier
  }

  call(id: string): Sources | undefined {
    return this.#own('call', id) ?? this.#earlier.call(id)
  }

  layer(id: string): Sources | undefined {
    return this.#own('layer', id) ?? this.#earlier.layer(id)
  }

  artifact(locator: string): Sources | undefined {
    return this.#own('artifact', locator) ?? this.#earlier.artifact(locator)
  }

  add({ body }: NewEvent, position: number, sources: Sources): void {
    if (body.kind === 'tool_call') this.added.push({ kind: 'call', name: body.id, position, sources })
    if (body.kind === 'layer') this.added.push({ kind: 'layer', name: body.id, position, sources })
    if (body.kind === 'tool_result' && body.spilled !== undefined)
      this.added.push({ kind: 'artifact', name: body.spilled.locator, position, sources })
  }

  #own(kind: NameKind, name: string): Sources | undefined {
    return this.added.findLast((each) => each.kind === kind && each.name === name)?.sources
  }
}

function check({ body, sources, layer }: NewEvent, names: NamedSources, path: string): void {
  const known = (id: string | undefined, param: string) => {
    if (id === undefined || names.layer(id) !== undefined) return
    throw new RefrainError('invalid_request', `no layer '${id}' was reported, so nobody knows what it rests on`, {
      param,
    })
  }
  known(layer, `${path}.layer`)
  for (const source of [...(sources ?? []), ...(body.kind === 'layer' ? body.sources : [])]) {
    if (source !== '' && source.length <= MAX_SOURCE_CHARS) continue
    throw new RefrainError('invalid_request', `a source's id has 1 to ${MAX_SOURCE_CHARS} characters`, {
      param: `${path}.sources`,
    })
  }
  if (body.kind !== 'layer') return
  known(body.parent, `${path}.parent`)
  if (names.layer(body.id) === undefined) return
  throw new RefrainError('invalid_request', `layer '${body.id}' was reported before; a layer does not change`, {
    param: `${path}.id`,
  })
}

function checkLimits({ position, bytes }: Standing, sources: Sources, limits: AppendLimits): void {
  const over =
    position > limits.sessionEvents
      ? `${limits.sessionEvents} events (sessions.log.sessionEvents)`
      : bytes > limits.sessionBytes
        ? `${limits.sessionBytes} bytes (sessions.log.sessionBytes)`
        : sources.length > limits.sources
          ? `${limits.sources} sources (sessions.log.sources)`
          : undefined
  if (over === undefined) return
  throw new RefrainError('session_limit', `a session may have ${over}; begin a new one, or fork this one earlier`)
}
