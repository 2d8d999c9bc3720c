// The body of a context as it grows: events become entries, compactions take entries away and leave something in their
// place. Invariant: events are taken in the order of the log, each once; what a step takes away it takes whole.

import type {
  AssistantEvent,
  CompactionEvent,
  CompactionStep,
  NoteEvent,
  ToolCallEvent,
  ToolResultEvent,
  UserEvent,
} from '../../log/event.js'
import type { MadeBy } from '../contract.js'
import { locatorAt } from '../locator.js'
import { type Batch, type CallState, type Entry, isOpen, type Single, sourcesOf, spanOf } from './entries.js'
import { lateMessage, noteMessage, type Of, userMessage } from './messages.js'
import { placeholderText, snipText, summaryText } from './words.js'

interface Marking {
  readonly made: MadeBy
  readonly role: 'system' | 'user'
  readonly content: string
  readonly from: number
  readonly to: number
  readonly sources: readonly string[]
}

/** A message that the compiler wrote. */
function written({ made, role, content, from, to, sources }: Marking): Single {
  return { kind: 'single', message: { role, content }, from, to, made, sources }
}

/** One session's body. */
export class Body {
  #entries: Entry[] = []
  /** Calls that a result may still come for, by their id; the latest last. */
  #open = new Map<string, { readonly batch: Batch; readonly call: CallState }[]>()
  #changedFrom = 0

  get entries(): readonly Entry[] {
    return this.#entries
  }

