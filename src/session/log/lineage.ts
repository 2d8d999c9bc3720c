// Whose events a session's log is made of: a fork's positions up to where it forked are its parent's, and so on upwards.
// Pure. Invariant: the stretches of a lineage cover positions from 1 on without gap or overlap.

/** The session itself last; each holds the positions after the one before it, up to and with `to`. */
export type Lineage = readonly { readonly session: string; readonly to: number }[]

export interface Stretch {
  readonly session: string
  readonly from: number
  readonly to: number
}

/** Of a session that begins with its parent's positions up to `at`. */
export function lineageOf(session: string, parent: { readonly lineage: Lineage; readonly at: number } | undefined) {
  const own = { session, to: Number.MAX_SAFE_INTEGER }
  if (parent === undefined) return [own]
  const kept: { session: string; to: number }[] = []
  for (const each of parent.lineage) {
    kept.push({ session: each.session, to: Math.min(each.to, parent.at) })
    if (each.to >= parent.at) break
  }
  return [...kept, own]
}

/** Where positions `from` to `to` (both included) lie, in order. */
export function stretchesOf(lineage: Lineage, from: number, to: number): Stretch[] {
  const found: Stretch[] = []
  let first = 1
  for (const each of lineage) {
    const stretch = { session: each.session, from: Math.max(from, first), to: Math.min(to, each.to) }
    if (stretch.from <= stretch.to) found.push(stretch)
    first = each.to + 1
  }
  return found
}
