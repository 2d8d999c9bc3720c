// What side requests of a session (titles, tags, suggestions) computed, and what the same questions would have computed as quick
// tasks: forks of the prefix that is there, which pay for their own words alone (docs/quick.md). Invariant: the estimate is
// never more than what was computed.

import type { SideView } from './contract.js'

/** About what a named task's words and their frame in a template are; bench/quick: 12 to 16. */
const SUFFIX_TOKENS = 24

export interface SideTurn {
  readonly promptTokens: number
  /** Tokens that it begins with and the session's main turn had too. */
  readonly shared: number
  readonly computed: number
}

/** Tokens that the question would have computed as a quick task, about. */
export function quickTokens({ promptTokens, shared, computed }: SideTurn): number {
  // Behind the chat the question's own words are known; in front of it they and the chat are one text.
  const isBehind = shared * 2 >= promptTokens
  return Math.min(computed, isBehind ? promptTokens - shared : SUFFIX_TOKENS)
}

export class SideSum {
  #requests = 0
  #promptTokens = 0
  #computedTokens = 0
  #quickTokens = 0

  add(turn: SideTurn): void {
    this.#requests++
    this.#promptTokens += turn.promptTokens
    this.#computedTokens += turn.computed
    this.#quickTokens += quickTokens(turn)
  }

  /** Undefined: there was none. */
  view(): SideView | undefined {
    if (this.#requests === 0) return undefined
    const counts = {
      requests: this.#requests,
      promptTokens: this.#promptTokens,
      computedTokens: this.#computedTokens,
      quickTokens: this.#quickTokens,
    }
    return { ...counts, sentence: sideSentence(counts) }
  }
}

export function sideSentence({ requests, computedTokens, quickTokens }: Omit<SideView, 'sentence'>): string {
  const asked =
    requests === 1
      ? '1 side request (a title, tags, suggestions)'
      : `${requests} side requests (titles, tags, suggestions)`
  const saved = computedTokens - quickTokens
  const did = `${asked} computed ${computedTokens} tokens`
  if (saved <= 0) return `${did}, as few as quick tasks would have`
  return `${did}; as quick tasks on the prefix that is there they would have computed about ${quickTokens} (docs/quick.md)`
}
