// Quick instructions: side questions on a prefix that is computed already. What a client asks (QuickAsk), what a backend
// runs (BranchPlan: a suffix behind the shared prefix and the form of its answer), what comes back (BranchAnswer, and
// QuickResult for the client). Plain data: it crosses thread borders by structured clone.

import type { ErrorCode } from './errors.js'
import type { Constraint } from './request.js'

/** The tasks that have a meaning of their own; `custom` brings its instruction along. */
export const QUICK_TASKS = ['action', 'title', 'query', 'authority', 'domain', 'read_url', 'custom'] as const

export type QuickTaskName = (typeof QUICK_TASKS)[number]

export interface QuickTask {
  readonly task: QuickTaskName
  /** The field that complaints name, as `tasks[2]`. */
  readonly path: string
  /** In place of the catalogue's own words; what a `custom` task asks. */
  readonly instruction?: string
  /** One of these is the answer. At most one of choices, schema and regex is given. */
  readonly choices?: readonly string[]
  /** Raw JSON text of the schema that the answer fits. */
  readonly schema?: string
  readonly regex?: string
  readonly maxTokens?: number
  /** Of `read_url`: each is a question of its own. */
  readonly urls?: readonly string[]
  /** An end token is a token like any other, so that exactly `maxTokens` come: for measurements. */
  readonly ignoreEos?: boolean
}

export interface QuickAsk {
  readonly tasks: readonly QuickTask[]
  /** Behind the last message of the request, or behind the answer that is generated to it. */
  readonly at: 'user' | 'reply'
}

/** A token of a branch's tree, or what ends one: see ChoiceTrie. */
export interface ChoiceEdge {
  /** Index of the node that the edge leaves; -1: the end of the suffix. */
  readonly node: number
  readonly id: number
}

/**
 * The tokens of all choices as a tree. A node is a token that at least one choice goes on behind, so that its logits are
 * needed; the last token of a choice is an edge without a node. Choices of one token each have no nodes at all.
 *
 *   "no", "not yet", "not ever"      (end of suffix) --no       nodes: [not]   edges: -1:no | -1:not 0:yet | -1:not 0:ever
 *                                          `--not --yet
 *                                                `--ever
 */
export interface ChoiceTrie {
  /** Token of each node, parents before children. */
  readonly ids: readonly number[]
  /** Index of each node's parent; -1: the end of the suffix. */
  readonly parents: readonly number[]
  /** For each choice, the edges from the end of the suffix to its last token. */
  readonly paths: readonly (readonly ChoiceEdge[])[]
}

export type BranchForm =
  | { readonly kind: 'choice'; readonly trie: ChoiceTrie }
  | {
      readonly kind: 'text'
      readonly maxTokens: number
      readonly constraint?: Constraint
      readonly stop: readonly string[]
      readonly ignoreEos: boolean
    }

/** A fork of the prompt: what it sees of it, what stands behind, and how its answer comes about. Always greedy. */
export interface BranchPlan {
  /** Leading tokens of the job's prompt that it sees; `reply`: all of them, and the answer's own. */
  readonly shares: number | 'reply'
  /** At least one token. */
  readonly suffix: Int32Array
  readonly form: BranchForm
  /** The field that complaints name. */
  readonly path: string
}

export interface BranchFault {
  readonly code: ErrorCode
  readonly message: string
}

/** In the order of the plans. `suffixTokens` and `answerTokens` are what the branch added to the call. */
export type BranchAnswer = {
  readonly suffixTokens: number
  readonly answerTokens: number
} & (
  | { readonly kind: 'text'; readonly text: string; readonly reason: 'stop' | 'length' }
  /** Natural logarithm of each choice's probability behind the suffix, in the order of the trie's paths. */
  | { readonly kind: 'choice'; readonly logprobs: readonly number[] }
  | { readonly kind: 'fault'; readonly fault: BranchFault }
)

/** `incomplete`: maxTokens ended a JSON text, or one that a regex asked for, before its own end. */
export type QuickFault = { readonly code: ErrorCode | 'incomplete'; readonly message: string }

export interface QuickUsage {
  /** Of the suffix alone; the shared prefix is counted once for the whole call. */
  readonly promptTokens: number
  readonly completionTokens: number
  /** Of a question that was a request of its own: what its backend says that it reused. */
  readonly cachedTokens?: number
}

/** A question that a server elsewhere gets as a request of its own: what its answer must be. */
export interface Aside {
  /** The field that complaints name. */
  readonly path: string
  readonly maxTokens: number
  readonly stop?: readonly string[]
  readonly ignoreEos?: boolean
  readonly guide?:
    | { readonly kind: 'choice'; readonly choices: readonly string[] }
    /** Raw JSON text. */
    | { readonly kind: 'json-schema'; readonly schema: string }
    | { readonly kind: 'regex'; readonly regex: string }
}

export interface QuickResult {
  readonly task: QuickTaskName
  /** Of `read_url`. */
  readonly url?: string
  /** By a special token that the model was trained with, or by an instruction in words. */
  readonly form: 'native' | 'instruction'
  readonly text?: string
  readonly choice?: string
  /** Raw JSON text. */
  readonly json?: string
  /** Of every choice, in the order asked; they sum to 1. */
  readonly probabilities?: readonly { readonly choice: string; readonly probability: number }[]
  readonly error?: QuickFault
  readonly usage: QuickUsage
}
