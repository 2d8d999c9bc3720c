// The engine: one loop, one step at a time: plan -> run -> settle. Runs in the worker thread. Invariants: the loop never
// waits for disk or network (leases are acquired beside it, and a sequence joins with its blocks in memory); every
// request gets exactly one ending; blocks that were computed are kept even when their request is cancelled.

import type { KvCache } from '../cache/contract.js'
import { BLOCK_TOKENS, type KvLayout } from '../core/block.js'
import { Channel } from '../core/channel.js'
import type { Clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'
import { linkAbort } from '../core/linked-abort.js'
import type { Job } from '../core/request.js'
import { stepDone } from '../core/signals.js'
import type { Kernels } from '../native/contract.js'
import { Branches, followUp, runBranches } from './branches.js'
import { type ChoiceParts, growChoices, settleToken } from './choices.js'
import type { Runner } from './contract.js'
import { tellPhases } from './phases.js'
import { growRoom, HEADROOM, RESERVE_TOKENS, seatBranches } from './room.js'
import { CHUNKS, type ChunkRule, chunkOf, decodeRuns, pickNext } from './scheduler.js'
import { type Choice, Sequence } from './sequence.js'
import { isBacked, pinCheckpoints } from './side.js'
import { aside, inherited } from './turns.js'
import type { Spares, WorkingSet } from './working-set.js'

export interface EngineOptions {
  /** Sequences that run at once, each with a slot of its own. */
  readonly maxRunning: number
  /** limits.queuedRequests */
  readonly queuedRequests: number
  /** limits.queueMs */
  readonly queueMs: number
  /** limits.sideRequestMs; absent: as queueMs. */
  readonly sideRequestMs?: number
  readonly chunks?: ChunkRule
}

export interface EngineDeps extends ChoiceParts {
  readonly runner: Runner
  readonly cache: KvCache
  readonly workingSet: WorkingSet
  readonly kernels: Kernels
  readonly clock: Clock
}

const NO_LOGITS = new Float32Array(0)

export class Engine {
  readonly #options: EngineOptions
  readonly #deps: EngineDeps
  readonly #queue = new Set<Sequence>()
  readonly #running = new Set<Sequence>()
  /** Tokens that each tenant was given lately. */
  readonly #served = new Map<string, number>()
  #orders = 0
  #wake: (() => void) | undefined
  /** Something changed since the last plan was made. */
  #changed = false
  #closed = false
  readonly #loop: Promise<void>

  constructor(options: EngineOptions, deps: EngineDeps) {
    this.#options = options
    this.#deps = deps
    this.#loop = this.#run()
  }

  get #chunks(): ChunkRule {
    return this.#options.chunks ?? CHUNKS
  }

  get layout(): KvLayout {
    return this.#deps.runner.layout
  }

  get load(): { readonly running: number; readonly waiting: number } {
    return { running: this.#running.size, waiting: this.#queue.size }
  }

  /** Resolves only by `close`; rejects with what broke the engine, after every request has failed with it. */
  get done(): Promise<void> {
    return this.#loop
  }

  /**
   * Runs a job; see `Backend.generate`.
   * @throws RefrainError `queue_full`, `queue_timeout`, `context_length_exceeded`, `out_of_memory`, `invalid_grammar`
   */
  generate(job: Job, signal: AbortSignal): AsyncIterable<GenerateEvent> {
    const link = linkAbort(signal)
    const events = new Channel<GenerateEvent>(() => link.abort(new Error('the reader left')))
    const init = { order: this.#orders++, events, signal: link.signal, now: this.#deps.clock.now() }
    const sequence = new Sequence(job, init)
    if (job.branches !== undefined) sequence.branches = new Branches(job)
    const refusal = this.#refusal(job)
    if (refusal !== undefined) {
      link.unlink()
      events.fail(refusal)
      return events
    }
    sequence.unlink = link.unlink
    this.#queue.add(sequence)
    sequence.cancelTimers = this.#limitWait(sequence)
    link.signal.addEventListener('abort', () => {
      // A sequence that is in the runner's hands is ended by the loop, when the run is over.
      if (sequence.phase !== 'prefill' && sequence.phase !== 'decode') this.#end(sequence, link.signal.reason)
      this.#signal()
    })
    this.#signal()
    return events
  }

  /** Ends a sequence that waits too long for its start. */
  #limitWait(sequence: Sequence): () => void {
    const { queueMs, sideRequestMs = queueMs } = this.#options
    const { clock } = this.#deps
    const cancelQueue = clock.after(queueMs, () => {
      if (!this.#queue.has(sequence)) return
      const text = `the request waited ${queueMs} ms (limits.queueMs) and was not started`
      this.#end(sequence, new RefrainError('queue_timeout', text, { retryAfterMs: 5000 }))
    })
    const cancelSide = clock.after(sideRequestMs, () => {
      if (this.#queue.has(sequence) && sequence.starved) this.#refuseSide(sequence)
    })
    return () => {
      cancelQueue()
      cancelSide()
    }
  }

  #refuseSide(sequence: Sequence): void {
    const { queueMs, sideRequestMs = queueMs } = this.#options
    const text = `no room came free within ${sideRequestMs} ms (limits.sideRequestMs) but what sessions hold`
    this.#end(sequence, new RefrainError('no_room', text, { retryAfterMs: 5000 }))
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#signal()
    await this.#loop
  }

  #refusal(job: Job): Error | undefined {
    const { queuedRequests, maxRunning } = this.#options
    if (this.#closed) return new RefrainError('draining', 'the engine is shutting down', { retryAfterMs: 2000 })
    if (this.#queue.size >= queuedRequests + Math.max(0, maxRunning - this.#running.size)) {
      const text = `${this.#queue.size} requests are waiting already (limits.queuedRequests is ${queuedRequests})`
      return new RefrainError('queue_full', text, { retryAfterMs: 2000 })
    }
    if (job.tokens.length === 0)
      return new RefrainError('invalid_request', 'the prompt is empty', { param: 'messages' })
    if (job.branches !== undefined && this.#deps.runner.tree === undefined) {
      return new RefrainError('unsupported_parameter', 'engine.quick is off', { param: 'quick' })
    }
    if (!this.#deps.workingSet.fits(job.tokens.length + 1)) {
      return new RefrainError('context_length_exceeded', `a prompt of ${job.tokens.length} tokens has no room`)
    }
    return undefined
  }

  async #run(): Promise<void> {
    try {
      while (!this.#closed) {
        this.#changed = false
        this.#admit()
        if (await this.#step()) await new Promise(setImmediate)
        else await this.#idle()
      }
      this.#endAll(new RefrainError('draining', 'the engine was shut down', { retryAfterMs: 2000 }))
    } catch (fault) {
      this.#closed = true
      this.#endAll(new RefrainError('engine_failed', 'the engine failed', { cause: fault, retryAfterMs: 1000 }))
      throw fault
    }
  }

  #endAll(reason: Error): void {
    for (const sequence of [...this.#queue, ...this.#running]) this.#end(sequence, reason)
  }

  /** Sleeps until something changes; a signal that came since the plan was made is not lost. */
  async #idle(): Promise<void> {
    if (this.#closed || this.#changed) return
    await new Promise<void>((resolve) => {
      this.#wake = resolve
    })
  }

  #signal(): void {
    this.#changed = true
    const wake = this.#wake
    this.#wake = undefined
    wake?.()
  }

  #admit(): void {
    while (this.#running.size < this.#options.maxRunning) {
      const next = pickNext(this.#queue, this.#served)
      if (next === undefined) return
      // One place is kept for what a person waits for: side requests must not fill the house.
      if (next.priority !== 'interactive' && this.#running.size + 1 >= Math.max(2, this.#options.maxRunning)) return
      const { tokens, chain, maxTokens } = next.job
      const least = tokens.length + Math.min(maxTokens, RESERVE_TOKENS)
      const headroom = this.#deps.runner.takesWideSlots === true ? Math.ceil(tokens.length * HEADROOM) : 0
      const room = { capacity: least + Math.max(headroom, next.branches?.rows ?? 0), least }
      const seat = this.#deps.workingSet.take(chain.root, tokens, room, this.#sparesFor(next))
      // Whoever is next waits for room; letting smaller ones pass would starve it.
      if (seat === undefined) {
        if (next.job.transient !== true) return
        next.starved = true
        const { queueMs, sideRequestMs = queueMs } = this.#options
        if (this.#deps.clock.now() - next.queuedAt < sideRequestMs) return
        this.#refuseSide(next)
        continue
      }
      this.#leaveQueue(next)
      this.#running.add(next)
      next.slot = seat.slot
      next.phase = 'acquiring'
      next.admittedAt = this.#deps.clock.now()
      next.hits.working = Math.min(seat.resident, next.maxHit)
      seat.slot.length = next.hits.working
      void this.#acquire(next)
    }
  }

  /** What a side request may take from the working set: slots whose tokens the cache has too. Others may take any. */
  #sparesFor({ job }: Sequence): Spares | undefined {
    return job.transient === true ? (slot) => isBacked(slot, this.#deps.cache) : undefined
  }

  async #acquire(sequence: Sequence): Promise<void> {
    const { tokens, chain, transient = false, deadBranch } = sequence.job
    if (deadBranch !== undefined) this.#deps.cache.demote(deadBranch)
    const resident = Math.min(Math.floor(sequence.depth / BLOCK_TOKENS), sequence.maxBlocks)
    const { priority, maxBlocks, signal } = sequence
    try {
      const lease = await this.#deps.cache.acquire({ chain, tokens, priority, transient, resident, maxBlocks, signal })
      if (sequence.phase !== 'acquiring') {
        lease.release()
        this.#leave(sequence)
        return
      }
      sequence.lease = lease
      await growChoices(sequence, this.#deps)
      await sequence.branches?.prepare(this.#deps, sequence.job.request.id)
      if (sequence.phase !== 'acquiring') {
        this.#leave(sequence)
        return
      }
      sequence.phase = 'following'
      sequence.restoredAt = this.#deps.clock.now()
    } catch (reason) {
      if (sequence.phase === 'acquiring') this.#end(sequence, reason)
      this.#leave(sequence)
    }
    this.#signal()
  }

  /** One step. False: nothing could be done. */
  async #step(): Promise<boolean> {
    const started = performance.now()
    for (const sequence of this.#running) {
      const { phase, signal } = sequence
      if (signal.aborted && (phase === 'prefill' || phase === 'decode')) this.#end(sequence, signal.reason)
    }
    const decoding = [...this.#running].filter(({ phase }) => phase === 'decode')
    const prefilled = await this.#prefillStep(decoding.some(({ isStreaming }) => isStreaming))
    const decoded = await this.#decodeStep(decoding)
    const { running, waiting } = this.load
    if (prefilled + decoded > 0) {
      const durationMs = performance.now() - started
      stepDone.publish({ prefillTokens: prefilled, decodeTokens: decoded, running, waiting, durationMs })
    }
    return prefilled + decoded > 0
  }

  /** Computes one chunk of the prompt whose turn it is; returns its tokens. */
  async #prefillStep(streaming: boolean): Promise<number> {
    const { runner, cache, kernels } = this.#deps
    const computing: Sequence[] = []
    const following: Sequence[] = []
    for (const sequence of this.#running) {
      if (sequence.phase !== 'prefill' && sequence.phase !== 'following') continue
      const { lease } = sequence.held()
      lease.extend()
      sequence.load(kernels)
      sequence.phase = lease.claim() ? 'prefill' : 'following'
      const list = sequence.phase === 'prefill' ? computing : following
      list.push(sequence)
    }
    const asking = [...this.#running].filter(({ phase, branches }) => phase === 'decode' && branches?.isReady === true)
    const turn = pickNext([...inherited(computing, following), ...asking.map(aside)], this.#served)
    if (turn === undefined) return 0
    const next = turn.sequence
    const { slot } = next.held()
    const { branches, depth: reached, remaining } = next
    const { computed } = next.usage()
    if (next.phase === 'decode' || branches?.takesRest({ depth: reached, remaining, computed })) {
      return this.#branchStep(next, streaming)
    }
    // A run of a single token takes other kernels than longer ones do: the token before it is computed again with it.
    if (next.remaining === 1 && slot.length > 0) this.#stepBack(next)
    const { depth } = next
    // Branches that ride along with the prompt's end begin where they part from it.
    const end = branches?.isCold(computed) && depth + 1 < branches.stem ? branches.stem : next.job.tokens.length
    const count = chunkOf({ ...aside(next), depth, remaining: end - depth }, streaming, this.#chunks)
    const started = performance.now()
    const logits = await runner.prefill(slot, next.job.tokens.subarray(depth, depth + count))
    cache.observeCompute(count, performance.now() - started)
    this.#serve(next, count)
    next.commitFull(slot, kernels)
    if (next.remaining === 0) this.#startChoices(next, logits)
    return count
  }

  /** One run for a request's branches, and for the rest of its prompt where they take that along. */
  async #branchStep(sequence: Sequence, streaming: boolean): Promise<number> {
    const branches = sequence.branches as Branches
    const { depth } = sequence
    if (!branches.hasBegun) seatBranches(sequence, branches, this.#deps)
    let count = 0
    if (!branches.isOver) {
      if (branches.alone) sequence.exact ??= depth
      const budget = chunkOf({ ...aside(sequence), depth, remaining: Number.MAX_SAFE_INTEGER }, streaming, this.#chunks)
      const run = await runBranches(sequence, this.#deps.runner, budget)
      count = run.count
      this.#serve(sequence, count)
      if (run.logits !== undefined) this.#startChoices(sequence, run.logits)
    }
    if (sequence.phase === 'prefill' && branches.alone) this.#startChoices(sequence, NO_LOGITS)
    else this.#settle(sequence)
    return Math.max(1, count)
  }

  #stepBack(sequence: Sequence): void {
    const { hits } = sequence
    sequence.held().slot.length--
    if (hits.working > 0) hits.working--
    else if (hits.memory > 0) hits.memory--
    else if (hits.disk > 0) hits.disk--
  }

  /** The prompt is complete: pins it where asked, says so, and samples every choice's first token. */
  #startChoices(sequence: Sequence, logits: Float32Array): void {
    const { job, events } = sequence
    const { chain, tokens, request } = job
    if (request.pinTtlMs !== undefined) this.#deps.cache.pin(request.id, chain, tokens, request.pinTtlMs)
    pinCheckpoints(job, this.#deps.cache)
    const { committedTokens } = sequence
    events.push({ type: 'start', promptTokens: tokens.length, cache: sequence.usage(), committedTokens })
    sequence.phase = 'decode'
    sequence.computedAt = this.#deps.clock.now()
    if (job.maxTokens === 0 || sequence.signal.aborted) {
      if (!sequence.signal.aborted) this.#settle(sequence)
      return
    }
    const [first, ...others] = sequence.choices
    for (const choice of others) {
      const capacity = tokens.length + Math.min(job.maxTokens, RESERVE_TOKENS)
      const slot = this.#deps.workingSet.fork(choice.slot, capacity, this.#sparesFor(sequence))
      if (slot === undefined) {
        this.#end(sequence, new RefrainError('out_of_memory', `no room for ${request.n} choices`, { param: 'n' }))
        return
      }
      choice.slot = slot
    }
    // Sampling works in place: each choice has a row of its own.
    const rows = [first as Choice, ...others].map((choice) => ({
      choice,
      row: others.length > 0 ? logits.slice() : logits,
    }))
    for (const { choice, row } of rows) this.#sample(sequence, choice, row)
    this.#settle(sequence)
  }

  /** One token for everything that decodes; returns the tokens. */
  async #decodeStep(decoding: readonly Sequence[]): Promise<number> {
    const { runner, kernels } = this.#deps
    const rows = decoding
      .filter(({ phase }) => phase === 'decode')
      .flatMap((sequence) =>
        sequence.choices
          .filter(({ pending }) => pending !== undefined)
          .map((choice) => ({
            sequence,
            choice,
            priority: sequence.priority,
            tenant: sequence.tenant,
            order: sequence.order,
          })),
      )
      .filter(({ sequence, choice }) => this.#hasRoom(sequence, choice))
    let count = 0
    for (const run of decodeRuns(rows, runner.decodeRows)) {
      const alive = run.filter(({ sequence }) => sequence.phase === 'decode')
      if (alive.length === 0) continue
      const inputs = alive.map(({ choice }) => ({ slot: choice.slot, id: choice.pending as number }))
      const logits = await runner.decode(inputs)
      count += alive.length
      for (const [i, { sequence, choice }] of alive.entries()) {
        this.#serve(sequence, 1)
        if (sequence.phase !== 'decode') continue
        if (choice.index === 0) sequence.commitFull(choice.slot, kernels)
        this.#sample(sequence, choice, logits[i] as Float32Array)
      }
      for (const sequence of new Set(alive.map((row) => row.sequence))) this.#settle(sequence)
    }
    return count
  }

  /** Samples for one choice. What a grammar or a stop rule refuses ends this request alone; another fault is ours. */
  #sample(sequence: Sequence, choice: Choice, logits: Float32Array): void {
    if (sequence.phase !== 'decode') return
    try {
      settleToken(sequence, choice, logits)
    } catch (fault) {
      if (!(fault instanceof RefrainError)) throw fault
      this.#end(sequence, fault)
    }
  }

  /** Makes room for one more token; a sequence that can't have it ends. */
  #hasRoom(sequence: Sequence, choice: Choice): boolean {
    if (growRoom(sequence, choice, { ...this.#deps, spares: this.#sparesFor(sequence) })) return true
    const text = 'the working set is full: engine.workingSetBytes holds too little for all that runs now'
    this.#end(sequence, new RefrainError('out_of_memory', text, { retryAfterMs: 5000 }))
    return false
  }

  #settle(sequence: Sequence): void {
    if (sequence.phase !== 'decode') return
    followUp(sequence, this.#deps.tokenizer.eosTokenIds)
    if (!sequence.isStreaming && sequence.branches?.isOver !== false) this.#finish(sequence)
  }

  #finish(sequence: Sequence): void {
    const { job, completionTokens, committedTokens, events } = sequence
    const promptTokens = job.tokens.length
    if (sequence.branches !== undefined) events.push({ type: 'quick', answers: sequence.branches.answers })
    events.push({ type: 'finish', promptTokens, completionTokens, cache: sequence.usage(), committedTokens })
    events.end()
    this.#close(sequence)
  }

  /** Ends a sequence early, in whichever phase it is. */
  #end(sequence: Sequence, reason: unknown): void {
    if (sequence.phase === 'done') return
    sequence.events.fail(reason)
    this.#close(sequence)
  }

  #close(sequence: Sequence): void {
    const { phase } = sequence
    sequence.phase = 'done'
    tellPhases(sequence, this.#deps.clock)
    sequence.unlink?.()
    this.#leaveQueue(sequence)
    // While the cache is at work for it, what it holds is given back when that is over.
    if (phase !== 'acquiring' && phase !== 'queued') this.#leave(sequence)
    this.#signal()
  }

  /** A timer that outlived the queue would hold the sequence, its prompt and its choices, for as long as it runs. */
  #leaveQueue(sequence: Sequence): void {
    this.#queue.delete(sequence)
    sequence.cancelTimers?.()
    sequence.cancelTimers = undefined
  }

  /** Gives back everything that a sequence holds. */
  #leave(sequence: Sequence): void {
    if (!this.#running.delete(sequence)) return
    const slots = new Set([sequence.slot, ...sequence.choices.map(({ slot }) => slot)])
    for (const choice of sequence.choices) choice.matcher?.dispose()
    sequence.branches?.dispose()
    if (sequence.exact !== undefined && sequence.slot !== undefined) sequence.slot.length = sequence.exact
    const by = sequence.job.transient === true ? 'side' : 'session'
    for (const slot of slots) if (slot !== undefined) this.#deps.workingSet.release(slot, by)
    sequence.lease?.release()
    sequence.lease = undefined
    this.#signal()
  }

  #serve(sequence: Sequence, tokens: number): void {
    const total = (this.#served.get(sequence.tenant) ?? 0) + tokens
    this.#served.set(sequence.tenant, total)
    // Halving keeps the order and lets the past fade, so that a tenant's burst of yesterday does not count today.
    if (total > 1_000_000) for (const [tenant, served] of this.#served) this.#served.set(tenant, served / 2)
  }
}
