// A backend without a model: it says what its script says, at the pace that it is told, and counts hits as an ideal
// 64-token prefix cache would. The double of tests, the baseline of benchmarks. Invariant: the same events in the same
// order as a real engine's, for every option of a request that does not need logits.

import Type from 'typebox'
import { nextHash } from '../cache/chain.js'
import { readPrefixTree } from '../cache/prefix-tree.js'
import { BLOCK_TOKENS, type CacheUsage } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import type { GenerateEvent } from '../core/events.js'
import type { Kind } from '../core/kind.js'
import type { Job } from '../core/request.js'
import { machineMs, phasesTimed } from '../core/signals.js'
import { checkpointsOf } from '../engine/side.js'
import type { Tokenizer } from '../prompt/contract.js'
import { type Admission, createAdmission } from './admission.js'
import type { Backend } from './backend.js'
import { ScriptedAnswer } from './scripted-answer.js'
import { scriptedBranch } from './scripted-branches.js'
import { ScriptedCache } from './scripted-cache.js'

/** Tokens between two looks at the clock and the signal while prefilling. */
const CHUNK_TOKENS = 512
/** Steps between two turns of the event loop when decoding takes no time. */
const STEPS_PER_TURN = 64

export interface ScriptedOptions {
  /** What is answered; empty: the prompt again. */
  readonly answer: string
  /** 0: at once. */
  readonly prefillTokensPerSecond: number
  /** Per choice; 0: at once. */
  readonly decodeTokensPerSecond: number
  readonly maxRunning: number
  /** Blocks that the simulated cache holds. */
  readonly cacheBlocks: number
  /** How chats are rendered: `plain` lines, `chatml` with tools and reasoning, or a Jinja source. */
  readonly template: string
  /** How the end token of a Jinja source is spelled, and its further special tokens. */
  readonly end: string
  readonly specials: readonly string[]
  /** Names of formats, as a model's card has them. */
  readonly toolCalls: string
  readonly reasoning: string
  readonly retention: string
  readonly strictReasoning: boolean
}

/** What is answered: text, or the ids of its tokens in any tokenization; the end token follows by itself. */
export type ScriptedText = string | readonly number[]

export interface ScriptedDeps {
  readonly model: string
  readonly tokenizer: Tokenizer
  readonly clock: Clock
  readonly limits: { readonly queuedRequests: number; readonly queueMs: number }
  /** Tests: the answer of a choice; throwing fails the request in front of its first token. */
  readonly script?: (job: Job, choice: number) => ScriptedText
}

export const scripted: Kind<ScriptedOptions, ScriptedDeps, Backend> = {
  options: Type.Object(
    {
      answer: Type.String({ default: '' }),
      prefillTokensPerSecond: Type.Number({ minimum: 0, default: 0 }),
      decodeTokensPerSecond: Type.Number({ minimum: 0, default: 0 }),
      maxRunning: Type.Integer({ minimum: 1, default: 64 }),
      cacheBlocks: Type.Integer({ minimum: 0, default: 65536 }),
      template: Type.String({ minLength: 1, default: 'plain' }),
      end: Type.String({ minLength: 1, default: '<end>' }),
      specials: Type.Array(Type.String({ minLength: 1 }), { default: [] }),
      toolCalls: Type.String({ default: 'none' }),
      reasoning: Type.String({ default: 'none' }),
      retention: Type.String({ default: 'as-sent' }),
      strictReasoning: Type.Boolean({ default: false }),
    },
    { additionalProperties: false },
  ),
  create: (options, deps) => createScriptedBackend(options, deps),
}

/** What the running of a script needs; the rest of the options says how a scripted model writes. */
export type ScriptedPace = Pick<
  ScriptedOptions,
  'answer' | 'prefillTokensPerSecond' | 'decodeTokensPerSecond' | 'maxRunning' | 'cacheBlocks'
>

export function createScriptedBackend(options: ScriptedPace, deps: ScriptedDeps): Backend {
  const cache = new ScriptedCache(options.cacheBlocks, deps.clock)
  const admission = createAdmission({ maxRunning: options.maxRunning, ...deps.limits, clock: deps.clock })
  const run = new ScriptedRun(options, deps, cache)
  return {
    name: 'scripted',
    model: deps.model,
    generate: (job, signal) => run.generate(job, signal, admission),
    health: () => ({ ready: true, notes: [], running: admission.running, waiting: admission.waiting }),
    cache: {
      status: async () => ({
        tiers: [
          {
            tier: 'memory',
            blocks: cache.size,
            usedBytes: 0,
            capacityBytes: 0,
            pinnedBlocks: cache.pins().reduce((sum, pin) => sum + pin.blocks, 0),
            hits: cache.hits,
            misses: cache.misses,
            evictedBlocks: cache.evicted,
            healthy: true,
          },
        ],
        pins: cache.pins(),
        blockBytes: 0,
        blockTokens: BLOCK_TOKENS,
      }),
      unpin: async (id) => cache.unpin(id),
      clear: async () => cache.clear(),
      tree: (ask) => readPrefixTree([cache.blocks()], ask, () => new Promise((resolve) => setImmediate(resolve))),
      erase: async ({ hashes = [], tenants = [] }) => ({ blocks: cache.erase(hashes, tenants), complete: true }),
    },
    close: async () => {
      run.closed = true
    },
  }
}

class ScriptedRun {
  closed = false

  constructor(
    readonly options: ScriptedPace,
    readonly deps: ScriptedDeps,
    readonly cache: ScriptedCache,
  ) {}

