// What does one decision of the router take, at 64 backends and prompts of 100,000 tokens whose tokens are known, and what
// does its index of a million engine blocks weigh? Ceilings: 0.5 ms at the 99th percentile, 150 MB.
//
//   npm run bench -- decide [decisions]
//
// Every backend holds 15 conversations' blocks of 16 tokens; prompts go on from one of them, with 300 segments each, some of
// them new. `place` is the decision; `sent` and `settled` are what is written down of it. Learned knowledge (no tokens, no
// events) is measured beside precise knowledge. Both are warmed up by as many decisions as are measured. Queries are made
// beforehand, in batches, and their garbage is collected between them. A decision changes nothing: each is made five times
// and its median counts, so that who else is on the machine does not; `sent` and `settled` are measured once.

import { chainKeys, rootKey } from '../src/core/block-keys.js'
import { systemClock } from '../src/core/clock.js'
import type {
  FleetRouter,
  Knowledge,
  Member,
  MemberPlacement,
  PromptBlocks,
  RouteQuery,
} from '../src/router/contract.js'
import { createFleetRouter } from '../src/router/fleet-router.js'
import { ROUTER_DEFAULTS } from '../src/router/options.js'
import { createPreciseIndex } from '../src/router/precise-index.js'

const MEMBERS = 64
const PROMPT_TOKENS = 100_000
const BLOCK_TOKENS = 16
const SEGMENTS = 300
const BLOCKS = 1_000_000
const HEAD_TOKENS = 8000
const BATCH = 1000
const decisions = Number(process.argv[2] ?? 3000)

let seed = 1
/** Mulberry32. */
function random(): number {
  seed = (seed + 0x6d2b79f5) | 0
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
}

function membersOf(knowledge: Knowledge): Member[] {
  return Array.from({ length: MEMBERS }, (_, i) => ({
    id: `http://10.0.0.${i}:8000`,
    url: `http://10.0.0.${i}:8000`,
    kind: 'vllm',
    models: ['model'],
    state: 'up',
    weight: 1,
    knowledge,
    load: { inFlight: 0, queuedPrefillTokens: 0, decoding: 0, reportedQueue: 0 },
    rates: { prefillTokensPerSecond: 8000, restoreCost: { device: 0, host: 0.1, disk: 0.3, remote: 0.5 } },
  }))
}

/** Keys of conversation `n`: eight heads, then text of its own. */
function keysOf(n: number): Uint32Array {
  const count = PROMPT_TOKENS / BLOCK_TOKENS
  const shared = HEAD_TOKENS / BLOCK_TOKENS
  const keys = new Uint32Array(2 * count)
  const tokens = Int32Array.from({ length: PROMPT_TOKENS }, (_, i) => (i < HEAD_TOKENS ? (n % 8) * 1e6 : n * 1e6) + i)
  const run = { parent: rootKey({ blockTokens: BLOCK_TOKENS }), tokens, at: 0, blockTokens: BLOCK_TOKENS, count }
  chainKeys(run, keys)
  if (keys.length < 2 * shared) throw new Error('a head is longer than the prompt')
  return keys
}

function queryOf(n: number, { id, blocks }: { id: string; blocks?: PromptBlocks }): RouteQuery {
  const fresh = Math.floor(random() * 20)
  const hashes = Array.from({ length: SEGMENTS }, (_, i) =>
    i < 2 ? `head${n % 8}.${i}` : i < SEGMENTS - fresh ? `s${n}.${i}` : `${id}.${i}`,
  )
  const step = (PROMPT_TOKENS - HEAD_TOKENS) / (SEGMENTS - 2)
  const tokens = hashes.map((_, i) => (i === 0 ? HEAD_TOKENS / 2 : Math.round(HEAD_TOKENS + (i - 1) * step)))
  return {
    id,
    model: 'model',
    tenant: 'default',
    salt: '',
    requestClass: 'main',
    priority: 'interactive',
    segments: { hashes, tokens, head: 2 },
    ...(blocks && { blocks: [blocks] }),
    promptTokens: PROMPT_TOKENS,
    estimated: blocks === undefined,
  }
}

const index = createPreciseIndex()
const members = membersOf('precise')
const perConversation = PROMPT_TOKENS / BLOCK_TOKENS
const conversations = Math.floor(BLOCKS / perConversation)
const keys = Array.from({ length: conversations }, (_, n) => keysOf(n))
for (const { id } of members) {
  index.followed(id, { connected: true, complete: true, blockTokens: [BLOCK_TOKENS], salted: true })
}
for (const [n, of] of keys.entries()) {
  for (let copy = 0; copy < 6; copy++) {
    const part = of.subarray(0, copy === 0 ? of.length : 2 * Math.floor(random() * perConversation))
    index.stored(members[(n * 7 + copy * 11) % MEMBERS]!.id, { medium: 'device', keys: part })
  }
}

function anyQuery(knowledge: Knowledge, i: number): RouteQuery {
  const n = Math.floor(random() * conversations)
  const blocks = { blockTokens: BLOCK_TOKENS, salted: true, keys: keys[n]! }
  return queryOf(n, { id: `r${i}`, ...(knowledge === 'precise' && { blocks }) })
}

function measured(knowledge: Knowledge) {
  const fleet = knowledge === 'precise' ? members : membersOf(knowledge)
  const router = createFleetRouter(ROUTER_DEFAULTS, { members: () => fleet, clock: systemClock, precise: index })
  const placing: number[] = []
  const telling: number[] = []
  let batch: RouteQuery[] = []
  for (let i = 0; i < decisions * 2; i++) {
    if (i % BATCH === 0) {
      batch = Array.from({ length: BATCH }, (_, k) => anyQuery(knowledge, i + k))
      globalThis.gc?.()
    }
    const query = batch[i % BATCH]!
    const { placement, ms } = decide(router, query)
    const t1 = performance.now()
    router.sent(query, placement)
    router.started(query, placement.member.id)
    const { predictedHitTokens, member } = placement
    const usage = { cachedTokens: predictedHitTokens, promptTokens: PROMPT_TOKENS, completionTokens: 100 }
    router.settled({ query, member: member.id, predictedHitTokens, failed: false, ...usage })
    const t2 = performance.now()
    if (i < decisions) continue
    placing.push(ms)
    telling.push(t2 - t1)
  }
  return { placeMs: quantiles(placing), toldMs: quantiles(telling) }
}

function decide(router: FleetRouter, query: RouteQuery) {
  const times: number[] = []
  let placement: MemberPlacement | undefined
  for (let i = 0; i < 5; i++) {
    const before = performance.now()
    placement = router.place(query)
    times.push(performance.now() - before)
  }
  times.sort((x, y) => x - y)
  return { placement: placement!, ms: times[2]! }
}

function quantiles(values: number[]) {
  values.sort((a, b) => a - b)
  const at = (share: number) =>
    Number(values[Math.min(values.length - 1, Math.floor(share * values.length))]!.toFixed(4))
  return { p50: at(0.5), p99: at(0.99), max: at(1) }
}

const precise = measured('precise')
const learned = measured('learned')
const megabytes = Number((index.bytes / 1e6).toFixed(1))
process.stdout.write(`precise ${JSON.stringify(precise)}\nlearned ${JSON.stringify(learned)}\nindex ${megabytes} MB\n`)
process.stdout.write(
  `${JSON.stringify({ bench: 'decide', decisions, blocks: conversations * perConversation, megabytes, precise, learned })}\n`,
)
