// Takes events one by one into head, body and notes. Invariant: what rests on a revoked source, or was erased, is left out as
// if it had never been said, and with a result its call, with a call its result; a summary that covers any of it does not count.

import type { ToolDefinition } from '../../../core/request.js'
import type { CompactionStep, EventBody, NoteEvent, SessionEvent } from '../../log/event.js'
import { Body } from './body.js'
import { Head } from './head.js'
import type { Of } from './messages.js'
import { artifactsText } from './words.js'

/** Kinds of events that a model can come to see. */
const SEEN: Readonly<Partial<Record<EventBody['kind'], true>>> = {
  head: true,
  user: true,
  assistant: true,
  tool_call: true,
  tool_result: true,
  note: true,
  memory: true,
}

const READ_TOOL = 'read_result'

/** All of a log up to some event, under one set of revoked sources. */
export class Fold {
  readonly body: Body
  readonly head: Head
  /** Ephemeral notes by label, the latest last. */
  readonly notes = new Map<string, Of<NoteEvent>>()
  series = 1
  readonly #revoked: ReadonlySet<string>
  readonly #withheld = new Set<number>()
  /** Ids of calls that were left out: their results are too. */
  readonly #withheldCalls = new Map<string, number>()
  /** Locators of results that were left out. */
  readonly #withheldLocators = new Set<string>()
  /** Sources of what could be seen so far, and those that the log revoked. */
  readonly #seen = new Set<string>()
  readonly #revokedSoFar = new Set<string>()
  /** Where the current body begins. */
  #bodyFrom = 0

  constructor(revoked: ReadonlySet<string>, body = new Body(), head = new Head(revoked)) {
    this.#revoked = revoked
    this.body = body
    this.head = head
  }

  /** One that goes on from here by itself. */
  clone(): Fold {
    const copy = new Fold(this.#revoked, this.body.clone(), this.head.clone())
    for (const [label, note] of this.notes) copy.notes.set(label, note)
    for (const position of this.#withheld) copy.#withheld.add(position)
    for (const [id, position] of this.#withheldCalls) copy.#withheldCalls.set(id, position)
    for (const locator of this.#withheldLocators) copy.#withheldLocators.add(locator)
    for (const source of this.#seen) copy.#seen.add(source)
    for (const source of this.#revokedSoFar) copy.#revokedSoFar.add(source)
    copy.series = this.series
    copy.#bodyFrom = this.#bodyFrom
    return copy
  }

  /** Positions that are left out, in order. */
  withheld(): readonly number[] {
    return [...this.#withheld].sort((a, b) => a - b)
  }

  get withheldCount(): number {
    return this.#withheld.size
  }

  add(event: SessionEvent): void {
    if (SEEN[event.body.kind] === undefined) this.#mark(event)
    else {
      for (const source of event.sources) this.#seen.add(source)
      if (event.erased === true || this.#isTainted(event)) this.#withhold(event)
      else this.#take(event)
    }
  }

  /** What a model sees. */
  #take(event: SessionEvent): void {
    const { body } = event
    if (body.kind === 'head') this.#change(event, this.head.change(event as Of<typeof body>))
    else if (body.kind === 'memory') this.head.edit(event as Of<typeof body>)
    else if (body.kind === 'note') this.#note(event as Of<typeof body>)
    else this.#say(event)
  }

  /** What changes what it sees. */
  #mark(event: SessionEvent): void {
    const { body } = event
    if (body.kind === 'policy') this.head.share(body.snapshot.shared)
    else if (body.kind === 'compaction') this.#compact(event as Of<typeof body>)
    else if (body.kind === 'reset') this.#reset(event, body.artifacts)
    else if (body.kind === 'revocation') this.#revoke(body.sources)
  }

  #say(event: SessionEvent): void {
    const { body } = event
    this.head.begin()
    if (body.kind === 'user') this.body.user(event as Of<typeof body>)
    else if (body.kind === 'assistant') this.body.answer(event as Of<typeof body>)
    else if (body.kind === 'tool_call') {
      this.body.call(event as Of<typeof body>)
      this.#withheldCalls.delete(body.id)
    } else if (body.kind === 'tool_result') {
      // Its call was left out, so it is.
      if (this.#withheldCalls.has(body.callId)) this.#withhold(event)
      else this.body.result(event as Of<typeof body>)
    }
  }

  #change(event: SessionEvent, { tell, settles }: { readonly tell?: string; readonly settles?: true }): void {
    if (settles) {
      this.series++
      this.#settle(false)
    } else if (tell !== undefined) {
      const { position, sources } = event
      this.body.write({ made: 'told', role: 'system', content: tell, from: position, to: position, sources })
    }
  }

  #note(event: Of<NoteEvent>): void {
    const { tail, label, content } = event.body
    if (tail === 'kept') {
      this.head.begin()
      this.body.note(event)
    } else {
      this.notes.delete(label)
      if (content !== '') this.notes.set(label, event)
    }
  }

  #compact(event: Of<Extract<EventBody, { kind: 'compaction' }>>): void {
    const isClean = event.erased !== true && !this.#isTainted(event)
    const allows = (step: CompactionStep) =>
      step.step !== 'summary' || (isClean && ![...this.#withheld].some((at) => at > this.#bodyFrom && at <= step.to))
    if (!event.body.steps?.every(allows)) this.#withheld.add(event.position)
    if (event.erased !== true) this.body.compact(event, allows, hasReader(this.head.callable))
    this.series++
    this.#settle(false)
  }

  #reset({ position, sources }: SessionEvent, artifacts: readonly string[] = []): void {
    this.body.clear()
    this.notes.clear()
    this.#withheldCalls.clear()
    this.#bodyFrom = position
    this.series++
    this.#settle(true)
    const named = artifacts.filter((locator) => !this.#withheldLocators.has(locator))
    if (named.length === 0) return
    const content = artifactsText(named)
    this.body.write({ made: 'artifacts', role: 'system', content, from: position, to: position, sources })
  }

  #revoke(sources: readonly string[] = []): void {
    if (sources.some((source) => this.#seen.has(source) && !this.#revokedSoFar.has(source))) this.series++
    for (const source of sources) this.#revokedSoFar.add(source)
  }

  #settle(fresh: boolean): void {
    this.body.untell()
    this.body.takeHome()
    this.head.settle(fresh)
  }

  #isTainted({ sources }: SessionEvent): boolean {
    return sources.some((source) => this.#revoked.has(source))
  }

  #withhold(event: SessionEvent): void {
    const { body, position } = event
    this.#withheld.add(position)
    if (body.kind === 'tool_call') this.#withheldCalls.set(body.id, position)
    if (body.kind !== 'tool_result') return
    if (body.spilled !== undefined) this.#withheldLocators.add(body.spilled.locator)
    if (this.#withheldCalls.delete(body.callId)) return
    const call = this.body.drop(body.callId)
    if (call !== undefined) this.#withheld.add(call)
  }
}

function hasReader(tools: readonly ToolDefinition[]): boolean {
  return tools.some(({ name }) => name === READ_TOOL)
}
