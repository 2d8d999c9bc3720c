// What is sent, in which order, and what has to be over before: a trace as a list of requests. Invariant: a request follows
// whatever had ended in its family (a session and its sub-agents) when it began in the trace; the plan has no text, which
// is made when a request is sent.

import { createHash } from 'node:crypto'
import { BLOCK_TOKENS } from '../core/block.js'
import { referencesOf } from '../simulate/references.js'
import type { Trace, TraceRequest } from '../trace/trace.js'
import { type Conversations, charsOf, type Message } from './conversations.js'

export interface PlannedRequest {
  /** Its place in the plan. */
  readonly index: number
  /** Seconds from the start of the trace; 0 for all where the trace has no times. */
  readonly at: number
  /** As it is told to the server; undefined: the trace names no conversations. */
  readonly session: string | undefined
  readonly parent: string | undefined
  /** Counts from 1; 0 where there is no conversation. */
  readonly turn: number
  /** Of a session and its sub-agents, the session's name. */
  readonly family: string
  /** Requests that must be over, by index. */
  readonly after: readonly number[]
  /** Seconds that the client took in the trace from their end to this request. */
  readonly pause: number
  /** Tokens as the trace says. */
  readonly promptTokens: number | undefined
  readonly outputTokens: number | undefined
  /** Of the prompt, what a cache that keeps everything would have, 0 to 1. */
  readonly idealShare: number
}

export type PlannedTexts =
  | { readonly kind: 'blocks'; readonly blockTokens: number; readonly requests: readonly TraceRequest[] }
  | {
      readonly kind: 'messages'
      readonly requests: readonly {
        readonly messages: readonly Message[]
        readonly tools: readonly unknown[] | undefined
      }[]
    }

export interface Plan {
  readonly name: string
  /** Of everything that decides what is sent. */
  readonly digest: string
  readonly requests: readonly PlannedRequest[]
  readonly texts: PlannedTexts
  /** False: the trace says nothing of when. */
  readonly hasTimes: boolean
  /** Requests of the trace that are not in the plan, by why. */
  readonly leftOut: { readonly long: number; readonly limit: number }
}

export interface PlanOptions {
  /** Requests, the first of the trace. */
  readonly limit?: number
  /** Longer prompts are left out; tokens as the trace counts them. */
  readonly maxPrompt?: number
}

export function planBlocks(trace: Trace, options: PlanOptions = {}): Plan {
  const { maxPrompt = Number.POSITIVE_INFINITY, limit = Number.POSITIVE_INFINITY } = options
  const short = trace.requests.filter(({ promptTokens }) => promptTokens <= maxPrompt)
  const requests = short.slice(0, limit)
  const named = requests.map((request, i) => ({
    at: request.at,
    end: request.duration === undefined ? undefined : request.at + request.duration,
    session: labelOf(request, request.session),
    parent: labelOf(request, request.parent),
    turn: request.turn,
    promptTokens: request.promptTokens,
    outputTokens: request.outputTokens,
    key: labelOf(request, request.session) ?? `#${i}`,
  }))
  const shares = blockShares({ ...trace, requests })
  const digest = createHash('sha256').update(`${trace.blockTokens}\n`)
  for (const { blocks, promptTokens, outputTokens, session, scope } of requests) {
    digest.update(JSON.stringify([session, scope, promptTokens, outputTokens, blocks]))
  }
  return {
    name: trace.name,
    digest: digest.digest('hex'),
    requests: joined(named, shares),
    texts: { kind: 'blocks', blockTokens: trace.blockTokens, requests },
    hasTimes: requests.some(({ at }) => at > 0),
    leftOut: { long: trace.requests.length - short.length, limit: short.length - requests.length },
  }
}

