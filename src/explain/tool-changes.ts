// Which tools are not what they were: by name, and by place among those that are in both lists. Invariant: the fewest moves
// that explain the new order are told; tools of one name are told apart by their count.

import type { DifferenceView } from './contract.js'
import type { ToolMark } from './fingerprint.js'

export type ToolChange = NonNullable<DifferenceView['tools']>[number]

/** In the order of the new list, removed ones last. */
export function toolChanges(before: readonly ToolMark[], after: readonly ToolMark[]): readonly ToolChange[] {
  const [old, now] = [named(before), named(after)]
  const common = [...now.keys()].filter((key) => old.has(key))
  const kept = longestRising(common.map((key) => (old.get(key) as Placed).index))
  const moved = new Set(common.filter((_, i) => !kept.has(i)))
  const changes: ToolChange[] = []
  for (const [key, { mark, index }] of now) {
    const { name } = mark
    const was = old.get(key)
    if (was === undefined) changes.push({ name, change: 'added', index })
    else if (was.mark.digest !== mark.digest) changes.push({ name, change: 'edited', index })
    else if (moved.has(key)) changes.push({ name, change: 'moved', index })
  }
  for (const [key, { mark, index }] of old) {
    if (!now.has(key)) changes.push({ name: mark.name, change: 'removed', index })
  }
  return changes
}

interface Placed {
  readonly mark: ToolMark
  readonly index: number
}

function named(tools: readonly ToolMark[]): Map<string, Placed> {
  const placed = new Map<string, Placed>()
  for (const [index, mark] of tools.entries()) {
    let count = 0
    while (placed.has(`${count} ${mark.name}`)) count++
    placed.set(`${count} ${mark.name}`, { mark, index })
  }
  return placed
}

/** Indices of a longest rising run within `numbers`. */
function longestRising(numbers: readonly number[]): ReadonlySet<number> {
  // The end of the best run of each length, and what stands before each number in its run.
  const ends: number[] = []
  const before: (number | undefined)[] = []
  for (const [i, number] of numbers.entries()) {
    let length = ends.findIndex((end) => (numbers[end] as number) >= number)
    if (length < 0) length = ends.length
    before[i] = ends[length - 1]
    ends[length] = i
  }
  const run = new Set<number>()
  for (let at = ends.at(-1); at !== undefined; at = before[at]) run.add(at)
  return run
}
