// Reads what servers say of their queues: samples of a gauge, and lists in JSON. Pure. Invariant: what is not there is
// undefined, never 0, so that nobody takes silence for an empty queue.

import type { WaitingQuestion } from './contract.js'

/** The question for a gauge of waiting requests at /metrics; `label`: that of one rank, where several are told. */
export function waitingGauge(name: string, label?: (rank: number) => string): WaitingQuestion {
  return {
    path: '/metrics',
    read(text, { dataParallelRank: rank }) {
      const only = rank === undefined || label === undefined ? undefined : gaugeIn(text, name, label(rank))
      const requests = only ?? gaugeIn(text, name)
      return requests === undefined ? undefined : { requests, withRunning: false }
    },
  }
}

/**
 * The sum of a gauge's samples in the text that Prometheus reads; of those with a label alone where one is named.
 * Undefined: there are none.
 */
export function gaugeIn(text: string, name: string, label = ''): number | undefined {
  let sum: number | undefined
  for (let at = text.indexOf(name); at >= 0; at = text.indexOf(name, at + 1)) {
    const isLine = (at === 0 || text[at - 1] === '\n') && /[{ ]/.test(text[at + name.length] ?? '')
    if (!isLine) continue
    const end = text.indexOf('\n', at)
    const line = text.slice(at, end < 0 ? undefined : end)
    const value = Number(/^\S+\s+(\S+)/.exec(line.replace(/\{.*\}/, ''))?.[1])
    if (line.includes(label) && Number.isFinite(value) && value >= 0) sum = (sum ?? 0) + value
  }
  return sum
}

/** A list of objects as JSON text, or below `key`; undefined: it is none. */
export function listIn(text: string, key?: string): readonly Record<string, unknown>[] | undefined {
  try {
    const value: unknown = JSON.parse(text)
    const list = key === undefined ? value : (value as Record<string, unknown> | null)?.[key]
    return Array.isArray(list) ? list.filter((each) => typeof each === 'object' && each !== null) : undefined
  } catch {
    // An answer that is no JSON is none to this question.
    return undefined
  }
}
