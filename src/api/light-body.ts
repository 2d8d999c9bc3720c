// As much of a body as tells whose turn it is and what it is for: small members parsed, of the conversation only what the
// rules of request-class.ts look at. Invariant: the work does not grow with the history. Part of step 2 in fleet mode.

import { type BodyScan, membersIn, ROLES } from './body-scan.js'

type Body = Readonly<Record<string, unknown>>

/** Larger values are not parsed. */
const SMALL_BYTES = 16_384
/** Of a text, as much as the rules look at; in bytes that is some more. */
const HEAD_BYTES = 4096
/** Messages of the last run of users', and parts of one, that are looked at. */
const RUN = 8

const USER = ROLES.indexOf('user')
const TOOL = ROLES.indexOf('tool')

/** Never parsed as a whole. */
const LARGE = new Set(['messages', 'input', 'tools', 'system', 'instructions', 'prompt'])

const CALL_SIGNS = ['"tool_calls"', '"tool_use"', '"function_call"', '"function_call_output"']

export function lightBody(scan: BodyScan): Body {
  const body: Record<string, unknown> = {}
  for (const { key, start, end } of scan.members) {
    if (!LARGE.has(key) && end - start <= SMALL_BYTES) body[key] = parsed(scan.bytes.toString('utf8', start, end))
  }
  const tools = scan.member('tools')
  const hasTools = tools !== undefined && tools.end - tools.start > 2
  if (hasTools) body['tools'] = [{}]
  const list = scan.list
  if (list === undefined) {
    const input = scan.member('input')
    if (input !== undefined) body['input'] = headAt(scan.bytes, input.start, input.end)
  } else body[list.key] = lightMessages(scan, hasTools)
  // Only requests without tools are known by their system text.
  if (!hasTools) {
    for (const key of ['system', 'instructions']) {
      const member = scan.member(key)
      if (member !== undefined) body[key] = contentAt(scan.bytes, member.start, member.end)
    }
  }
  return body
}

/** The first message, a stand-in for each of the first few turns, a call if there was one, and the last run of users'. */
function lightMessages(scan: BodyScan, hasTools: boolean): object[] {
  const { starts, roles } = scan.elements
  if (starts.length === 0) return []
  const last = roles.lastIndexOf(USER)
  let first = last
  while (first > 0 && last - first < RUN - 1 && roles[first - 1] === USER) first--
  const earlier = last < 0 ? 0 : countUsers(roles, first)
  const light: object[] = []
  if (roles[0] !== USER) light.push(hasTools ? { role: ROLES[roles[0] as number] } : messageAt(scan, 0))
  for (let i = 0; i < earlier; i++) light.push({ role: 'user' }, { role: 'assistant' })
  if (!hasTools && hasCalls(scan)) light.push({ role: 'tool' })
  if (last >= 0) for (let i = first; i <= last; i++) light.push(messageAt(scan, i))
  return light
}

/** No rule tells more than three from three. */
function countUsers(roles: readonly number[], end: number): number {
  let count = 0
  for (let i = 0; i < end && count < 3; i++) if (roles[i] === USER) count++
  return count
}

function hasCalls(scan: BodyScan): boolean {
  const { roles } = scan.elements
  if (roles.includes(TOOL)) return true
  const list = scan.list
  if (list === undefined) return false
  const text = scan.bytes.subarray(list.start, list.end)
  return CALL_SIGNS.some((sign) => text.includes(sign))
}

function messageAt({ bytes, elements }: BodyScan, index: number): object {
  const content = membersIn(bytes, elements.starts[index] as number, elements.ends[index] as number).findLast(
    ({ key }) => key === 'content',
  )
  const role = ROLES[elements.roles[index] as number]
  return content === undefined ? { role } : { role, content: contentAt(bytes, content.start, content.end) }
}

/** A string's head, or the parts of an array; of a large one the last few texts' heads. */
function contentAt(bytes: Buffer, start: number, end: number): unknown {
  if (end - start <= SMALL_BYTES) return parsed(bytes.toString('utf8', start, end))
  if (bytes[start] === 34) return headAt(bytes, start, end)
  return partsIn(bytes, start, end)
}

function partsIn(bytes: Buffer, start: number, end: number): object[] {
  const parts: object[] = []
  let at = start + 1
  while (at < end - 1) {
    const open = bytes.indexOf(123, at)
    if (open < 0 || open >= end) break
    const members = membersIn(bytes, open, end)
    const text = members.findLast(({ key }) => key === 'text')
    parts.push(text === undefined ? {} : { text: headAt(bytes, text.start, text.end) })
    at = (members.at(-1)?.end ?? open) + 1
  }
  return parts.slice(-RUN)
}

/** The beginning of a JSON string, or '' where it is none. */
function headAt(bytes: Buffer, start: number, end: number): string {
  if (bytes[start] !== 34) return ''
  if (end - start <= HEAD_BYTES) return asText(parsed(bytes.toString('utf8', start, end)))
  // Cut in front of an escape and of a character that may be cut in two.
  const raw = bytes.toString('utf8', start + 1, start + HEAD_BYTES).replace(/\uFFFD+$/, '')
  return asText(parsed(`"${raw.replace(/\\[^\\]{0,5}$/, '').replace(/\\+$/, '')}"`))
}

function asText(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    // Whoever answers the request refuses it.
    return undefined
  }
}
