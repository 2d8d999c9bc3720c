// What stands in front of a body: tools, and the leading system message of system text, memory blocks and the rule on
// summaries. Invariant: what it is made of decides its bytes, and the same parts are the same object again.

import { hash } from 'node:crypto'
import type { ChatMessage, ToolDefinition } from '../../../core/request.js'
import type { ContextSegment, Origin } from '../contract.js'
import type { Single } from './entries.js'
import type { ShownHead } from './head.js'
import { memoryText, SUMMARY_RULE } from './words.js'

/** The version that these bytes belong to. */
export const VERSION = 1

interface Parts {
  readonly tools: readonly ToolDefinition[]
  readonly system: string
  /** Memory blocks, and the rule. */
  readonly memory: string
  readonly retention: string
  readonly toolsAt: number
  readonly systemAt: number
  /** Positions of the first and last event of `memory`. */
  readonly memoryFrom: number
  readonly memoryTo: number
}

export interface Leading {
  readonly parts: Parts
  readonly root: string
  readonly segments: readonly Omit<ContextSegment, 'message'>[]
  readonly message: ChatMessage | undefined
  readonly origin: Origin
}

export function leadingParts(head: ShownHead, summary: Single | undefined, retention: string): Parts {
  const { tools, system, blocks, toolsAt, systemAt } = head
  const has = blocks.length > 0
  const memory = [...(has ? [memoryText(blocks)] : []), ...(summary === undefined ? [] : [SUMMARY_RULE])]
  const places = [
    ...(has ? [head.memoryFrom, head.memoryAt] : []),
    ...(summary === undefined ? [] : [summary.from, summary.to]),
  ]
  const [memoryFrom, memoryTo] = places.length === 0 ? [0, 0] : [Math.min(...places), Math.max(...places)]
  return { tools, system, memory: memory.join('\n\n'), retention, toolsAt, systemAt, memoryFrom, memoryTo }
}

/** `before`, where it was made of the same. */
export function leadingOf(parts: Parts, before: Leading | undefined): Leading {
  const keys = Object.keys(parts) as (keyof Parts)[]
  if (before !== undefined && keys.every((key) => parts[key] === before.parts[key])) return before
  const { tools, system, memory, retention, toolsAt, systemAt, memoryFrom, memoryTo } = parts
  const root = hash('sha256', JSON.stringify(['refrain-context', VERSION, retention]))
  const segments: Omit<ContextSegment, 'message'>[] = []
  let digest = root
  const add = (kind: ContextSegment['kind'], content: string, [from, to]: readonly [number, number]) => {
    digest = chained(digest, kind, hash('sha256', content))
    segments.push({ kind, from, to, digest })
  }
  if (tools.length > 0) add('tools', JSON.stringify(tools.map(({ name, json }) => [name, json])), [toolsAt, toolsAt])
  if (system !== '') add('system', system, [systemAt, systemAt])
  if (memory !== '') add('memory', memory, [memoryFrom, memoryTo])
  const content = [system, memory].filter((part) => part !== '').join('\n\n')
  const places = segments.flatMap(({ kind, from, to }) => (kind === 'tools' ? [] : [from, to]))
  return {
    parts,
    ...{ root, segments },
    message: messageOf(content, before),
    origin: { from: Math.min(...places), to: Math.max(...places), made: 'head' },
  }
}

function messageOf(content: string, before: Leading | undefined): ChatMessage | undefined {
  if (content === '') return undefined
  return before?.message?.content === content ? before.message : { role: 'system', content }
}

export function chained(before: string, kind: ContextSegment['kind'], content: string): string {
  return hash('sha256', `${before}|${kind}|${content}`)
}
