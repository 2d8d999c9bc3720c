// Everything around an engine for a test: hash runner, real cache, real working set. `ask` runs one job to its end.

import { chainOf, makeRoot } from '../cache/chain.js'
import { type KvCacheOptions, openKvCache } from '../cache/kv-cache.js'
import { blockBytes, type KvLayout } from '../core/block.js'
import { systemClock } from '../core/clock.js'
import type { GenerateEvent } from '../core/events.js'
import type { GenerateRequest, Job, Sampling } from '../core/request.js'
import { Engine, type EngineOptions } from '../engine/engine.js'
import type { Grammars } from '../engine/grammar.js'
import { WorkingSet } from '../engine/working-set.js'
import { chooseKernels } from '../native/index.js'
import { createHashRunner } from './hash-runner.js'
import { createPlainTokenizer } from './plain-tokenizer.js'

export const LAYOUT: KvLayout = { layers: 2, kvHeads: 2, headDim: 4, dtype: 'fp16' }
const VOCAB = 400
const CONTEXT = 4096

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

export interface HouseOptions {
  readonly engine?: Partial<EngineOptions>
  readonly cache?: Partial<KvCacheOptions>
  readonly workingSetBytes?: number
  /** False: the baseline without any cache. */
  readonly cached?: boolean
  /** Absent: constrained output is refused. */
  readonly grammars?: Grammars
  readonly runMs?: number
  /** False: as with engine.quick off. */
  readonly trees?: boolean
  /** As with a runner to which unused rows cost nothing. */
  readonly wideSlots?: boolean
  readonly onRun?: (kind: 'prefill' | 'decode' | 'tree', tokens: number) => void
}

export type EngineHouse = Awaited<ReturnType<typeof openHouse>>

export async function openHouse(options: HouseOptions = {}) {
  const { cached = true, runMs, onRun } = options
  const runner = {
    ...createHashRunner({ layout: LAYOUT, vocabSize: VOCAB, ...(runMs && { runMs }), ...(onRun && { onRun }) }),
    ...(options.wideSlots === true && { takesWideSlots: true }),
  }
  if (options.trees === false) delete runner.tree
  const bytes = blockBytes(LAYOUT)
  const cache = await openKvCache({
    blockBytes: bytes,
    memoryBytes: cached ? 4096 * bytes : 0,
    restore: 'always',
    ...options.cache,
  })
  const capacityBytes = options.workingSetBytes ?? 64 * 1024 * 1024
  const workingSet = new WorkingSet({ layout: LAYOUT, contextLength: CONTEXT, capacityBytes, reuse: cached })
  const engine = new Engine(
    { maxRunning: 8, queuedRequests: 1000, queueMs: 60_000, ...options.engine },
    {
      runner,
      cache,
      workingSet,
      kernels: chooseKernels('auto'),
      clock: systemClock,
      tokenizer: createPlainTokenizer(VOCAB),
      grammars: options.grammars,
    },
  )
  return {
    engine,
    cache,
    workingSet,
    async close() {
      await engine.close()
      await cache.close()
    },
  }
}

let requests = 0

export function jobOf(tokens: ArrayLike<number>, more: Partial<GenerateRequest> = {}): Job {
  const { maxTokens = 8, tenant = { name: 'default', salt: 'default', admin: false } } = more
  const root = makeRoot({
    weightsDigest: '11'.repeat(32),
    tokenizerDigest: '22'.repeat(32),
    layout: LAYOUT,
    rounding: 'fp16',
    arithmetic: 'toy',
    tenantSalt: tenant.salt,
  })
  const ids = Int32Array.from(tokens)
  const request: GenerateRequest = {
    id: `request-${requests++}`,
    model: 'toy',
    tenant,
    prompt: { kind: 'tokens', ids: Array.from(ids) },
    sampling: GREEDY,
    stop: [],
    stopTokenIds: [],
    ignoreEos: true,
    n: 1,
    echo: false,
    priority: 'interactive',
    ...more,
    maxTokens,
  }
  return { request, model: 'toy', tokens: ids, chain: chainOf(root, ids), maxTokens }
}

export interface Answer {
  /** Generated ids by choice. */
  readonly ids: number[][]
  readonly start: Extract<GenerateEvent, { type: 'start' }>
  readonly finish: Extract<GenerateEvent, { type: 'finish' }>
  readonly events: GenerateEvent[]
}

export async function ask(house: EngineHouse, job: Job, signal = new AbortController().signal): Promise<Answer> {
  const events: GenerateEvent[] = []
  for await (const event of house.engine.generate(job, signal)) events.push(event)
  const ids: number[][] = Array.from({ length: job.request.n }, () => [])
  for (const event of events) if (event.type === 'token') (ids[event.choice] as number[]).push(...event.ids)
  const [start, finish] = [events[0], events.at(-1)]
  if (start?.type !== 'start' || finish?.type !== 'finish') throw new Error('the events do not start and finish')
  return { ids, start, finish, events }
}

/** `count` ids in [0, 399), the same for the same seed. */
export function promptOf(seed: number, count: number): number[] {
  let state = seed * 2654435761 + 1
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return (state >>> 8) % (VOCAB - 1)
  })
}
