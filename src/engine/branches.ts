// The branches of one request: which of their tokens the next run computes, and in which rows of the slot. All of them are
// forks of the request's own lease and slot; nothing is copied, and nothing of them is kept. Invariants: a run's tokens
// stay within its budget; a row belongs to one branch until that is answered; every branch gets exactly one answer.
//
//   slot   [prompt .. length) [room for the answer) [reserved: rows of branches, taken and given back one by one)

import { RefrainError } from '../core/errors.js'
import type { BranchAnswer } from '../core/quick.js'
import type { Job } from '../core/request.js'
import { Branch } from './branch.js'
import type { ChoiceParts } from './choices.js'
import type { Runner, TreeToken } from './contract.js'
import type { Sequence } from './sequence.js'
import type { Slot } from './slot.js'

/** Rows that branches share at most, unless one alone needs more: the others wait until it has given its rows back. */
const RESERVED_ROWS = 1024

/** Rows of logits in one run: each is copied whole. */
const LOGITS_ROWS = 64

/** Tokens of a prompt that a run of branches takes along, at most. */
export const TRUNK_TOKENS = 64

/** A prompt that computes this many times what the branches do takes them along in its own last run. */
const COLD_FACTOR = 8

export class Branches {
  /** Where they fork off: at the prompt, or behind the answer to it. */
  readonly at: 'prompt' | 'reply'
  /** Nothing but them is asked. */
  readonly alone: boolean
  readonly #all: readonly Branch[]
  /** With rows of their own, in the order of their turns. */
  #open: Branch[] = []
  #queued: Branch[]
  /** Reserved rows that nobody has, counted from the first. */
  #free: number[] = []
  #begun = false
  #ready: boolean

  constructor({ branches = [], maxTokens }: Job) {
    this.#all = branches.map((plan) => new Branch(plan))
    this.#queued = [...this.#all]
    this.at = branches.some(({ shares }) => shares === 'reply') ? 'reply' : 'prompt'
    this.alone = maxTokens === 0
    this.#ready = this.at === 'prompt'
  }

