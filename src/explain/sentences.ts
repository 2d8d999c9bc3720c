// What a miss is, in a sentence that names the place and the mend. Invariant: no text of a prompt is in it.

import type { DifferenceView, MissView, Reason } from './contract.js'

const PLAIN: Readonly<Record<Reason, string>> = {
  first_seen: 'nothing is known before this turn',
  model_changed: 'the turn before went to another model, whose cache is its own',
  template_changed: 'the template, its options or what it prints of itself changed',
  tools_changed: 'the tools are not what they were',
  system_changed: 'the system prompt is not what it was',
  messages_changed: 'earlier messages are not what they were',
  reasoning_dropped: 'reasoning of an earlier answer is no longer there',
  retokenized: 'the same text came back and was cut into other tokens than were sampled',
  expired: 'nobody used its blocks for so long that they were dropped (cache.idleMs)',
  evicted: 'its blocks had to go for others: the cache is too small for what runs',
  restored_slower_than_recomputed: 'its blocks are on disk, and computing was estimated to be quicker than reading',
  other_backend: 'it was sent to another backend than the turn before',
  tenant: 'the same prompt is cached for another tenant, or with another cache_salt',
  compaction: 'the conversation was compacted',
  revocation: 'what the conversation was made from was revoked',
}

export function sentenceOf(reason: Reason, difference: DifferenceView | undefined): string {
  const place = difference === undefined ? '' : placeOf(reason, difference)
  const blank = difference?.whitespace === true ? ' (white space alone)' : ''
  return `${PLAIN[reason]}${place === '' ? '' : `: ${place}`}${blank}`
}

const CACHE: readonly Reason[] = [
  'first_seen',
  'expired',
  'evicted',
  'restored_slower_than_recomputed',
  'other_backend',
]

function placeOf(reason: Reason, { message, tools, byte }: DifferenceView): string {
  if (CACHE.includes(reason)) return ''
  if (reason === 'tools_changed' && tools !== undefined) {
    const told = tools.slice(0, 3).map(({ name, change }) => `${name} ${change}`)
    return told.join(', ') + (tools.length > told.length ? ` and ${tools.length - told.length} more` : '')
  }
  if (message === undefined) return `at byte ${byte} of the prompt`
  const change = message.change === 'unchanged' ? '' : ` was ${message.change}`
  return `message ${message.index} (${message.role})${change}, at byte ${message.byte} of its ${PARTS[message.part]}`
}

const PARTS = { content: 'content', reasoning: 'reasoning', tool_calls: 'tool calls', frame: 'text' }

export interface Repeated {
  readonly changed: number
  readonly compared: number
  readonly byte: number
  readonly isNumber: boolean
  readonly difference: DifferenceView | undefined
}

/** The system prompt contains a clock: it changed in 14 of 14 turns at byte 212 */
export function repeatSentence(reason: Reason, { changed, compared, byte, isNumber, difference }: Repeated): string {
  const often = `${changed} of ${compared} turns`
  if (reason === 'system_changed') {
    const what = isNumber ? 'a clock or a counter' : 'something that changes'
    return `the system prompt contains ${what}: it changed in ${often} at byte ${byte}`
  }
  if (reason === 'tools_changed') {
    const names = difference?.tools?.map(({ name }) => name).slice(0, 3)
    return `the tools keep changing (${names?.join(', ') ?? 'unknown'}): in ${often}`
  }
  const message = difference?.message
  if (message === undefined) return `${PLAIN[reason]}: in ${often}`
  const what = isNumber ? ' contains a clock or a counter' : ' keeps changing'
  return `message ${message.index} (${message.role})${what}: ${PLAIN[reason]} in ${often} at byte ${byte}`
}

/** One line for a log or a list. */
export function lineOf({
  reason,
  missedTokens,
  sentence,
}: Pick<MissView, 'reason' | 'missedTokens' | 'sentence'>): string {
  return `${reason}: ${missedTokens} tokens; ${sentence}`
}
