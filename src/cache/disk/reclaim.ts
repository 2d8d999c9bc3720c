// Which segment is given up when the budget is reached, and what of it is worth copying. Pure. Invariant: at most half of
// a segment's records are copied, so that every reclaim frees the other half; a pinned block is never given up.

import type { BlockHash } from '../../core/block.js'
import type { Location, Segment } from './segment.js'

export interface Reclaim {
  readonly segment: Segment
  /** Live records to copy to the newest segment first, most worth first. */
  readonly copies: readonly Location[]
}

/**
 * The segment with the fewest blocks worth keeping, the oldest of equals; undefined when each has more pinned blocks
 * than may be copied. `worth` is infinite for a pinned block and 0 for one that may go.
 */
export function chooseReclaim(
  segments: Iterable<Segment>,
  worth: (hash: BlockHash) => number,
  copyLimit: number,
): Reclaim | undefined {
  let best: { segment: Segment; useful: { location: Location; worth: number }[] } | undefined
  for (const segment of segments) {
    const useful = []
    let pinned = 0
    for (const location of segment.live.values()) {
      const value = worth(location.hash)
      if (value > 0) useful.push({ location, worth: value })
      if (value === Number.POSITIVE_INFINITY) pinned++
    }
    if (pinned > mostCopies(segment, copyLimit)) continue
    if (
      best === undefined ||
      useful.length < best.useful.length ||
      isOlder(segment, best.segment, useful, best.useful)
    ) {
      best = { segment, useful }
    }
  }
  if (best === undefined) return undefined
  // Infinity minus infinity is no number: pinned blocks compare as equal.
  const ordered = best.useful.sort((a, b) => (a.worth === b.worth ? 0 : b.worth - a.worth))
  return {
    segment: best.segment,
    copies: ordered.slice(0, mostCopies(best.segment, copyLimit)).map(({ location }) => location),
  }
}

function mostCopies(segment: Segment, copyLimit: number): number {
  return Math.min(copyLimit, segment.records >> 1)
}

function isOlder(a: Segment, b: Segment, usefulA: readonly unknown[], usefulB: readonly unknown[]): boolean {
  return usefulA.length === usefulB.length && a.header.sequence < b.header.sequence
}