  async prepare(parts: ChoiceParts, requestId: string): Promise<void> {
    await Promise.all(this.#all.map((branch) => branch.prepare(parts, requestId)))
  }

  /** Rows to seat the request with, beyond its own. */
  get rows(): number {
    const needs = this.#all.map(({ need }) => need)
    return Math.max(
      ...needs,
      Math.min(
        RESERVED_ROWS,
        needs.reduce((sum, need) => sum + need, 0),
      ),
    )
  }

  /** Leading tokens of the prompt that all of them see. */
  get stem(): number {
    return Math.min(...this.#all.map(({ shares }) => shares))
  }

  get hasBegun(): boolean {
    return this.#begun
  }

  get isOver(): boolean {
    return this.#all.every(({ answer }) => answer !== undefined)
  }

  /** Whether a run could compute something now. */
  get isReady(): boolean {
    return this.#ready && !this.isOver
  }

  get answers(): readonly BranchAnswer[] {
    return this.#all.map(({ answer }) => answer as BranchAnswer)
  }

  /**
   * Whether the rest of a prompt, `remaining` tokens at `depth` of which `computed` were computed for this request, goes
   * into the branches' first run. An answer's own prompt does so only where the branches hardly delay its first token.
   */
  takesRest({ depth, remaining, computed }: { depth: number; remaining: number; computed: number }): boolean {
    if (this.at === 'reply' || this.isOver) return false
    if (this.alone) return remaining <= TRUNK_TOKENS
    return this.isCold(computed) && depth + 1 >= this.stem && remaining <= TRUNK_TOKENS
  }

  /** Whether a prompt has so much to compute that the branches may ride along with its end. */
  isCold(computed: number): boolean {
    if (this.at === 'reply' || this.alone) return false
    return computed >= COLD_FACTOR * this.#all.reduce((sum, { planned }) => sum + planned, 0)
  }

  /** The answer that they follow is there: `length` tokens in the slot, and `last`, sampled and not computed. */
  follow(length: number, last: number | undefined): void {
    for (const branch of this.#all) branch.follow(length, last)
    this.#ready = true
  }

  /** Reserves rows of `slot`, all but `kept` for the request's own tokens. */
  begin(slot: Slot, kept: number): void {
    this.#begun = true
    slot.reserved = Math.max(0, Math.min(this.rows, slot.capacity - kept))
    this.#free = Array.from({ length: slot.reserved }, (_, i) => slot.reserved - 1 - i)
    const tight = new RefrainError('out_of_memory', 'the slot has no room for it beside the rest of the request')
    for (const branch of this.#all) if (branch.need > slot.reserved) branch.fail(tight)
  }

  /** Ends those that are not answered. */
  fail(fault: RefrainError): void {
    for (const branch of this.#all) if (branch.answer === undefined) branch.fail(fault)
    this.#settle()
  }

  dispose(): void {
    for (const branch of this.#all) branch.dispose()
  }

  /** Lays out `budget` tokens at most. */
  lay(slot: Slot, budget: number): { readonly branch: Branch; readonly from: number; readonly tokens: TreeToken[] }[] {
    this.#settle()
    const place = { base: slot.room, length: slot.length }
    const laid = []
    let [tokens, logits] = [budget, LOGITS_ROWS]
    for (const branch of this.#open) {
      const count = Math.min(branch.waiting, tokens, branch.quiet + logits)
      if (count === 0) continue
      const rows = Array.from({ length: count }, () => this.#free.pop() as number)
      const from = branch.rows.length
      const laidOut = branch.lay(rows, place)
      laid.push({ branch, from, tokens: laidOut })
      tokens -= count
      logits -= laidOut.filter(({ wantsLogits }) => wantsLogits).length
    }
    // Whoever got nothing is first the next time.
    const served = new Set(laid.map(({ branch }) => branch))
    this.#open = [...this.#open.filter((branch) => !served.has(branch)), ...served]
    return laid
  }

  /** Frees the rows of those that are answered, and lets in those that wait for room. */
  #settle(): void {
    for (const branch of this.#open) if (branch.answer !== undefined) this.#free.push(...branch.rows)
    this.#open = this.#open.filter(({ answer }) => answer === undefined)
    let promised = this.#open.reduce((sum, branch) => sum + branch.need - branch.rows.length, 0)
    this.#queued = this.#queued.filter((branch) => {
      if (branch.answer !== undefined) return false
      if (promised + branch.need > this.#free.length) return true
      promised += branch.need
      this.#open.push(branch)
      return false
    })
  }
}

export interface BranchRun {
  /** Tokens that were computed. */
  readonly count: number
  /** Logits behind the prompt, where its end was in the run and an answer to it is asked. */
  readonly logits: Float32Array | undefined
}

/** One run for all branches of `sequence`, and for what is left of its prompt; `budget` tokens and that rest. */
export async function runBranches(sequence: Sequence, runner: Runner, budget: number): Promise<BranchRun> {
  const { slot } = sequence.held()
  const branches = sequence.branches as Branches
  if (runner.tree === undefined) throw new Error('a runner without trees was given branches')
  const { length } = slot
  const rest = sequence.job.tokens.subarray(length)
  const trunk = Array.from(rest, (id, i): TreeToken => {
    const behind = Array.from({ length: i }, (_, before) => length + before)
    return { id, sees: length, behind, row: length + i, wantsLogits: !branches.alone && i === rest.length - 1 }
  })
  const laid = branches.lay(slot, Math.max(1, budget - trunk.length))
  const logits = [...(await runner.tree(slot, [...trunk, ...laid.flatMap(({ tokens }) => tokens)]))]
  slot.advance(rest)
  const own = rest.length > 0 && !branches.alone ? logits.shift()?.slice() : undefined
  for (const { branch, from, tokens } of laid) {
    for (const [i, { wantsLogits }] of tokens.entries()) {
      if (wantsLogits) branch.take(from + i, logits.shift() as Float32Array)
    }
  }
  return { count: trunk.length + laid.reduce((sum, { tokens }) => sum + tokens.length, 0), logits: own }
}

/** Lets branches begin that wait for the end of the first choice. */
export function followUp({ branches, choices: [first] }: Sequence, eosTokenIds: readonly number[]): void {
  if (branches?.at !== 'reply' || branches.isReady || branches.isOver) return
  if (first === undefined || first.pending !== undefined) return
  const { last, slot } = first
  // What ends the turn stands in the suffix; any other token belongs to the answer.
  branches.follow(slot.length, last !== undefined && eosTokenIds.includes(last) ? undefined : last)
}
