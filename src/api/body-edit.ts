// Edits of a body's bytes: members that are set or taken out, a message that is added. Invariant: every other byte stays where and as it
// is, since order, spacing and number forms inside tools and arguments are part of a prompt's prefix.

import { RefrainError } from '../core/errors.js'
import type { BodyMember, BodyScan } from './body-scan.js'
import type { BodySetting, ForwardBody } from './contract.js'

interface Splice {
  readonly start: number
  readonly end: number
  readonly text: string
}

/** A body that can be sent on. */
export function forwardBody(scan: BodyScan): ForwardBody {
  return {
    member: (key) => scan.raw(key),
    edited: (settings, appended) => edited(scan, settings, appended),
  }
}

/** The bytes of `scan` with `settings`, and with the message `appended` behind the others. */
export function edited(scan: BodyScan, settings: readonly BodySetting[], appended?: string): Buffer {
  if (settings.length === 0 && appended === undefined) return scan.bytes
  const splices: Splice[] = []
  let added = ''
  for (const { key, json } of settings) {
    // Every member of that name: readers differ in which of two counts.
    const members = scan.members.filter((member) => member.key === key)
    for (const { start, end } of members) splices.push({ start, end, text: json })
    if (members.length === 0) added += `,${JSON.stringify(key)}:${json}`
  }
  if (added !== '') {
    const text = scan.members.length === 0 ? added.slice(1) : added
    splices.push({ start: scan.close, end: scan.close, text })
  }
  if (appended !== undefined) splices.push(appendedTo(scan, appended))
  return spliced(scan.bytes, splices)
}

/** The bytes of `scan` without its members called `key`. */
export function without({ bytes, members }: Pick<BodyScan, 'bytes' | 'members'>, key: string): Buffer {
  const splices: Splice[] = []
  let isFirst = true
  for (const [i, member] of members.entries()) {
    if (member.key !== key) {
      isFirst = false
      continue
    }
    // The comma goes with it: the one behind where nothing is left in front.
    const { keyStart, end } = member
    if (isFirst) splices.push({ start: keyStart, end: members[i + 1]?.keyStart ?? end, text: '' })
    else splices.push({ start: (members[i - 1] as BodyMember).end, end, text: '' })
  }
  return spliced(bytes, splices)
}

function appendedTo(scan: BodyScan, message: string): Splice {
  const at = scan.elements.ends.at(-1)
  if (at === undefined) throw new RefrainError('invalid_request', "'messages' must not be empty", { param: 'messages' })
  return { start: at, end: at, text: `,${message}` }
}

function spliced(bytes: Buffer, splices: Splice[]): Buffer {
  splices.sort((a, b) => a.start - b.start)
  const parts: Buffer[] = []
  let at = 0
  for (const { start, end, text } of splices) {
    parts.push(bytes.subarray(at, start), Buffer.from(text))
    at = end
  }
  parts.push(bytes.subarray(at))
  return Buffer.concat(parts)
}
