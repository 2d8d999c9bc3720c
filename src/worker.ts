// The worker thread: joins model, cache and engine, as compose.ts does for the HTTP side. Everything that touches KV bytes
// runs here, because a run of the graph holds its thread. Invariant: it says `ready` or `refused` once, then serves until
// it is told to close; a fault of the engine ends the process's worker, and the embedded backend starts a new one.

import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type MessagePort, parentPort, workerData } from 'node:worker_threads'
import type { CacheStatus } from './backend/backend.js'
import {
  type CacheCall,
  encodeError,
  type FromCall,
  type FromJob,
  type FromWorker,
  KNOWN_SALTS,
  type SignalName,
  type ToJob,
  type ToWorker,
  type WorkerSetup,
} from './backend/embedded-protocol.js'
import { nextHash } from './cache/chain.js'
import type { CacheErased, EraseAsk, HeldBlock } from './cache/contract.js'
import { type ErasableKvCache, openKvCache } from './cache/kv-cache.js'
import { readPrefixTree } from './cache/prefix-tree.js'
import { BLOCK_TOKENS, type BlockHash, blockBytes, type Root } from './core/block.js'
import { HeldClock, systemClock } from './core/clock.js'
import type { GenerateEvent } from './core/events.js'
import type { Job } from './core/request.js'
import { type BlockPlaced, blockPlaced, cacheMoved, note, phasesTimed, stepDone } from './core/signals.js'
import type { Runner } from './engine/contract.js'
import { Engine } from './engine/engine.js'
import { createEraser } from './engine/erase.js'
import { createGrammars, type Grammars } from './engine/grammar.js'
import { WorkingSet } from './engine/working-set.js'
import type { ModelManifest } from './model/contract.js'
import { chooseKernels } from './native/index.js'
import { createTokenizer } from './prompt/tokenizer.js'
import { openProvider } from './provider.js'

if (parentPort === null) throw new Error('worker.js is started by the embedded backend')
const parent = parentPort
const setup = workerData as WorkerSetup

const say = (message: FromWorker) => parent.postMessage(message)

forwardSignals()
const salts = setup.tellsBlocks ? forwardBlocks() : undefined
try {
  const house = await open()
  parent.on('message', (message: ToWorker) => void receive(house, message))
  house.engine.done.catch((fault: unknown) => {
    throw fault
  })
  say({ type: 'ready' })
  watchState(house)
} catch (fault) {
  say({ type: 'refused', message: fault instanceof Error ? fault.message : String(fault) })
}

interface House {
  readonly engine: Engine
  readonly cache: ErasableKvCache
  readonly workingSet: WorkingSet
  readonly erase: (ask: EraseAsk) => Promise<CacheErased>
  readonly grammars: Grammars
}

async function open(): Promise<House> {
  const { modelDirectory, layout, contextLength, engine: options } = setup
  const kernels = chooseKernels(options.kernels)
  const [manifestText, tokenizerJson] = await Promise.all([
    readFile(join(modelDirectory, 'manifest.json'), 'utf8'),
    readFile(join(modelDirectory, 'tokenizer.json'), 'utf8'),
  ])
  const manifest = JSON.parse(manifestText) as ModelManifest
  const { vocabSize, bosTokenId, addBos, eosTokenIds } = manifest
  const tokenizer = createTokenizer(tokenizerJson, { bosTokenId, addBos, eosTokenIds, memoBytes: 0 })
  const { threads, provider, maxRunning, workingSetBytes, trees } = options
  const workingSet = new WorkingSet({
    layout,
    contextLength,
    capacityBytes: workingSetBytes,
    reuse: setup.cache.enabled,
  })
  const deviceClock = new HeldClock(systemClock)
  const cache = await openCache(deviceClock)
  const runner = await openProvider({ provider, directory: modelDirectory, layout, vocabSize, threads, trees })
  const grammars = createGrammars(tokenizer)
  const { queuedRequests, queueMs, sideRequestMs } = setup.limits
  const engine = new Engine(
    { maxRunning, queuedRequests, queueMs, sideRequestMs },
    { runner: heldRunner(runner, deviceClock), cache, workingSet, kernels, clock: systemClock, tokenizer, grammars },
  )
  return { engine, cache, workingSet, erase: createEraser({ cache, workingSet, clock: systemClock }), grammars }
}

async function openCache(deviceClock: HeldClock): Promise<ErasableKvCache> {
  const { enabled, memoryBytes, disk, ...options } = setup.cache
  const bytes = blockBytes(setup.layout)
  if (!enabled) return openKvCache({ blockBytes: bytes, memoryBytes: 0 })
  return openKvCache({ ...options, blockBytes: bytes, memoryBytes, ...(disk && { disk }) }, { deviceClock })
}

/** Tells the clock when a run holds the thread. */
function heldRunner(runner: Runner, clock: HeldClock): Runner {
  const { tree } = runner
  return {
    layout: runner.layout,
    vocabSize: runner.vocabSize,
    decodeRows: runner.decodeRows,
    ...(runner.takesWideSlots === true && { takesWideSlots: true }),
    prefill: (slot, ids) => clock.hold(() => runner.prefill(slot, ids)),
    decode: (rows) => clock.hold(() => runner.decode(rows)),
    ...(tree && { tree: (slot, tokens) => clock.hold(() => tree(slot, tokens)) }),
    close: () => runner.close(),
  }
}

