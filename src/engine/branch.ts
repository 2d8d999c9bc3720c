// One branch of a prompt: a suffix behind what it shares, and what grows from there, as a tree of tokens. Invariant: nodes
// are computed parents first, each once; an answer, once there, stays as it is. `branches.ts` says which are computed when.
//
//   shared prefix ──[suffix 0]─ ... ─[suffix s-1]──[sampled]─[sampled]─ ...            text
//                                        `─────────[node 0]─[node 1], [node 2] ...     choice: inner nodes of its trie

import { ERRORS, RefrainError } from '../core/errors.js'
import type { BranchAnswer, BranchForm, BranchPlan, ChoiceTrie } from '../core/quick.js'
import type { Sampling } from '../core/request.js'
import type { ChoiceParts } from './choices.js'
import type { TreeToken } from './contract.js'
import type { Matcher } from './grammar.js'
import { logSumExp } from './nucleus.js'
import { createOutput } from './output.js'
import { createSampler } from './sampler.js'

/** Side questions have one answer: the best. */
const GREEDY: Sampling = {
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: {},
}

interface Node {
  readonly id: number
  /** Index of the node before it; -1: the shared prefix. */
  readonly parent: number
}

type Grown<A> = A extends unknown ? Omit<A, 'suffixTokens'> : never

/** How an answer comes about once the suffix is computed. */
interface Growth {
  /** Nodes that are known beforehand, behind the suffix. */
  readonly nodes: readonly Node[]
  /** Takes a node's logits (-1: the end of the suffix); returns the token that follows it, where one is to be computed. */
  take(node: number, logits: Float32Array): number | undefined
  /** Undefined: not over. */
  readonly answer: Grown<BranchAnswer> | undefined
  dispose?(): void
}

export class Branch {
  readonly plan: BranchPlan
  /** Tokens of the slot that it sees; known once the prompt's answer is there where it follows that. */
  shares: number
  #answer: BranchAnswer | undefined
  readonly #nodes: Node[] = []
  /** Of the nodes that were computed, or are just now: their rows, counted within the reserved ones. */
  readonly #rows: number[] = []
  #suffixTokens: number
  #growth: Growth | undefined

  constructor(plan: BranchPlan) {
    this.plan = plan
    this.shares = plan.shares === 'reply' ? Number.POSITIVE_INFINITY : plan.shares
    this.#suffixTokens = plan.suffix.length
    this.#nodes.push(...chainOf(plan.suffix))
  }

  /** Compiles what the answer must match. What is wrong with it is this branch's fault alone. */
  async prepare(parts: ChoiceParts, requestId: string): Promise<void> {
    const { form } = this.plan
    try {
      this.#growth =
        form.kind === 'choice' ? choiceGrowth(form.trie) : await textGrowth(form, parts, { requestId, ...this.plan })
      this.#hang()
    } catch (fault) {
      this.fail(fault)
    }
  }

  get answer(): BranchAnswer | undefined {
    return this.#answer
  }

  /** Rows that it takes at most: of an answer, the last token is sampled and never computed. */
  get need(): number {
    const { form } = this.plan
    return this.#suffixTokens + (form.kind === 'choice' ? form.trie.ids.length : form.maxTokens - 1)
  }

  /** Tokens of its first run, where the budget has room for them. */
  get planned(): number {
    return this.#nodes.length
  }

  /** Nodes that can be computed now. */
  get waiting(): number {
    return this.#answer === undefined ? this.#nodes.length - this.#rows.length : 0
  }

