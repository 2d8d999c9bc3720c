// A served model in one thread: a GGUF file's engine, cache, tokenizer and template behind the service, as the program has
// them in two. For tests of what a real graph answers to requests, with the jobs and runs that it came to.

import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Backend } from '../backend/backend.js'
import { makeRoot } from '../cache/chain.js'
import { openKvCache } from '../cache/kv-cache.js'
import { blockBytes } from '../core/block.js'
import { systemClock } from '../core/clock.js'
import type { GenerateEvent } from '../core/events.js'
import type { GenerateRequest, Job } from '../core/request.js'
import type { Runner } from '../engine/contract.js'
import { Engine } from '../engine/engine.js'
import { createGrammars } from '../engine/grammar.js'
import { WorkingSet } from '../engine/working-set.js'
import { chooseKernels } from '../native/index.js'
import { createTemplate } from '../prompt/template.js'
import { createTokenizer } from '../prompt/tokenizer.js'
import { type CardTask, catalogueOf, type NamedTask } from '../quick/catalogue.js'
import { createService } from '../serve.js'
import { openImported } from './imported-model.js'

export interface ModelHouseOptions {
  readonly path: string
  readonly dataDir: string
  readonly contextLength?: number
  readonly quick?: Readonly<Partial<Record<NamedTask, CardTask>>>
  /** Jinja; absent: the file's own. */
  readonly template?: string
}

export type ModelHouse = Awaited<ReturnType<typeof openModelHouse>>

export async function openModelHouse(options: ModelHouseOptions) {
  const { directory, manifest, layout, runner } = await openImported(options.path, options.dataDir)
  const { vocabSize, bosTokenId, addBos, eosTokenIds, weightsDigest, tokenizerDigest } = manifest
  const json = await readFile(join(directory, 'tokenizer.json'), 'utf8')
  const tokenizer = createTokenizer(json, { bosTokenId, addBos, eosTokenIds, memoBytes: 1 << 20 })
  const contextLength = options.contextLength ?? manifest.contextLength
  const bytes = blockBytes(layout)
  const cache = await openKvCache({ blockBytes: bytes, memoryBytes: 256 * bytes, restore: 'always' })
  const workingSet = new WorkingSet({ layout, contextLength, capacityBytes: 2 ** 30, reuse: true })
  const grammars = createGrammars({ ...tokenizer, vocabSize, eosTokenIds })
  const runs: [kind: string, tokens: number][] = []
  const engine = new Engine(
    { maxRunning: 8, queuedRequests: 100, queueMs: 60_000 },
    {
      ...{ runner: watched(runner, runs), cache, workingSet, kernels: chooseKernels('auto'), clock: systemClock },
      ...{ tokenizer, grammars },
    },
  )
  const jobs: Job[] = []
  const backend: Backend = {
    ...{ name: 'house', model: 'toy' },
    generate(job, signal) {
      jobs.push(job)
      return engine.generate(job, signal)
    },
    health: () => ({ ready: true, notes: [], ...engine.load }),
    close: () => engine.close(),
  }
  const template = createTemplate(options.template ?? manifest.template ?? '', {
    ...{ bosToken: '', eosToken: tokenizer.spellingOf(eosTokenIds[0] as number), dateNow: () => new Date(0) },
  })
  const service = createService({
    models: [
      {
        ...{
          name: 'toy',
          contextLength,
          created: 0,
          formats: { specials: [] },
          visibleSpecials: [],
          tokenizer,
          template,
        },
        quick: catalogueOf(options.quick),
        root: ({ tenant }) => {
          const digests = { weightsDigest, tokenizerDigest, layout, rounding: 'fp16', arithmetic: 'toy' } as const
          return makeRoot({ ...digests, tenantSalt: tenant.salt })
        },
      },
    ],
    ...{ aliases: {}, fleet: [backend], limits: { queuedRequests: 100 } },
  })
  return {
    ...{ service, tokenizer, jobs, runs, workingSet },
    async ask(request: GenerateRequest): Promise<GenerateEvent[]> {
      const events: GenerateEvent[] = []
      for await (const event of service.generate(request, new AbortController().signal)) events.push(event)
      return events
    },
    async close() {
      await engine.close()
      await cache.close()
      await grammars.close()
      await runner.close()
    },
  }
}

function watched(runner: Runner, runs: [string, number][]): Runner {
  const { tree, layout, vocabSize, decodeRows } = runner
  return {
    ...{ layout, vocabSize, decodeRows },
    prefill(slot, ids) {
      runs.push(['prefill', ids.length])
      return runner.prefill(slot, ids)
    },
    decode(rows) {
      runs.push(['decode', rows.length])
      return runner.decode(rows)
    },
    ...(tree && {
      tree: (slot, tokens) => {
        runs.push(['tree', tokens.length])
        return tree(slot, tokens)
      },
    }),
    close: () => runner.close(),
  }
}
