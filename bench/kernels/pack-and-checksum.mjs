// Question: how fast do KV blocks pass between fp32 and fp16, and under the checksum, natively and in the TypeScript twin?
// Method: 24 blocks of SmolLM2's shape (64 tokens, 30 layers, K and V, 3 heads of 64), gathered from and scattered to
// strided rows of 16 KB as the engine keeps them (96 MB of fp32 in all, so nothing stays in L2); each form goes through
// all of them `ROUNDS` times and the median round counts. Time is the CPU's, not the clock's: all runs on one thread, and
// what else the machine does then matters less. Rates are bytes of fp16 KV a second. Ceiling: copying those (memcpy).
// Run: npm run build && node bench/kernels/pack-and-checksum.mjs

import { loadAddon } from '../../dist/native/addon.js'
import { fallback } from '../../dist/native/fallback.js'

const BLOCKS = 24
const ROUNDS = 15
const ROW = 64 * 64 // one head of one block: 64 tokens of 64 values
const HEADS = 3
const TENSORS = 30 * 2
const CAPACITY = BLOCKS * ROW // values of one head in the working set
const BLOCK = TENSORS * HEADS * ROW

const working = Array.from({ length: TENSORS }, (_, tensor) =>
  Float32Array.from({ length: HEADS * CAPACITY }, (_v, i) => Math.sin(i * 0.37 + tensor) * 4),
)
const blocks = Array.from({ length: BLOCKS }, () => new Uint16Array(BLOCK))
const copies = Array.from({ length: BLOCKS }, () => new Uint16Array(BLOCK))

const pack = (kernels) => (block) => {
  for (let tensor = 0; tensor < TENSORS; tensor++) {
    const from = working[tensor]
    kernels.packRows(from, block * ROW, CAPACITY, HEADS, ROW, blocks[block], tensor * HEADS * ROW)
  }
}
const unpack = (kernels) => (block) => {
  for (let tensor = 0; tensor < TENSORS; tensor++) {
    const into = working[tensor]
    kernels.unpackRows(blocks[block], tensor * HEADS * ROW, HEADS, ROW, into, block * ROW, CAPACITY)
  }
}
const bytes = blocks.map((block) => new Uint8Array(block.buffer))
const checksum = (kernels) => (block) => {
  if (kernels.crc32c(bytes[block]) === undefined) throw new Error('no checksum')
}
const copy = (block) => copies[block].set(blocks[block])

/** GB of fp16 KV a CPU second, in the median round; the first three warm up. */
function rate(work) {
  const times = []
  for (let round = 0; round < ROUNDS + 3; round++) {
    const before = process.cpuUsage()
    for (let block = 0; block < BLOCKS; block++) work(block)
    const { user, system } = process.cpuUsage(before)
    if (round >= 3) times.push(user + system)
  }
  times.sort((a, b) => a - b)
  return (BLOCKS * BLOCK * 2) / times[times.length >> 1] / 1e3
}

const measure = (kernels) => ({
  pack: rate(pack(kernels)),
  unpack: rate(unpack(kernels)),
  crc: rate(checksum(kernels)),
})

const addon = loadAddon()
if (!('forms' in addon)) {
  process.stderr.write(`${addon.reason}\n`)
  process.exit(1)
}
const rates = Object.fromEntries(addon.forms.map((form) => [form.instructions, measure(form)]))
rates.fallback = measure(fallback)
rates.memcpy = { copy: rate(copy) }

const round = (value) => Number(value.toPrecision(3))
for (const [form, measured] of Object.entries(rates)) {
  const cells = Object.entries(measured).map(([what, value]) => `${what} ${round(value)} GB/s`)
  process.stdout.write(`${form.padEnd(16)} ${cells.join('   ')}\n`)
}
const native = rates[addon.forms[0].instructions]
const result = {
  bench: 'kernels/pack-and-checksum',
  form: addon.forms[0].instructions,
  memcpyGBs: round(rates.memcpy.copy),
  ...Object.fromEntries(['pack', 'unpack', 'crc'].map((what) => [`${what}GBs`, round(native[what])])),
  ...Object.fromEntries(
    ['pack', 'unpack', 'crc'].map((what) => [`${what}NativeOverFallback`, round(native[what] / rates.fallback[what])]),
  ),
}
process.stdout.write(`${JSON.stringify(result)}\n`)