export function planConversations({ name, requests: all }: Conversations, options: PlanOptions = {}): Plan {
  const { maxPrompt = Number.POSITIVE_INFINITY, limit = Number.POSITIVE_INFINITY } = options
  const estimate = (messages: readonly Message[]) => messages.reduce((sum, each) => sum + charsOf(each), 0) / 4
  const short = all.filter(({ messages }) => estimate(messages) <= maxPrompt)
  const requests = short.slice(0, limit)
  const named = requests.map(({ at = 0, session, turn, outputTokens }) => ({
    ...{ at, end: undefined, session, parent: undefined, turn, promptTokens: undefined, outputTokens, key: session },
  }))
  const digest = createHash('sha256')
  for (const { messages, tools } of requests) digest.update(JSON.stringify([messages, tools]))
  return {
    name,
    digest: digest.digest('hex'),
    requests: joined(named, textShares(requests.map(({ messages }) => messages))),
    texts: { kind: 'messages', requests },
    hasTimes: requests.some(({ at }) => at !== undefined && at > 0),
    leftOut: { long: all.length - short.length, limit: short.length - requests.length },
  }
}

/** Sessions of different scopes may have one name. */
function labelOf({ scope }: TraceRequest, session: string | undefined): string | undefined {
  return session === undefined || scope === 0 ? session : `${session}~${scope}`
}

type Named = Omit<PlannedRequest, 'index' | 'family' | 'after' | 'pause' | 'idealShare'> & {
  /** When its answer was over; undefined: the trace does not say. */
  readonly end: number | undefined
  /** Of its conversation; its own where there is none. */
  readonly key: string
}

function joined(named: readonly Named[], shares: readonly number[]): PlannedRequest[] {
  const parents = new Map<string, string>()
  for (const { key, parent } of named) if (parent !== undefined) parents.set(key, parent)
  const familyOf = (key: string): string => {
    const seen = new Set<string>()
    let root = key
    while (parents.has(root) && !seen.has(root)) {
      seen.add(root)
      root = parents.get(root)!
    }
    return root
  }
  /** What is not yet followed by anything of its family, by family. */
  const open = new Map<string, Set<number>>()
  return named.map((request, index) => {
    const family = familyOf(request.key)
    const ends = open.get(family) ?? new Set<number>()
    open.set(family, ends)
    const after = [...ends].filter((other) => follows(request, named[other]!))
    for (const other of after) if (isOver(request, named[other]!)) ends.delete(other)
    ends.add(index)
    const { key: _, end: __, ...rest } = request
    const since = Math.max(...after.map((other) => named[other]!.end ?? request.at))
    const pause = after.length === 0 ? 0 : Math.max(0, request.at - since)
    return { ...rest, index, family, after, pause, idealShare: shares[index]! }
  })
}

/** Whether `before` must be over: it is the same conversation's, or had ended by then in the trace. */
function follows(request: Named, before: Named): boolean {
  return before.key === request.key || isRelated(request, before) ? isEnded(request, before) : false
}

/** A turn of a conversation always follows the one before, whatever times say. */
function isEnded(request: Named, before: Named): boolean {
  return before.key === request.key || before.end === undefined || before.end <= request.at
}

/** Parent and sub-agent wait for each other; sub-agents of one parent run beside each other. */
function isRelated(request: Named, before: Named): boolean {
  return request.parent === before.key || before.parent === request.key
}

/** Whether nothing that comes later needs to wait for `before` itself, since it will wait for `request`. */
function isOver(request: Named, before: Named): boolean {
  return before.key === request.key
}

/** Blocks of which each was at the same place behind the same ones before. */
function blockShares(trace: Trace): number[] {
  const { requests } = referencesOf(trace)
  const seen = new Set<number>()
  return requests.map(({ nodes, promptTokens }) => {
    let shared = 0
    while (shared < nodes.length && seen.has(nodes[shared]!)) shared++
    for (const node of nodes) seen.add(node)
    const most = Math.floor((promptTokens - 1) / BLOCK_TOKENS)
    return promptTokens === 0 ? 0 : (Math.max(0, Math.min(shared, most)) * BLOCK_TOKENS) / promptTokens
  })
}

/** By characters of whole messages that an earlier prompt had in front. */
function textShares(prompts: readonly (readonly Message[])[]): number[] {
  const seen = new Set<string>()
  return prompts.map((messages) => {
    const hash = createHash('sha256')
    let [shared, all] = [0, 0]
    let isShared = true
    for (const message of messages) {
      const digest = hash
        .update(`${JSON.stringify(message)}\n`)
        .copy()
        .digest('base64')
      const chars = charsOf(message)
      all += chars
      isShared &&= seen.has(digest)
      if (isShared) shared += chars
      seen.add(digest)
    }
    return all === 0 ? 0 : shared / all
  })
}
