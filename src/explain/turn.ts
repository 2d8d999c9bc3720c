// One turn as it is remembered: counts, digests, and what was missed. Invariant: nothing of it is text but what `keepText`
// allows; a list of digests is shared by the turns that add to it.

import type { CacheUsage } from '../core/block.js'
import type { RequestClass } from '../core/request.js'
import type { MissView, TurnView } from './contract.js'
import type { Fingerprint } from './difference.js'
import type { MessageMark, ToolMark } from './fingerprint.js'
import { sentenceOf } from './sentences.js'

/** A list that later turns of the session add to: each sees its own length of it. */
export class Marks implements Fingerprint {
  readonly template: string
  readonly tools: readonly ToolMark[]
  readonly #list: MessageMark[]
  readonly count: number

  constructor(template: string, tools: readonly ToolMark[], list: MessageMark[]) {
    this.template = template
    this.tools = tools
    this.#list = list
    this.count = list.length
  }

  get messages(): readonly MessageMark[] {
    return this.#list.length === this.count ? this.#list : this.#list.slice(0, this.count)
  }

  /** Whether the other's list begins with this one. */
  isStartOf(other: Marks): boolean {
    return this.#list === other.#list && this.count <= other.count
  }

  /** The same and more. */
  with(template: string, more: readonly MessageMark[]): Marks {
    const list = this.#list.length === this.count ? this.#list : this.#list.slice(0, this.count)
    list.push(...more)
    return new Marks(template, this.tools, list)
  }
}

export interface Turn {
  readonly number: number
  readonly requestId: string
  readonly at: number
  readonly requestClass: RequestClass
  readonly model: string
  readonly backend: string
  readonly promptTokens: number
  status: TurnView['status']
  completionTokens: number
  committedTokens: number
  /** Of the prompt, what the next turn is to have too; undefined: all. */
  readonly stableTokens?: number
  usage: CacheUsage | undefined
  /** Undefined: not digested yet. */
  marks: Marks | undefined
  /** Marks that it does not share with the turn before. */
  ownMarks: number
  miss: MissView | undefined
  /** Undefined: it is no side request, or not computed yet. */
  quickTokens: number | undefined
  /** Another tenant's prompt begins with the same block: for admins to know. */
  isElsewhere: boolean
}

/** Of one turn's record, about; its marks are its session's. */
export const TURN_BYTES = 800
export const MARK_BYTES = 260

/** `admin`: sees that a first prompt is cached for somebody else. */
export function viewOf(turn: Turn, { admin }: { readonly admin: boolean }): TurnView {
  const { number, requestId, at, requestClass, model, backend, promptTokens, status, usage } = turn
  const miss = admin && turn.isElsewhere && turn.miss?.reason === 'first_seen' ? elsewhere(turn.miss) : turn.miss
  return {
    turn: number,
    ...{ requestId, at, requestClass, model, backend, status, promptTokens },
    template: turn.marks?.template ?? '',
    completionTokens: turn.completionTokens,
    committedTokens: turn.committedTokens,
    ...(usage && { cache: usage }),
    ...(miss && { miss }),
    ...(turn.quickTokens !== undefined && { quickTokens: turn.quickTokens }),
  }
}

function elsewhere(miss: MissView): MissView {
  const sentence = sentenceOf('tenant', undefined)
  return { ...miss, reason: 'tenant', sentence, causes: miss.causes.map((cause) => ({ ...cause, reason: 'tenant' })) }
}