async function receive(house: House, message: ToWorker): Promise<void> {
  const { port } = message
  if (message.type === 'generate') {
    salts?.(message.job)
    await generate(house, message.job, port)
    return
  }
  let answer: FromCall
  try {
    const value = message.type === 'close' ? await close(house) : await callCache(house, message.call)
    answer = { type: 'value', value }
  } catch (error) {
    answer = { type: 'failure', error: encodeError(error) }
  }
  port.postMessage(answer)
  port.close()
}

/** Pumps a job's events up its port: what one step gave goes in one message. */
async function generate({ engine }: House, job: Job, port: MessagePort): Promise<void> {
  const abort = new AbortController()
  const stop = () => abort.abort(new Error('the request was cancelled'))
  port.on('message', (message: ToJob) => {
    if (message.type === 'abort') stop()
  })
  port.on('close', stop)
  const send = (message: FromJob) => port.postMessage(message)
  let batch: GenerateEvent[] = []
  const flush = () => {
    if (batch.length > 0) send({ type: 'events', events: batch })
    batch = []
  }
  try {
    for await (const event of engine.generate(job, abort.signal)) {
      if (batch.push(event) === 1) queueMicrotask(() => queueMicrotask(flush))
    }
    flush()
    send({ type: 'end' })
  } catch (error) {
    flush()
    send({ type: 'failure', error: encodeError(error) })
  }
}

async function callCache({ cache, workingSet, erase }: House, call: CacheCall): Promise<unknown> {
  if (call.name === 'erase') return erase(call.ask)
  if (call.name === 'unpin') return cache.unpin(call.id)
  if (call.name === 'tree') return readPrefixTree([workingBlocks(workingSet), cache.blocks()], call.ask, nextTurn)
  if (call.name === 'clear') {
    workingSet.clear()
    return cache.clear()
  }
  const tiers: CacheStatus['tiers'] = [{ tier: 'working', ...workingSet.status() }, ...cache.status()]
  const status: CacheStatus = {
    tiers,
    pins: cache.pins(),
    blockBytes: blockBytes(setup.layout),
    blockTokens: BLOCK_TOKENS,
  }
  return status
}

/** Between two slices of long reading, the engine goes on. */
const nextTurn = () => new Promise<void>((resolve) => setImmediate(resolve))

/** The full blocks that stand in slots, under the names that the cache has or would have for them. */
function* workingBlocks(workingSet: WorkingSet): Generator<HeldBlock> {
  for (const { root, tokens } of workingSet.held()) {
    let parent: BlockHash | Root = root as Root
    for (let end = BLOCK_TOKENS; end <= tokens.length; end += BLOCK_TOKENS) {
      const hash = nextHash(parent, tokens.subarray(end - BLOCK_TOKENS, end))
      yield { hash, root: root as Root, parent, tier: 'working', uses: 0 }
      parent = hash
    }
  }
}

async function close({ engine, cache, grammars }: House): Promise<void> {
  await engine.close()
  await grammars.close()
  await cache.close()
}

/** Sends the load and what is degraded whenever either changed, at most every 50 ms. */
function watchState({ engine, cache }: House): void {
  let last = ''
  const timer = setInterval(() => {
    const notes = cache
      .status()
      .filter(({ healthy }) => !healthy)
      .map(({ tier, complaint }) => `${tier} tier: ${complaint ?? 'unhealthy'}`)
    const state = { type: 'state', ...engine.load, notes } as const
    const text = JSON.stringify(state)
    if (text !== last) say(state)
    last = text
  }, 50)
  timer.unref()
}

/** Telemetry listens on the main thread: what is published here goes there, batched by turn of the event loop. */
function forwardSignals(): void {
  let batch: [SignalName, unknown][] = []
  const forward = (name: SignalName) => (payload: unknown) => {
    if (batch.push([name, payload]) > 1) return
    setImmediate(() => {
      say({ type: 'signals', signals: batch })
      batch = []
    })
  }
  stepDone.subscribe(forward('stepDone'))
  cacheMoved.subscribe(forward('cacheMoved'))
  phasesTimed.subscribe(forward('phasesTimed'))
  note.subscribe(forward('note'))
}

/** Tells the main thread of blocks that come and go, batched like signals; the function learns a job's salt. */
function forwardBlocks(): (job: Job) => void {
  const known = new Map<Root, string | undefined>()
  let batch: BlockPlaced[] = []
  blockPlaced.subscribe((block) => {
    if (batch.push(block.what === 'cleared' ? block : salted(block, known)) > 1) return
    setImmediate(() => {
      say({ type: 'blocks', blocks: batch })
      batch = []
    })
  })
  return ({ chain, request }) => {
    known.delete(chain.root)
    known.set(chain.root, request.cacheSalt)
    if (known.size > KNOWN_SALTS) known.delete(known.keys().next().value as Root)
  }
}

function salted<T extends { readonly root: Root | undefined }>(block: T, known: Map<Root, string | undefined>): T {
  const salt = block.root === undefined ? undefined : known.get(block.root)
  return salt === undefined ? block : { ...block, salt }
}
