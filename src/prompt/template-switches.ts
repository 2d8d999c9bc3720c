// The names by which a template turns reasoning on and off and sets its effort. Every family has its own, so they are
// found by rendering: a name counts when its value changes the text. Stands beside template-probe.ts, which asks once a
// template; a request's `Thinking` then becomes those names.

import type { Thinking } from '../core/request.js'
import type { Value } from './jinja/index.js'

export type Names = readonly (readonly [string, Value])[]

export interface Switches {
  /** Undefined: the template cannot. */
  readonly enabled?: { readonly on: Names; readonly off: Names }
  /** What to render with for each effort; an effort that is missing is the template's own. */
  readonly effort?: ReadonlyMap<Effort, Names>
  /** Makes it show the reasoning of earlier turns, which it drops of itself; empty: it shows it, or never does. */
  readonly keep: Names
}

type Effort = NonNullable<Thinking['effort']>

const EFFORTS: readonly Effort[] = ['minimal', 'low', 'medium', 'high', 'xhigh', 'max']
const PRINTED = 'refrain_probe_effort'

const ENABLED: readonly (readonly [name: string, on: Value, off: Value])[] = [
  ['enable_thinking', true, false],
  ['thinking', true, false],
  ['thinking_mode', 'enabled', 'disabled'],
  ['thinking_option', 'on', 'off'],
  ['enable_reasoning', true, false],
  ['reasoning', true, false],
  ['thinking_budget', -1, 0],
  ['reasoning_effort', 'high', 'no_think'],
  ['reasoning_effort', 'high', 'none'],
]

/** Tokens that a budget allows; the efforts above have no limit. */
const BUDGETS: readonly (readonly [Effort, number])[] = [
  ['minimal', 512],
  ['low', 1024],
  ['medium', 4096],
  ['high', 16384],
]

/** `render` gives the text of a short chat with its generation prompt, or undefined where the template refuses. */
export function findSwitches(render: (names: Names) => string | undefined): Omit<Switches, 'keep'> {
  const enabled = ENABLED.map(([name, on, off]) => ({ on: [[name, on]] as Names, off: [[name, off]] as Names })).find(
    ({ on, off }) => differ(render(on), render(off)) && !printsValues(render, on),
  )
  const effort = findEffort((names) => render([...(enabled?.on ?? []), ...names]))
  return { ...(enabled && { enabled }), ...(effort && { effort }) }
}

// A name whose value is printed as it is takes anything: that it takes 'none' says nothing.
function printsValues(render: (names: Names) => string | undefined, [named]: Names): boolean {
  return typeof named?.[1] === 'string' && render([[named[0], PRINTED]])?.includes(PRINTED) === true
}

function differ(a: string | undefined, b: string | undefined): boolean {
  return a !== undefined && b !== undefined && a !== b
}

function findEffort(render: (names: Names) => string | undefined): ReadonlyMap<Effort, Names> | undefined {
  for (const name of ['reasoning_effort', 'reasoning_strength', 'thinking_effort']) {
    const texts = new Map(EFFORTS.map((effort) => [effort, render([[name, effort]])]))
    const other = render([[name, PRINTED]])
    const prints = other?.includes(PRINTED) === true
    const known = EFFORTS.filter((effort) =>
      prints
        ? ['low', 'medium', 'high'].includes(effort)
        : texts.get(effort) !== undefined && texts.get(effort) !== other,
    )
    if (known.length === 0 || !(prints || other !== undefined || new Set(texts.values()).size > 2)) continue
    const refused = (effort: Effort) => texts.get(effort) === undefined
    return new Map(
      EFFORTS.map((effort) => [effort, [[name, nearest(effort, known, prints || refused(effort))]] as Names]),
    )
  }
  const budget = (tokens: number): Names => [['thinking_budget', tokens]]
  if (!differ(render(budget(512)), render(budget(4096)))) return undefined
  return new Map(BUDGETS.map(([effort, tokens]) => [effort, budget(tokens)]))
}

/** The effort to ask a template for that knows `known`: one it does not know is its default, unless that is less than meant. */
function nearest(effort: Effort, known: readonly Effort[], must: boolean): Effort {
  if (known.includes(effort)) return effort
  const rank = (each: Effort) => EFFORTS.indexOf(each)
  const below = known.filter((each) => rank(each) < rank(effort)).at(-1)
  const above = known.find((each) => rank(each) > rank(effort))
  if (must) return below ?? above ?? effort
  return below !== undefined && rank(below) >= rank('high') ? below : effort
}

/** What `thinking` is called in the template. To ask for an effort is to ask for reasoning. */
export function thinkingNames(switches: Omit<Switches, 'keep'>, thinking: Thinking | undefined): Names {
  if (thinking === undefined) return []
  const on = thinking.enabled ?? (thinking.effort === undefined ? undefined : true)
  if (on === undefined) return []
  if (!on) return switches.enabled?.off ?? []
  const effort = thinking.effort === undefined ? undefined : switches.effort?.get(thinking.effort)
  return [...(switches.enabled?.on ?? []), ...(effort ?? [])]
}
