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
  let best: { readonly segment: Segment; readonly useful: Useful[] } | undefined
  for (const segment of segments) {
    // With as many it is not taken: what is left of a large segment need not be looked at.
    const most = best === undefined ? Number.POSITIVE_INFINITY : best.useful.length + (isOlder(segment, best) ? 1 : 0)
    const useful = usefulOf(segment, worth, most)
    if (useful === undefined) continue
    const pinned = useful.filter((each) => each.worth === Number.POSITIVE_INFINITY).length
    if (pinned <= mostCopies(segment, copyLimit)) best = { segment, useful }
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

interface Useful {
  readonly location: Location
  readonly worth: number
}

/** Undefined: there are `most` or more. */
function usefulOf(segment: Segment, worth: (hash: BlockHash) => number, most: number): Useful[] | undefined {
  const useful: Useful[] = []
  if (most === 0) return undefined
  for (const location of segment.live.values()) {
    const value = worth(location.hash)
    if (value > 0 && useful.push({ location, worth: value }) >= most) return undefined
  }
  return useful
}

function isOlder(segment: Segment, best: { readonly segment: Segment }): boolean {
  return segment.header.sequence < best.segment.header.sequence
}
