// Lifecycle policies: the presets by name, and the `lifecycle` section of a model card over one of them. Invariant: every
// name is known and every number has a range before a session goes by it.

import { type Static, Type } from 'typebox'
import { Value } from 'typebox/value'
import type { Lifecycle } from './contract.js'
import * as steps from './index.js'

/** For backends of today: results that were read become placeholders, then a summary. */
const STANDARD: Lifecycle = {
  trigger: { share: 0.8 },
  relief: 0.6,
  headroom: { resultTokens: 1500, outputTokens: 1000 },
  keep: 10,
  steps: ['micro'],
  strategy: 'summary',
  next: [],
  snip: { over: 50, first: 3, last: 47 },
  micro: { keep: 3, chars: 120 },
  history: {},
  results: { batchChars: 200_000, singleChars: 30_000, previewChars: 2000 },
  summary: { maxTokens: 2000, requestChars: 8000, addedChars: 16_000 },
}

/** Chapter 8 of a well-known course on agent harnesses: its four steps with its numbers. */
const S08: Lifecycle = {
  ...STANDARD,
  trigger: { share: 0.8, chars: 50_000 },
  steps: ['snip', 'micro'],
  strategy: 'history',
  history: { chars: 50_000 },
}

export const LIFECYCLES: Readonly<Record<string, Lifecycle>> = { standard: STANDARD, s08: S08 }

/** Tokens of a cap per result where a card says only that there is one. */
const CAP_TOKENS = 1500

const strict = { additionalProperties: false }
const share = Type.Number({ minimum: 0.05, maximum: 1 })
const count = Type.Integer({ minimum: 0 })
const some = Type.Integer({ minimum: 1 })
const names = Type.Array(Type.String())
const optional = Type.Optional

const SECTION = Type.Object(
  {
    preset: optional(Type.Enum(Object.keys(LIFECYCLES))),
    trigger: optional(Type.Object({ share: optional(share), chars: optional(some) }, strict)),
    relief: optional(share),
    headroom: optional(Type.Object({ resultTokens: optional(count), outputTokens: optional(count) }, strict)),
    keep: optional(some),
    ...{ steps: optional(names), strategy: optional(Type.String()), next: optional(names) },
    snip: optional(Type.Object({ over: optional(some), first: optional(count), last: optional(some) }, strict)),
    micro: optional(Type.Object({ keep: optional(count), chars: optional(count) }, strict)),
    history: optional(Type.Object({ chars: optional(some) }, strict)),
    results: optional(
      Type.Object(
        {
          ...{ batchChars: optional(some), singleChars: optional(some), previewChars: optional(count) },
          // true: a cap of 1,500.
          capTokens: optional(Type.Union([some, Type.Boolean()])),
        },
        strict,
      ),
    ),
    summary: optional(
      Type.Object({ maxTokens: optional(some), requestChars: optional(some), addedChars: optional(count) }, strict),
    ),
  },
  strict,
)

type Section = Static<typeof SECTION>

/**
 * The policy that `section` (a card's `lifecycle`, parsed; undefined: none) describes, over its preset.
 * @throws Error that names the field, and where names are unknown those that are known.
 */
export function parseLifecycle(section: unknown): Lifecycle {
  if (section === undefined) return STANDARD
  const [fault] = Value.Errors(SECTION, section)
  if (fault !== undefined) {
    throw new Error(`lifecycle${fault.instancePath.replaceAll('/', '.')}: ${fault.message}`)
  }
  const given = section as Section
  const preset = LIFECYCLES[given.preset ?? 'standard'] as Lifecycle
  const policy: Lifecycle = {
    ...preset,
    trigger: { ...preset.trigger, ...given.trigger },
    headroom: { ...preset.headroom, ...given.headroom },
    snip: { ...preset.snip, ...given.snip },
    micro: { ...preset.micro, ...given.micro },
    history: { ...preset.history, ...given.history },
    results: resultLimits(preset, given),
    summary: { ...preset.summary, ...given.summary },
    ...(given.relief !== undefined && { relief: given.relief }),
    ...(given.keep !== undefined && { keep: given.keep }),
    ...(given.steps !== undefined && { steps: given.steps }),
    ...(given.strategy !== undefined && { strategy: given.strategy }),
    ...(given.next !== undefined && { next: given.next }),
  }
  for (const [field, name] of namesIn(policy)) checkName(field, name)
  if (policy.relief > policy.trigger.share) throw new Error('lifecycle.relief: must be at most lifecycle.trigger.share')
  return policy
}

function resultLimits(preset: Lifecycle, { results = {} }: Section): Lifecycle['results'] {
  const { capTokens, ...limits } = results
  const cap = capTokens === true ? CAP_TOKENS : capTokens
  const { capTokens: before, ...rest } = preset.results
  const now = cap ?? before
  return { ...rest, ...limits, ...(typeof now === 'number' && { capTokens: now }) }
}

function namesIn({ steps: named, strategy, next }: Lifecycle): [string, string][] {
  return [
    ...named.map((name, i): [string, string] => [`steps[${i}]`, name]),
    ['strategy', strategy],
    ...next.map((name, i): [string, string] => [`next[${i}]`, name]),
  ]
}

function checkName(field: string, name: string): void {
  if (Object.hasOwn(steps, name)) return
  throw new Error(`lifecycle.${field}: there is no '${name}'; known are ${Object.keys(steps).join(', ')}`)
}