  /** One that goes on from here by itself. */
  clone(): Body {
    const copy = new Body()
    const batches = new Map<Batch, Batch>()
    copy.#entries = this.#entries.map((entry) => {
      if (entry.kind === 'single') return entry
      const batch = { ...entry, calls: entry.calls.map((call) => ({ ...call })) }
      batches.set(entry, batch)
      return batch
    })
    for (const [id, waiting] of this.#open) {
      const copies = waiting.flatMap(({ batch, call }) => {
        const twin = batches.get(batch)
        const at = batch.calls.indexOf(call)
        return twin === undefined || at < 0 ? [] : [{ batch: twin, call: twin.calls[at] as CallState }]
      })
      copy.#open.set(id, copies)
    }
    return copy
  }

  /** Index of the first entry that has changed, or that another follows now, since this was asked the last time. */
  takeChanges(): number {
    const from = this.#changedFrom
    this.#changedFrom = this.#entries.length
    return from
  }

  /** The summary that it begins with. */
  get summary(): Single | undefined {
    const first = this.#entries[0]
    return first?.kind === 'single' && first.made === 'summary' ? first : undefined
  }

  clear(): void {
    this.#entries = []
    this.#open.clear()
    this.#changedFrom = 0
  }

  user(event: Of<UserEvent>): void {
    this.#single(userMessage(event), event)
  }

  note(event: Of<NoteEvent>): void {
    this.#single(noteMessage(event), event)
  }

  write(marking: Marking): void {
    this.#push(written(marking))
  }

  answer(event: Of<AssistantEvent>): void {
    this.#push({ kind: 'batch', answer: event, calls: [] })
  }

  /** Calls belong to the answer in front of them, until one of them has its result. */
  call(event: Of<ToolCallEvent>): void {
    const call: CallState = { event, result: undefined, late: undefined, instead: undefined }
    let batch = this.#entries.at(-1)
    if (batch?.kind === 'batch' && batch.calls.every(({ result }) => result === undefined)) {
      batch.calls.push(call)
      this.#touch(this.#entries.length - 1)
    } else {
      batch = { kind: 'batch', answer: undefined, calls: [call] }
      this.#push(batch)
    }
    const waiting = this.#open.get(event.body.id) ?? []
    waiting.push({ batch, call })
    this.#open.set(event.body.id, waiting)
  }

  /** False: there is no call that waits for it, and it is not shown. */
  result(event: Of<ToolResultEvent>): boolean {
    const waiting = this.#take(event.body.callId)
    if (waiting === undefined) return false
    const { batch, call } = waiting
    if (batch === this.#entries.at(-1)) {
      call.result = event
      this.#touch(this.#entries.length - 1)
    } else {
      // What was shown without it stays as it is.
      call.late = event
      const { position, sources } = event
      this.#push({
        ...{ kind: 'single', message: lateMessage(event, call.event), from: position, to: position, made: 'late' },
        sources,
      })
    }
    return true
  }

  /**
   * Takes the call away that waits for this result, unless the conversation went on: then the call stays without one.
   * Position of the call that is gone.
   */
  drop(callId: string): number | undefined {
    const waiting = this.#take(callId)
    if (waiting === undefined || waiting.batch !== this.#entries.at(-1)) return undefined
    this.#without(new Set([waiting.call.event.position]))
    return waiting.call.event.position
  }

  /** `readable`: results that are taken out can be read with a tool. `sources` are those of the compaction. */
  compact(event: Of<CompactionEvent>, allows: (step: CompactionStep) => boolean, readable: boolean): void {
    for (const given of event.body.steps) {
      if (!allows(given)) continue
      // Nothing reaches what comes behind it.
      const step = 'to' in given ? { ...given, to: Math.max(1, Math.min(given.to, event.position - 1)) } : given
      if (step.step === 'snip') this.#snip(step, event.sources)
      else if (step.step === 'micro') this.#micro(new Set(step.results), readable)
      else if (step.step === 'discard') this.#without(new Set(step.calls))
      else this.#summarize(step, event.sources)
    }
  }

  /** Takes away what was told behind the history: the head says it now. */
  untell(): void {
    const kept = this.#entries.filter((entry) => entry.kind !== 'single' || entry.made !== 'told')
    if (kept.length < this.#entries.length) this.#replace(kept)
  }

  /** Puts late results behind their calls, where those are still there. */
  takeHome(): void {
    const home = new Set<number>()
    for (const entry of this.#entries) {
      if (entry.kind === 'single') continue
      for (const call of entry.calls) {
        if (call.late === undefined) continue
        call.result = call.late
        call.late = undefined
        home.add(call.result.position)
      }
    }
    if (home.size === 0) return
    this.#replace(
      this.#entries.filter((entry) => entry.kind === 'batch' || entry.made !== 'late' || !home.has(entry.to)),
    )
  }

  #single(
    message: Single['message'],
    { position, sources }: { readonly position: number; readonly sources: readonly string[] },
  ): void {
    this.#push({ kind: 'single', message, from: position, to: position, made: undefined, sources })
  }

  #push(entry: Entry): void {
    const last = this.#entries.length - 1
    const before = this.#entries[last]
    // What these show depends on what follows them.
    if (isOpen(before) || (before?.kind === 'single' && before.made === 'summary')) this.#touch(last)
    this.#entries.push(entry)
    this.#touch(last + 1)
  }

  #touch(index: number): void {
    this.#changedFrom = Math.min(this.#changedFrom, Math.max(0, index))
  }

  #replace(entries: Entry[]): void {
    this.#entries = entries
    this.#changedFrom = 0
  }

  /** The first call in the latest batch that waits for a result of this id. */
  #take(callId: string): { readonly batch: Batch; readonly call: CallState } | undefined {
    const waiting = this.#open.get(callId)
    const latest = waiting?.at(-1)?.batch
    if (waiting === undefined || latest === undefined) return undefined
    const at = waiting.findIndex(({ batch }) => batch === latest)
    const [found] = waiting.splice(at, 1)
    if (waiting.length === 0) this.#open.delete(callId)
    return found
  }

  #forget(batch: Batch): void {
    for (const { event } of batch.calls) {
      const waiting = this.#open.get(event.body.id)?.filter((each) => each.batch !== batch) ?? []
      if (waiting.length === 0) this.#open.delete(event.body.id)
      else this.#open.set(event.body.id, waiting)
    }
  }

  /** Entries that lie in `[from, to]` as a whole; a batch at the end that waits for results is not one of them. */
  #cut(from: number, to: number): { readonly kept: Entry[]; readonly gone: Entry[]; readonly at: number } {
    const kept: Entry[] = []
    const gone: Entry[] = []
    let at = 0
    const last = this.#entries.at(-1)
    for (const entry of this.#entries) {
      const span = spanOf(entry)
      if (span.from >= from && span.to <= to && !(entry === last && isOpen(entry))) gone.push(entry)
      else {
        if (span.from < from) at = kept.length + 1
        kept.push(entry)
      }
    }
    for (const entry of gone) if (entry.kind === 'batch') this.#forget(entry)
    return { kept, gone, at }
  }

  #snip({ from, to, messages }: Extract<CompactionStep, { step: 'snip' }>, sources: readonly string[]): void {
    const { kept, gone, at } = this.#cut(from, to)
    if (gone.length === 0) return
    const marker = written({ made: 'marker', role: 'system', content: snipText(messages), from, to, sources })
    this.#replace(kept.toSpliced(at, 0, marker))
  }

  #micro(results: ReadonlySet<number>, readable: boolean): void {
    for (const entry of this.#entries) {
      if (entry.kind === 'single') continue
      for (const call of entry.calls) {
        if (call.result === undefined || !results.has(call.result.position)) continue
        const locator = call.result.body.spilled?.locator ?? locatorAt(call.result.position)
        call.instead = placeholderText(locator, readable)
      }
    }
    this.#changedFrom = 0
  }

  /** Takes calls away, their results with them, and answers of which nothing is left. */
  #without(positions: ReadonlySet<number>): void {
    const kept: Entry[] = []
    for (const entry of this.#entries) {
      if (entry.kind === 'single' || !entry.calls.some(({ event }) => positions.has(event.position))) kept.push(entry)
      else {
        const calls = entry.calls.filter(({ event }) => !positions.has(event.position))
        const isEmpty = calls.length === 0 && (entry.answer?.body.content ?? '') === ''
        this.#forget(entry)
        if (isEmpty) continue
        const batch: Batch = { ...entry, calls }
        for (const call of calls) if (call.result === undefined && call.late === undefined) this.#reopen(batch, call)
        kept.push(batch)
      }
    }
    this.#replace(kept)
  }

  #reopen(batch: Batch, call: CallState): void {
    const waiting = this.#open.get(call.event.body.id) ?? []
    waiting.push({ batch, call })
    waiting.sort((a, b) => a.call.event.position - b.call.event.position)
    this.#open.set(call.event.body.id, waiting)
  }

  #summarize(step: Extract<CompactionStep, { step: 'summary' }>, sources: readonly string[]): void {
    const { kept, gone } = this.#cut(0, step.to)
    const covered = new Set(sources)
    let from = step.to
    for (const entry of gone) {
      for (const source of sourcesOf(entry)) covered.add(source)
      from = Math.min(from, spanOf(entry).from)
    }
    this.#replace([
      written({ made: 'summary', role: 'user', content: summaryText(step), from, to: step.to, sources: [...covered] }),
      ...kept,
    ])
  }
}