  async *generate(job: Job, signal: AbortSignal, admission: Admission): AsyncGenerator<GenerateEvent, void> {
    const { clock } = this.deps
    const times = [clock.now()]
    const leave = await admission.enter(job.request.priority, signal)
    times.push(clock.now())
    const told = { completionTokens: 0, cache: { working: 0, memory: 0, disk: 0, computed: job.tokens.length } }
    try {
      this.#check(signal)
      const { hashes } = job.chain
      const promptTokens = job.tokens.length
      const most = Math.floor(Math.max(0, promptTokens - 1) / BLOCK_TOKENS)
      if (job.deadBranch !== undefined) this.cache.demote(job.deadBranch)
      const by = job.transient === true ? 'side' : 'session'
      const hits = this.cache.acquire(hashes, most, by)
      this.cache.rooted(job.chain)
      const committed = await this.#prefill(job, hits, signal)
      const memory = hits * BLOCK_TOKENS
      const usage: CacheUsage = { working: 0, memory, disk: 0, computed: promptTokens - memory }
      if (job.request.pinTtlMs !== undefined) this.cache.pin(job.request.id, hashes, job.request.pinTtlMs)
      for (const { id, blocks, ttlMs } of checkpointsOf(job)) this.cache.pin(id, hashes.slice(0, blocks), ttlMs)
      const answers = this.#answers(job)
      times.push(clock.now())
      told.cache = usage
      yield { type: 'start', promptTokens, cache: usage, committedTokens: committed * BLOCK_TOKENS }
      for (let steps = 1; answers.some((answer) => !answer.ended); steps++) {
        if (this.options.decodeTokensPerSecond > 0) await this.#sleep(1000 / this.options.decodeTokensPerSecond, signal)
        // Without a pace other requests get their turns of the event loop all the same.
        else if (steps % STEPS_PER_TURN === 0) await new Promise((resolve) => setImmediate(resolve))
        this.#check(signal)
        for (const answer of answers) {
          if (!answer.ended) for (const event of answer.step()) yield event
        }
      }
      for (const answer of answers) this.#commitAnswer(job, answer.ids)
      const { branches } = job
      if (branches !== undefined) {
        const { tokenizer } = this.deps
        yield { type: 'quick', answers: branches.map((plan) => scriptedBranch(plan, this.options.answer, tokenizer)) }
      }
      const completionTokens = answers.reduce((sum, answer) => sum + answer.ids.length, 0)
      told.completionTokens = completionTokens
      yield { type: 'finish', promptTokens, completionTokens, cache: usage, committedTokens: committed * BLOCK_TOKENS }
    } finally {
      leave()
      tellPhases(job, [...times, clock.now()], told)
    }
  }

  /** Blocks newly kept. What a cancelled prefill has computed stays. */
  async #prefill(job: Job, hits: number, signal: AbortSignal): Promise<number> {
    const by = job.transient === true ? 'side' : 'session'
    const total = job.tokens.length
    const rate = this.options.prefillTokensPerSecond
    if (rate === 0) return this.cache.commit(job.chain.hashes, hits, job.chain.hashes.length, by)
    let committed = 0
    for (let at = hits * BLOCK_TOKENS; at < total; ) {
      const end = Math.min(total, at + CHUNK_TOKENS)
      await this.#sleep(((end - at) / rate) * 1000, signal)
      const [from, to] = [Math.floor(at / BLOCK_TOKENS), Math.floor(end / BLOCK_TOKENS)]
      committed += this.cache.commit(job.chain.hashes, from, to, by)
      at = end
    }
    return committed
  }

  /** Blocks that the answer has filled. The last token was never fed, so it has no KV. */
  #commitAnswer(job: Job, ids: readonly number[]): void {
    const { root, hashes: known } = job.chain
    const tail = Int32Array.from([...job.tokens.subarray(known.length * BLOCK_TOKENS), ...ids.slice(0, -1)])
    if (tail.length < BLOCK_TOKENS) return
    const hashes = [...known]
    for (let end = BLOCK_TOKENS; end <= tail.length; end += BLOCK_TOKENS) {
      hashes.push(nextHash(hashes.at(-1) ?? root, tail.subarray(end - BLOCK_TOKENS, end)))
    }
    this.cache.commit(hashes, known.length, hashes.length, job.transient === true ? 'side' : 'session')
  }

  #answers(job: Job): ScriptedAnswer[] {
    const { request, maxTokens } = job
    const { tokenizer, script } = this.deps
    const echo = () => this.options.answer || tokenizer.decode(job.tokens)
    return Array.from({ length: request.n }, (_, choice) => {
      const text = script === undefined ? echo() : script(job, choice)
      return new ScriptedAnswer({ text, choice, request, maxTokens, tokenizer, visibleSpecials: job.visibleSpecials })
    })
  }

  #check(signal: AbortSignal): void {
    signal.throwIfAborted()
    if (this.closed) throw new Error('the backend is closed')
  }

  #sleep(ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted()
      const onAbort = () => {
        cancel()
        reject(signal.reason)
      }
      const cancel = this.deps.clock.after(ms, () => {
        signal.removeEventListener('abort', onAbort)
        resolve()
      })
      signal.addEventListener('abort', onAbort, { once: true })
    })
  }
}

/** `times`: queued, admitted, prompt computed where it came that far, over. What is simulated is found at once. */
function tellPhases(
  job: Job,
  times: readonly number[],
  told: { readonly completionTokens: number; readonly cache: CacheUsage },
): void {
  if (!phasesTimed.channel.hasSubscribers) return
  const [queueMs = 0, prefillMs = 0, decodeMs] = times.slice(1).map((time, i) => time - (times[i] as number))
  phasesTimed.publish({
    id: job.request.id,
    endedAt: machineMs(),
    ...{ queueMs, restoreMs: 0, prefillMs, ...(decodeMs !== undefined && { decodeMs }) },
    promptTokens: job.tokens.length,
    ...told,
  })
}
