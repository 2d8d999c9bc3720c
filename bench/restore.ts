// Question: how fast does a cached prefix come back, from host memory and from disk, checksums included?
// Method: one prompt of BLOCKS blocks of 1.47 MB (SmolLM2-135M, fp16), written by the cache itself. Memory: acquire, then
// unpack every block into per-layer fp32 rows as the engine does. Disk: the cache is closed and opened again, the page cache
// is dropped (needs root; else the figure is of a warm page cache and the JSON says so), acquire alone, then acquire and
// unpack. Ceilings in the same run: plain copies of the same bytes; the same files read by 4 MB, dropped as well.
// Goal: memory 1 GB/s, disk 400 MB/s of fp16 KV.
// Run: npm run bench -- restore [blocks] [folder]

import { mkdtemp, open, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { KvCache, Lease } from '../src/cache/contract.js'
import { openKvCache } from '../src/cache/kv-cache.js'
import { BLOCK_TOKENS } from '../src/core/block.js'
import { kernels } from '../src/native/index.js'
import { straightPrompt, type ToyPrompt } from '../src/testing/toy-blocks.js'

const LAYERS = 30
const KV_HEADS = 3
const HEAD_DIM = 64
const ROWS = LAYERS * 2 * KV_HEADS
const ROW_ELEMENTS = BLOCK_TOKENS * HEAD_DIM
const BLOCK_BYTES = ROWS * ROW_ELEMENTS * 2
const RUNS = 5

const blocks = Number(process.argv[2] ?? 128)
const folder = await mkdtemp(join(process.argv[3] ?? tmpdir(), 'refrain-restore-'))
const bytes = blocks * BLOCK_BYTES
const prompt = straightPrompt(1, blocks)

const openCache = () =>
  openKvCache({
    ...{ blockBytes: BLOCK_BYTES, memoryBytes: (blocks + 8) * BLOCK_BYTES, restore: 'always' },
    disk: { folder: join(folder, 'cache'), capacityBytes: 3 * bytes, keepFreeBytes: 0 },
  })

const ask = (cache: KvCache, { tokens, chain }: ToyPrompt) =>
  cache.acquire({ tokens, chain, priority: 'interactive', resident: 0, maxBlocks: blocks })

async function fill(cache: KvCache): Promise<void> {
  const lease = await ask(cache, prompt)
  for (let i = 0; i < blocks; i++) {
    const tokens = prompt.tokens.subarray(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS)
    lease.commit(i, prompt.chain.hashes[i]!, tokens, (into) => into.fill(1 + (i % 100)))
  }
  lease.release()
  await cache.flush()
}

/** The working set of one sequence: a buffer per layer and side, `[kvHeads, capacity, headDim]`. */
const layers = Array.from({ length: LAYERS * 2 }, () => new Float32Array(KV_HEADS * blocks * ROW_ELEMENTS))

function unpack(lease: Lease): void {
  for (let i = 0; i < blocks; i++) {
    const raw = lease.block(i)
    const half = new Uint16Array(raw.buffer, raw.byteOffset, raw.length / 2)
    for (const [layer, target] of layers.entries()) {
      const from = layer * KV_HEADS * ROW_ELEMENTS
      kernels.unpackRows(half, from, KV_HEADS, ROW_ELEMENTS, target, i * ROW_ELEMENTS, blocks * ROW_ELEMENTS)
    }
  }
}

async function dropPageCache(): Promise<boolean> {
  try {
    await writeFile('/proc/sys/vm/drop_caches', '3')
    return true
  } catch (error) {
    process.stderr.write(`the page cache stays: ${(error as Error).message}\n`)
    return false
  }
}

async function timed(run: () => Promise<void> | void): Promise<number> {
  const started = performance.now()
  await run()
  return bytes / 1000 / (performance.now() - started)
}

/** MB/s, median of the runs. */
function median(rates: number[]): number {
  return Math.round(rates.sort((a, b) => a - b)[rates.length >> 1]!)
}

async function readFiles(): Promise<void> {
  const into = Buffer.alloc(4 * 1024 * 1024)
  for (const name of await readdir(join(folder, 'cache'))) {
    if (!name.endsWith('.kv')) continue
    const file = await open(join(folder, 'cache', name))
    while ((await file.read(into)).bytesRead > 0);
    await file.close()
  }
}

try {
  let cache = await openCache()
  const write = await timed(() => fill(cache))
  const memory: number[] = []
  const copy: number[] = []
  const target = new Uint8Array(bytes)
  for (let run = 0; run <= RUNS; run++) {
    const lease = await ask(cache, prompt)
    const plain = await timed(() => {
      for (let i = 0; i < blocks; i++) target.set(lease.block(i), i * BLOCK_BYTES)
    })
    lease.release()
    const rate = await timed(async () => {
      const again = await ask(cache, prompt)
      unpack(again)
      again.release()
    })
    if (run > 0) copy.push(plain) && memory.push(rate)
  }
  const disk: number[] = []
  const diskUnpacked: number[] = []
  const raw: number[] = []
  const opening: number[] = []
  let dropped = true
  for (let run = 0; run < RUNS; run++) {
    await cache.close()
    const started = performance.now()
    cache = await openCache()
    opening.push(performance.now() - started)
    dropped = (await dropPageCache()) && dropped
    let lease: Lease | undefined
    const began = performance.now()
    disk.push(
      await timed(async () => {
        lease = await ask(cache, prompt)
      }),
    )
    if (lease!.ready !== blocks) throw new Error(`only ${lease!.ready} of ${blocks} blocks came back`)
    unpack(lease!)
    diskUnpacked.push(bytes / 1000 / (performance.now() - began))
    lease!.release()
    await dropPageCache()
    raw.push(await timed(readFiles))
  }
  await cache.close()
  const report = {
    ...{ bench: 'restore', blocks, blockBytes: BLOCK_BYTES, kernels: kernels.name, pageCacheDropped: dropped },
    memoryMBps: median(memory),
    copyMBps: median(copy),
    diskMBps: median(disk),
    diskUnpackedMBps: median(diskUnpacked),
    rawReadMBps: median(raw),
    writeMBps: Math.round(write),
    openMs: Math.round(median(opening.map((ms) => ms * 1000))) / 1000,
  }
  for (const [name, value] of Object.entries(report)) process.stdout.write(`${name.padEnd(18)} ${value}\n`)
  process.stdout.write(`${JSON.stringify(report)}\n`)
} finally {
  await rm(folder, { recursive: true, force: true })
}
