// Question: how fast are prefill and decode at depths 0, 1024 and 4096, against llama.cpp on the same weights?
//
// Method: the runner alone (no scheduler, no sampler), two threads, as llama-bench measures: 512 tokens of prefill in one
// run and 24 tokens of decode behind a depth of tokens that are there. Rounds in turn, `--repeats` times: ours, llama-bench
// on the same file (Q4_1), ours, llama-bench on that file requantized to Q4_0; medians of all samples. Each round warms up
// apart, on both sides. Then ours alone: prefill chunks and decode batches by depth. Depth is filled by real prefill.
// Ceiling: decode reads the weights and the KV once a token: `decodeAtCopyRate` is that at the rate of a plain copy by one
// thread in the same run. Prefill has the ratio to Q4_0, whose kernels are repacked for int8, as what the machine can do.
// Goals: prefill512ToQ4_1 2.5, prefill512ToQ4_0 1, decode against either file 2.
// Run: npm run bench -- engine [--model FILE.gguf] [--peer FOLDER_OF_LLAMA_BENCH] [--repeats N]
//      [--provider native|cpu]: another one than the program takes here

import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { capacityClass, Slot, slotBytes } from '../src/engine/slot.js'
import type { Provider } from '../src/provider.js'
import { type ImportedModel, openImported, pulledSmolLm2 } from '../src/testing/imported-model.js'
import { seeded } from '../src/testing/random.js'
import { type LlamaRun, llamaBench, llamaQuantize } from './workload/llama.js'
import { llamaFolder } from './workload/servers.js'

const { values } = parseArgs({
  options: {
    model: { type: 'string', default: pulledSmolLm2() ?? '' },
    peer: { type: 'string', default: llamaFolder() ?? '' },
    provider: { type: 'string', default: 'auto' },
    repeats: { type: 'string', default: '3' },
  },
})
const THREADS = 2 // what openImported gives the runner
const DEPTHS = [0, 1024, 4096]
const PREFILL = 512
const DECODE = 24
const SAMPLES = 2
const CHUNKS = { sizes: [64, 128, 256, 512], depths: [0, 1024, 3584] }
const BATCHES = { rows: [4, 8], depths: [1024, 2048] }
const COPY_BYTES = 2 ** 28

/** Tokens a second by what was measured, e.g. `prefill@1024`; one number a sample. */
type Samples = Map<string, number[]>

if (values.model === '') {
  process.stderr.write('engine needs weights: refrain pull fetches them, or --model FILE.gguf names them\n')
  process.exit(2)
}
const PROVIDERS: Readonly<Record<string, Provider | undefined>> = { auto: undefined, native: 'native', cpu: 'onnx-cpu' }
if (!Object.hasOwn(PROVIDERS, values.provider)) {
  process.stderr.write('engine: --provider is auto, native or cpu\n')
  process.exit(2)
}
const provider = PROVIDERS[values.provider]
const repeats = Number(values.repeats)
if (!Number.isInteger(repeats) || repeats < 1) {
  process.stderr.write('engine: --repeats is a whole number, 1 or more\n')
  process.exit(2)
}

function say(text: string): void {
  process.stderr.write(`engine: ${text}\n`)
}

