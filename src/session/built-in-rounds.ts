// Several rounds of one answer: where the model called only tools that the server runs itself, it goes on with their results
// and the client sees one answer. Invariant: one start, one end, one finish; calls of the server's own never show, those of
// the client's are counted through; what all rounds took is added up.

import type { CallDelta, GenerateEvent, SplitText } from '../core/events.js'

type Finish = Extract<GenerateEvent, { type: 'finish' }>
type End = Extract<GenerateEvent, { type: 'end' }>
type Start = Extract<GenerateEvent, { type: 'start' }>

export class Rounds {
  #started: Start | undefined
  #end: End | undefined
  #quick: GenerateEvent | undefined
  #finish: Finish | undefined
  /** Calls that were shown. */
  #shown = 0
  /** Of this round: its calls' numbers -> those that are shown; undefined: hidden. */
  readonly #numbers = new Map<number, number | undefined>()
  readonly #builtIns: ReadonlySet<string>

  /** `builtIns`: names of the session's tools that are the server's own. */
  constructor(builtIns: ReadonlySet<string>) {
    this.#builtIns = builtIns
  }

  #visible({ content, reasoning, calls }: SplitText): SplitText {
    return { content, reasoning, calls: calls.flatMap((call) => this.#renumbered(call)) }
  }

  /** The events of a round as the client sees them; its end is kept for `last`. */
  *pass(event: GenerateEvent): Generator<GenerateEvent, void> {
    if (event.type === 'start') {
      if (this.#started === undefined) yield event
      this.#started = event
    } else if (event.type === 'token') {
      yield event.split === undefined ? event : { ...event, split: this.#visible(event.split) }
    } else if (event.type === 'end') this.#end = event
    else if (event.type === 'quick') this.#quick = event
    else this.#finish = sum(this.#finish, event)
  }

  /** What was held back at the end of a round that is not the last. */
  *between(): Generator<GenerateEvent, void> {
    const end = this.#end
    this.#end = undefined
    if (end?.split !== undefined) {
      const split = this.#visible(end.split)
      if (split.content !== '' || split.reasoning !== '' || split.calls.length > 0)
        yield { type: 'token', choice: end.choice, ids: [], text: '', split }
    }
    this.#numbers.clear()
  }

  *last(): Generator<GenerateEvent, void> {
    const end = this.#end
    if (end !== undefined) yield end.split === undefined ? end : { ...end, split: this.#visible(end.split) }
    if (this.#quick !== undefined) yield this.#quick
    if (this.#finish !== undefined) yield this.#finish
  }

  #renumbered(call: CallDelta): readonly CallDelta[] {
    if (call.name !== undefined && !this.#numbers.has(call.index))
      this.#numbers.set(call.index, this.#builtIns.has(call.name) ? undefined : this.#shown++)
    const index = this.#numbers.get(call.index)
    return index === undefined ? [] : [{ ...call, index }]
  }
}

function sum(before: Finish | undefined, now: Finish): Finish {
  if (before === undefined) return now
  return {
    type: 'finish',
    promptTokens: before.promptTokens + now.promptTokens,
    completionTokens: before.completionTokens + now.completionTokens,
    committedTokens: before.committedTokens + now.committedTokens,
    cache: {
      working: before.cache.working + now.cache.working,
      memory: before.cache.memory + now.cache.memory,
      disk: before.cache.disk + now.cache.disk,
      computed: before.cache.computed + now.cache.computed,
    },
  }
}
