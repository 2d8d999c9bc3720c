// Of several forks that tried the same task, the one that came to an end in the fewest steps: what a harness does instead of
// shortening one context. (DeepSeek-V3.2, arXiv 2512.02556: parallel fewest step.)

import type { SessionEvent } from '../log/event.js'
import type { ForkOutcome } from './contract.js'

/** Undefined: none came to an end. Of equals the cheaper in tokens, then the first. */
export function fewestSteps(forks: readonly ForkOutcome[]): ForkOutcome | undefined {
  return forks
    .filter(({ finished }) => finished)
    .reduce<ForkOutcome | undefined>(
      (best, fork) => (best === undefined || isBetter(fork, best) ? fork : best),
      undefined,
    )
}

function isBetter(a: ForkOutcome, b: ForkOutcome): boolean {
  return a.steps === b.steps ? a.tokens < b.tokens : a.steps < b.steps
}

/** What a fork's log says of it: `at` is the last position that it shares with the others. */
export function forkOutcome(id: string, events: readonly SessionEvent[], at: number): ForkOutcome {
  const own = events.filter(({ position }) => position > at)
  const said = own.findLast(
    ({ body }) => body.kind === 'assistant' || body.kind === 'tool_call' || body.kind === 'tool_result',
  )
  const used = own.flatMap(({ body }) => (body.kind === 'usage' ? [body.promptTokens + body.completionTokens] : []))
  return {
    id,
    finished: said?.body.kind === 'assistant',
    steps: own.filter(({ body }) => body.kind === 'assistant').length,
    tokens: used.reduce((sum, tokens) => sum + tokens, 0),
  }
}