function median(samples: readonly number[]): number {
  const sorted = [...samples].sort((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}

function add(samples: Samples, name: string, rates: readonly number[]): void {
  samples.set(name, [...(samples.get(name) ?? []), ...rates])
}

/** The runner on slots that already hold tokens; a slot is rewound after each sample, so its rows stay the same. */
class Ours {
  readonly #model: ImportedModel
  readonly #deep: Slot
  readonly #random = seeded(1)

  constructor(model: ImportedModel) {
    this.#model = model
    this.#deep = this.#allocate(Math.max(...DEPTHS))
  }

  async fill(): Promise<void> {
    while (this.#deep.length < Math.max(...DEPTHS)) await this.#model.runner.prefill(this.#deep, this.#ids(PREFILL))
  }

  /** A slot that holds `depth` tokens, of the class that a sequence of `depth + room` tokens gets. */
  at(depth: number, room: number): Slot {
    const slot = this.#allocate(depth + room)
    slot.copyFrom(this.#deep, depth)
    return slot
  }

  /** Tokens a second of one run of `count` tokens. */
  async prefill(slot: Slot, count: number): Promise<number> {
    const depth = slot.length
    const ids = this.#ids(count)
    const started = performance.now()
    await this.#model.runner.prefill(slot, ids)
    const rate = (count * 1000) / (performance.now() - started)
    slot.length = depth
    return rate
  }

  /** Tokens a second of all `slots` together over `count` runs. */
  async decode(slots: readonly Slot[], count: number): Promise<number> {
    const depths = slots.map(({ length }) => length)
    const ids = this.#ids(count * slots.length)
    const started = performance.now()
    for (let step = 0; step < count; step++) {
      await this.#model.runner.decode(slots.map((slot, row) => ({ slot, id: ids[step * slots.length + row]! })))
    }
    const rate = (count * slots.length * 1000) / (performance.now() - started)
    for (const [row, slot] of slots.entries()) slot.length = depths[row]!
    return rate
  }

  #allocate(tokens: number): Slot {
    const { layout, manifest } = this.#model
    const slot = new Slot(layout, capacityClass(tokens, manifest.contextLength))
    // Pages that nobody wrote are all one page of zeros, which reads faster than memory does.
    for (const buffer of [...slot.k, ...slot.v]) buffer.fill(1e-3)
    return slot
  }

  #ids(count: number): Int32Array {
    return Int32Array.from({ length: count }, () => this.#random.below(this.#model.manifest.vocabSize))
  }
}

interface Place {
  readonly depth: number
  readonly prefill: Slot
  readonly decode: Slot
}

/** One round of ours, each shape warmed up before it counts. */
async function round(ours: Ours, places: readonly Place[], into: Samples): Promise<void> {
  for (const { depth, prefill, decode } of places) {
    await ours.prefill(prefill, PREFILL)
    for (let i = 0; i < SAMPLES; i++) add(into, `prefill@${depth}`, [await ours.prefill(prefill, PREFILL)])
    await ours.decode([decode], 4)
    for (let i = 0; i < SAMPLES; i++) add(into, `decode@${depth}`, [await ours.decode([decode], DECODE)])
  }
}

interface Peer {
  readonly name: 'Q4_1' | 'Q4_0'
  readonly model: string
  readonly samples: Samples
  /** What llama-bench says that it ran. */
  said?: string
  failure?: string
}

function peersOf(folder: string, model: string, temporary: string): Peer[] {
  if (folder === '') {
    say('llama-bench is not built: the peers are left out')
    return []
  }
  const peers: Peer[] = [{ name: 'Q4_1', model, samples: new Map() }]
  try {
    const requantized = join(temporary, 'q4_0.gguf')
    llamaQuantize(folder, model, requantized)
    peers.push({ name: 'Q4_0', model: requantized, samples: new Map() })
  } catch (error) {
    say(`the Q4_0 file is left out: ${(error as Error).message}`)
  }
  return peers
}

function peerRound(peer: Peer, folder: string): void {
  if (peer.failure !== undefined) return
  try {
    const lengths = { prefill: PREFILL, decode: DECODE, depths: DEPTHS, repetitions: SAMPLES, threads: THREADS }
    const run: LlamaRun = llamaBench({ folder, model: peer.model, ...lengths })
    peer.said = `${run.type}, build ${run.build}`
    for (const depth of DEPTHS) {
      add(peer.samples, `prefill@${depth}`, run.prefill[depth]!)
      add(peer.samples, `decode@${depth}`, run.decode[depth]!)
    }
  } catch (error) {
    peer.failure = (error as Error).message
    say(`${peer.name} is left out: ${peer.failure}`)
  }
}

async function chunks(ours: Ours): Promise<Samples> {
  const samples: Samples = new Map()
  for (const depth of CHUNKS.depths) {
    const slot = ours.at(depth, PREFILL)
    for (const size of CHUNKS.sizes) {
      await ours.prefill(slot, size)
      for (let i = 0; i < SAMPLES * repeats; i++) add(samples, `${size}@${depth}`, [await ours.prefill(slot, size)])
    }
  }
  return samples
}

async function batches(ours: Ours): Promise<Samples> {
  const samples: Samples = new Map()
  for (const depth of BATCHES.depths) {
    for (const rows of BATCHES.rows) {
      const slots = Array.from({ length: rows }, () => ours.at(depth, DECODE))
      await ours.decode(slots, 2)
      for (let i = 0; i < repeats; i++) add(samples, `${rows}@${depth}`, [await ours.decode(slots, DECODE / 2)])
    }
  }
  return samples
}

/** Bytes a second that one thread reads and writes in a plain copy. */
function copyRate(): number {
  const from = new Uint8Array(COPY_BYTES).fill(1)
  const into = new Uint8Array(COPY_BYTES).fill(2)
  const rates = Array.from({ length: 5 }, () => {
    const started = performance.now()
    into.set(from)
    return (2 * COPY_BYTES * 1000) / (performance.now() - started)
  })
  return median(rates)
}

function decodeAtCopyRate(model: ImportedModel): Record<string, number> {
  const rate = copyRate()
  const weights = statSync(join(model.directory, 'weights.bin')).size
  return Object.fromEntries(
    DEPTHS.map((depth) => [`decode@${depth}`, rounded(rate / (weights + slotBytes(model.layout, depth)))]),
  )
}

const rounded = (value: number) => Number(value.toPrecision(4))

function medians(samples: Samples): Record<string, number> {
  return Object.fromEntries([...samples].map(([name, rates]) => [name, rounded(median(rates))]))
}

/** Ours to theirs by the names of the goals; a peer that failed has none. */
function ratios(ours: Samples, peers: readonly Peer[]): Record<string, number> {
  const all: Record<string, number> = {}
  const goals = { prefill512: 'prefill@0', decode1024: 'decode@1024', decode4096: 'decode@4096' }
  for (const [goal, shape] of Object.entries(goals)) {
    for (const { name, samples, failure } of peers) {
      const theirs = failure === undefined ? samples.get(shape) : undefined
      if (theirs !== undefined) all[`${goal}To${name}`] = Number((median(ours.get(shape)!) / median(theirs)).toFixed(3))
    }
  }
  return all
}

function table(columns: Readonly<Record<string, Record<string, number>>>): void {
  const names = Object.keys(columns)
  process.stdout.write(`${'tok/s'.padEnd(14)}${names.map((name) => name.padStart(18)).join('')}\n`)
  for (const shape of Object.keys(columns[names[0]!]!)) {
    const cells = names.map((name) => String(columns[name]![shape] ?? '').padStart(18))
    process.stdout.write(`${shape.padEnd(14)}${cells.join('')}\n`)
  }
}

const temporary = mkdtempSync(join(tmpdir(), 'refrain-engine-'))
try {
  const load = loadavg()[0]!
  say(`importing ${values.model}`)
  const model = await openImported(values.model, temporary, { ...(provider && { provider }) })
  const peers = peersOf(values.peer, values.model, temporary)
  const ours = new Ours(model)
  say(`filling ${Math.max(...DEPTHS)} tokens`)
  await ours.fill()
  const places = DEPTHS.map((depth) => ({ depth, prefill: ours.at(depth, PREFILL), decode: ours.at(depth, DECODE) }))
  const samples: Samples = new Map()
  for (let repeat = 1; repeat <= repeats; repeat++) {
    for (const peer of peers.length === 0 ? [undefined] : peers) {
      say(`repeat ${repeat} of ${repeats}: ours`)
      await round(ours, places, samples)
      if (peer === undefined || peer.failure !== undefined) continue
      say(`repeat ${repeat} of ${repeats}: llama-bench, ${peer.name}`)
      peerRound(peer, values.peer)
    }
  }
  say('chunks and batches')
  const alone = { chunks: medians(await chunks(ours)), batches: medians(await batches(ours)) }
  const ceiling = decodeAtCopyRate(model)
  await model.runner.close()
  const columns = {
    ours: medians(samples),
    ...Object.fromEntries(peers.map((peer) => [peer.name, medians(peer.samples)])),
  }
  table({ ...columns, 'one-thread copy': ceiling })
  table({ 'prefill chunks': alone.chunks })
  table({ 'decode batches': alone.batches })
  const said = Object.fromEntries(peers.map((peer) => [peer.name, peer.failure ?? peer.said]))
  const report = {
    bench: 'engine',
    provider: provider ?? 'auto',
    ...ratios(samples, peers),
    repeats,
    loadAtStart: rounded(load),
    peers: said,
  }
  process.stdout.write(`${JSON.stringify({ ...report, ...columns, decodeAtCopyRate: ceiling, ...alone })}\n`)
} finally {
  rmSync(temporary, { recursive: true, force: true })
}