  /** Nodes that can be computed now and whose logits nobody needs. */
  get quiet(): number {
    return Math.max(0, this.#suffixTokens - 1 - this.#rows.length)
  }

  /** The rows that it gives back. */
  get rows(): readonly number[] {
    return this.#rows
  }

  /** Goes on behind an answer of `length` tokens in the slot, and `last`, which was sampled and is not computed yet. */
  follow(length: number, last: number | undefined): void {
    this.shares = length
    if (last === undefined) return
    this.#suffixTokens++
    this.#nodes.splice(0, this.#nodes.length, ...chainOf([last, ...this.plan.suffix]))
    this.#hang()
  }

  /** Lays out the next `rows.length` nodes. `base` is the slot's row of reserved row 0, `length` what the slot holds. */
  lay(rows: readonly number[], { base, length }: { readonly base: number; readonly length: number }): TreeToken[] {
    const sees = Math.min(this.shares, length)
    const trunk = Array.from({ length: this.shares - sees }, (_, i) => sees + i)
    return rows.map((row) => {
      const node = this.#nodes[this.#rows.length] as Node
      const ancestors: number[] = []
      for (let at = node.parent; at >= 0; at = (this.#nodes[at] as Node).parent) {
        ancestors.push(base + (this.#rows[at] as number))
      }
      const wantsLogits = this.#rows.push(row) >= this.#suffixTokens
      return { id: node.id, sees, behind: [...trunk, ...ancestors.reverse()], row: base + row, wantsLogits }
    })
  }

  /** Takes the logits of the `index`-th token that was laid out, counted from the suffix's first. */
  take(index: number, logits: Float32Array): void {
    const growth = this.#growth
    if (this.#answer !== undefined || growth === undefined) return
    try {
      const following = growth.take(index - this.#suffixTokens, logits)
      if (following !== undefined) this.#nodes.push({ id: following, parent: index })
      const { answer } = growth
      if (answer !== undefined) this.#answer = { ...answer, suffixTokens: this.#suffixTokens }
    } catch (fault) {
      this.fail(fault)
    }
  }

  /** Ends it with a fault of the caller's, or of a state that the caller must know. @throws any other fault. */
  fail(fault: unknown): void {
    if (!(fault instanceof RefrainError) || ERRORS[fault.code].status === 500) throw fault
    const { code, message } = fault
    this.#answer ??= { kind: 'fault', fault: { code, message }, suffixTokens: this.#suffixTokens, answerTokens: 0 }
  }

  dispose(): void {
    this.#growth?.dispose?.()
  }

  /** Hangs the nodes that are known beforehand behind the suffix. */
  #hang(): void {
    const end = this.#suffixTokens - 1
    for (const { id, parent } of this.#growth?.nodes ?? []) this.#nodes.push({ id, parent: end + 1 + parent })
  }
}

function chainOf(ids: ArrayLike<number>): Node[] {
  return Array.from(ids, (id, i) => ({ id, parent: i - 1 }))
}

/** Every choice's probability is the product of its tokens'; all nodes are known beforehand. */
function choiceGrowth({ ids, parents, paths }: ChoiceTrie): Growth {
  const edges = new Map<number, Map<number, number>>()
  for (const { node, id } of paths.flat()) edges.set(node, (edges.get(node) ?? new Map()).set(id, 0))
  let open = edges.size
  const best = () => {
    const logprobs = paths.map((path) => path.reduce((sum, { node, id }) => sum + (edges.get(node)?.get(id) ?? 0), 0))
    const top = logprobs.indexOf(Math.max(...logprobs))
    return { kind: 'choice', logprobs, answerTokens: paths[top]?.length ?? 0 } as const
  }
  return {
    nodes: ids.map((id, i) => ({ id, parent: parents[i] as number })),
    take(node, logits) {
      const children = edges.get(node)
      if (children === undefined) throw new Error(`node ${node} of a trie has no edges`)
      const normalizer = logSumExp(logits, maxOf(logits))
      for (const id of children.keys()) children.set(id, (logits[id] as number) - normalizer)
      open--
      return undefined
    },
    get answer() {
      return open === 0 ? best() : undefined
    },
  }
}

function maxOf(logits: Float32Array): number {
  let best = Number.NEGATIVE_INFINITY
  for (const logit of logits) if (logit > best) best = logit
  return best
}

type TextForm = Extract<BranchForm, { kind: 'text' }>

async function textGrowth(
  { maxTokens, constraint, stop, ignoreEos }: TextForm,
  { tokenizer, grammars }: ChoiceParts,
  { requestId, path }: { readonly requestId: string; readonly path: string },
): Promise<Growth> {
  let matcher: Matcher | undefined
  if (constraint !== undefined) {
    if (grammars === undefined) {
      throw new RefrainError('unsupported_parameter', 'this model has no constrained output', { param: path })
    }
    matcher = (await grammars.compile(constraint)).matcher()
  }
  const { vocabSize, eosTokenIds } = tokenizer
  const sampler = createSampler(GREEDY, { promptTokens: new Int32Array(0), vocabSize, choice: 0, requestId })
  const output = createOutput({
    ...{ tokenizer, detokenizer: tokenizer.stream(), stops: stop, eosTokenIds, stopTokenIds: [] },
    ...{ ignoreEos, maxTokens, logprobs: undefined },
  })
  let text = ''
  let answerTokens = 0
  let reason: 'stop' | 'length' | undefined
  return {
    nodes: [],
    take(_, logits) {
      const sampled = sampler.sample(logits, matcher?.mask())
      matcher?.accept(sampled.id)
      answerTokens++
      const step = output.push(sampled)
      text += step.text
      reason = step.done?.reason
      if (reason === undefined && matcher?.finished === true) {
        text += output.flush()
        reason = 'stop'
      }
      return reason === undefined ? sampled.id : undefined
    },
    get answer() {
      return reason === undefined ? undefined : ({ kind: 'text', text, reason, answerTokens } as const)
    },
    dispose: () => matcher?.dispose(),
  }
}
