// What a loop's iterations wrote, by item: a chat's messages are rendered once, and again only where something around them
// makes a difference. Invariant: what is taken from here is what running the body would give, because the plan
// (loop-plan.ts) names all that the body depends on, and all of that is compared.

import { type Expression, expression } from './expressions.js'
import type { LoopPlan } from './loop-plan.js'
import { Output, type Scope } from './scope.js'
import type { Ending, Statement } from './statements.js'
import { Float, Namespace, type SharedDict, TemplateFault, truthy, type Value } from './values.js'

interface Written {
  /** Values of the plan's contexts. */
  readonly contexts: readonly Value[]
  readonly text: string
  readonly ending: Ending
  /** What the plan's writes left. */
  readonly writes: readonly Value[]
}

/** Texts for one item: as the last message, as one before it, with other options. */
const TEXTS = 4
/** Longer strings are not compared. */
const CONTEXT_UNITS = 4096
/** After so many items in a row with a context that can't be compared, a loop just runs. */
const FUTILE = 32

/** The value of a context that cannot be worked out, which the body may never ask for. */
const FAULT = new Float(Number.NaN)

export class LoopMemo {
  readonly #body: Statement
  readonly #contexts: readonly Expression[]
  readonly #writes: readonly { readonly namespace: string; readonly name: string }[]
  readonly #written = new WeakMap<SharedDict, Written[]>()
  #futile = 0

  constructor({ contexts, writes }: LoopPlan, body: Statement) {
    this.#body = body
    this.#writes = writes
    this.#contexts = contexts.map(({ node, truth }) => {
      const value = expression(node)
      return truth ? (scope) => truthy(value(scope)) : value
    })
  }

  /** Runs the body in `scope` for `item`, or writes what it wrote before. */
  run(item: SharedDict, scope: Scope, out: Output): Ending {
    if (this.#futile >= FUTILE) return this.#body(scope, out)
    const contexts = this.#look(scope)
    if (contexts === undefined) {
      this.#futile++
      return this.#body(scope, out)
    }
    this.#futile = 0
    const texts = this.#written.get(item) ?? []
    const known = texts.find((each) => each.contexts.every((value, i) => value === contexts[i]))
    if (known !== undefined) {
      out.text += known.text
      this.#writes.forEach(({ namespace, name }, i) => {
        ;(scope.get(namespace) as Namespace).values.set(name, known.writes[i])
      })
      return known.ending
    }
    const own = new Output()
    const ending = this.#body(scope, own)
    out.text += own.text
    const writes = this.#left(scope)
    if (writes === undefined) return ending
    // Asking for a unit makes V8 put the parts of a string together.
    own.text.charCodeAt(0)
    this.#written.set(item, [{ contexts, text: own.text, ending, writes }, ...texts.slice(0, TEXTS - 1)])
    return ending
  }

  /** Undefined: one of the contexts is more than a scalar. */
  #look(scope: Scope): Value[] | undefined {
    const values: Value[] = []
    for (const context of this.#contexts) {
      const value = attempt(context, scope)
      if (!isScalar(value)) return undefined
      values.push(value)
    }
    return values
  }

  /** Undefined: what was written is more than a scalar. */
  #left(scope: Scope): Value[] | undefined {
    const values: Value[] = []
    for (const { namespace, name } of this.#writes) {
      const holder = scope.get(namespace)
      if (!(holder instanceof Namespace)) return undefined
      const value = holder.values.get(name)
      if (!isScalar(value)) return undefined
      values.push(value)
    }
    return values
  }
}

function attempt(context: Expression, scope: Scope): Value {
  try {
    return context(scope)
  } catch (error) {
    if (error instanceof TemplateFault) return FAULT
    throw error
  }
}

function isScalar(value: Value): boolean {
  if (typeof value === 'string') return value.length <= CONTEXT_UNITS
  if (value === undefined || value === null || value === FAULT) return true
  return typeof value === 'boolean' || typeof value === 'number' || typeof value === 'bigint'
}
