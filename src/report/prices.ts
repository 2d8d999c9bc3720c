// What tokens cost, by the million: a table of four prices as providers of prompt caching have it. Invariant: a price that
// is not given follows from that of input, as it does with them: a tenth for what is read, a quarter more for what is written.

import { existsSync, readFileSync } from 'node:fs'
import { parse } from 'yaml'
import { UsageError } from '../core/usage-error.js'

/** For a million tokens each. */
export interface Prices {
  readonly currency: string
  /** Prompt tokens without a cache. */
  readonly input: number
  /** Prompt tokens that were reused. */
  readonly read: number
  /** Prompt tokens that were computed, and kept. */
  readonly write: number
  readonly output: number
}

/** Of https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching, the middle model. */
export const USUAL_PRICES: Prices = { currency: 'USD', input: 3, read: 0.3, write: 3.75, output: 15 }

const READ_SHARE = 0.1
const WRITE_SHARE = 1.25
const NAMES = ['input', 'read', 'write', 'output'] as const

/** `input=3,output=15`, or a YAML or JSON file of the same names; undefined: `USUAL_PRICES`. @throws UsageError. */
export function pricesFrom(text: string | undefined): Prices {
  if (text === undefined) return USUAL_PRICES
  const given = text.includes('=') && !existsSync(text) ? fromPairs(text) : fromFile(text)
  const unknown = Object.keys(given).find((name) => name !== 'currency' && !NAMES.includes(name as 'input'))
  if (unknown !== undefined) throw new UsageError(`--prices: '${unknown}' is none of currency, ${NAMES.join(', ')}`)
  const price = (name: (typeof NAMES)[number], fallback: number) => {
    const value = given[name] ?? fallback
    if (typeof value === 'number' && Number.isFinite(value) && value >= 0) return value
    throw new UsageError(`--prices: ${name} must be a number from 0 on`)
  }
  const input = price('input', USUAL_PRICES.input)
  const { currency = USUAL_PRICES.currency } = given
  if (typeof currency !== 'string') throw new UsageError('--prices: currency must be a name')
  return {
    currency,
    input,
    read: price('read', READ_SHARE * input),
    write: price('write', WRITE_SHARE * input),
    output: price('output', USUAL_PRICES.output),
  }
}

function fromPairs(text: string): Record<string, unknown> {
  return Object.fromEntries(
    text.split(',').map((pair) => {
      const [name = '', value = ''] = pair.split('=').map((part) => part.trim())
      return [name, name === 'currency' ? value : value === '' ? Number.NaN : Number(value)]
    }),
  )
}

function fromFile(path: string): Record<string, unknown> {
  if (!existsSync(path)) throw new UsageError(`--prices: there is no file ${path}; or give input=3,output=15`)
  try {
    const value: unknown = parse(readFileSync(path, 'utf8'))
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  } catch (error) {
    throw new UsageError(`--prices: ${path} is no YAML: ${(error as Error).message}`)
  }
  throw new UsageError(`--prices: ${path} has no prices by name`)
}

export interface TokenCounts {
  readonly promptTokens: number
  readonly reusedTokens: number
  readonly outputTokens: number
}

export interface CostParts {
  readonly read: number
  readonly write: number
  readonly output: number
  readonly all: number
}

/** With a cache that had `reusedTokens` and keeps the rest. */
export function costOf({ promptTokens, reusedTokens, outputTokens }: TokenCounts, prices: Prices): CostParts {
  const read = (reusedTokens * prices.read) / 1e6
  const write = ((promptTokens - reusedTokens) * prices.write) / 1e6
  const output = (outputTokens * prices.output) / 1e6
  return { read, write, output, all: read + write + output }
}

/** Without a cache: the whole prompt at the price of input. */
export function plainCost({ promptTokens, outputTokens }: Omit<TokenCounts, 'reusedTokens'>, prices: Prices): number {
  return (promptTokens * prices.input + outputTokens * prices.output) / 1e6
}
