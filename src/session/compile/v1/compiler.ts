// Version 1 of the compiler: from scratch, and a few events at a time. Invariant: both give the same bytes, because both take
// the same events through the same fold; only what a revocation takes away is folded anew.

import type { EventBody, PolicySnapshot, SessionEvent } from '../../log/event.js'
import type { CompiledContext, IncrementalCompiler } from '../contract.js'
import { Fold } from './fold.js'
import { Layout } from './render.js'

export function compileV1(events: readonly SessionEvent[], policy: PolicySnapshot): CompiledContext {
  const compiler = incrementalV1()
  compiler.append(events)
  return compiler.compile(policy)
}

export function incrementalV1(): IncrementalCompiler {
  return new Incremental()
}

class Incremental implements IncrementalCompiler {
  readonly #events: SessionEvent[] = []
  /** All sources that events rest on, and those that the log revoked. */
  readonly #sources = new Set<string>()
  readonly #revoked = new Set<string>()
  #fold = new Fold(new Set())
  #folded = 0
  #applied: ReadonlySet<string> = new Set()
  #layout = new Layout()

  get position(): number {
    return this.#events.length
  }

  append(events: readonly SessionEvent[]): void {
    for (const event of events) {
      if (event.position !== this.#events.length + 1) {
        throw new Error(`no log: event ${event.position} stands behind event ${this.#events.length}`)
      }
      this.#events.push(event)
      for (const source of event.sources) this.#sources.add(source)
      if (event.body.kind === 'policy')
        for (const source of sharedSources(event.body.snapshot)) this.#sources.add(source)
      if (event.body.kind === 'revocation') for (const source of event.body.sources) this.#revoked.add(source)
    }
  }

  compile(policy: PolicySnapshot): CompiledContext {
    this.#refold(policy)
    return this.#layout.compile(this.#fold, policy)
  }

  trial(events: readonly EventBody[], policy: PolicySnapshot): CompiledContext {
    this.#refold(policy)
    const fold = this.#fold.clone()
    for (const [i, body] of events.entries()) fold.add(eventAt(body, this.position + 1 + i))
    return new Layout().compile(fold, policy)
  }

  #refold(policy: PolicySnapshot): void {
    const revoked = this.#effective(policy)
    if (revoked.size !== this.#applied.size || [...revoked].some((source) => !this.#applied.has(source))) {
      this.#fold = new Fold(revoked)
      this.#layout = new Layout()
      this.#folded = 0
      this.#applied = revoked
    }
    for (; this.#folded < this.#events.length; this.#folded++) this.#fold.add(this.#events[this.#folded]!)
  }

  /** Revoked sources that anything here rests on. */
  #effective(policy: PolicySnapshot): ReadonlySet<string> {
    const shared = new Set(sharedSources(policy))
    const rests = (source: string) => this.#sources.has(source) || shared.has(source)
    return new Set([...policy.revoked, ...this.#revoked].filter(rests))
  }
}

/** An event that is in no log. */
function eventAt(body: EventBody, position: number): SessionEvent {
  return { body, ...{ id: '', session: '', tenant: '', at: 0, sources: [], digest: '', previous: '' }, position }
}

function sharedSources({ shared }: PolicySnapshot): string[] {
  return Object.values(shared).flatMap(({ sources }) => sources ?? [])
}
