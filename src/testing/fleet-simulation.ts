// A fleet in virtual time: members with a bounded prefix cache that prefill one request at a time, and agents whose prompts
// only grow, each asking again once it is answered. Deterministic: what a router does with it is the router's doing alone.

import type { FleetRouter, Member, MemberState, RouteQuery } from '../router/contract.js'
import { ManualClock } from './manual-clock.js'

export const BLOCK_CHARS = 256
const CHARS_A_TOKEN = 4
/** From a client to a member, or back. */
const WIRE_MS = 1

export interface Workload {
  readonly sessions: number
  readonly turns: number
  /** Head of session i is `heads[i % heads.length]`. */
  readonly heads: readonly number[]
  readonly headChars: number
  readonly firstChars: number
  readonly turnChars: number
  readonly staggerMs: number
  /** Between an answer and the session's next turn. */
  readonly thinkMs?: number
  /** The session's id is told to the router. */
  readonly named: boolean
}

export interface FleetShape {
  readonly members: number
  /** Of one member's cache, as a share of all blocks that the workload has. */
  readonly cacheShare: number
  readonly tokensPerSecond: number
  /** What members are configured to do, before anything was observed. */
  readonly assumedRate: number
  readonly decodeMs: number
}

export interface SimulatedFleet {
  readonly prefilledOverIdeal: number
  readonly requests: readonly number[]
  readonly prefilled: readonly number[]
  readonly wallMs: number
  readonly ttftMs: { readonly p50: number; readonly p95: number; readonly max: number }
  /** Sessions that were answered by another member than before. */
  readonly moves: number
  /** By session: names of the members that answered it. */
  readonly visits: readonly (readonly string[])[]
  readonly reasons: Readonly<Record<string, number>>
  /** Longest time that a member had nothing to do while sessions of two heads waited at another. */
  readonly idleMs: number
}

/** The prefix cache and the one prefill at a time of a server. */
class SimulatedMember {
  readonly id: string
  readonly #clock: ManualClock
  readonly #shape: FleetShape
  readonly #capacity: number
  #blocks = new Map<string, true>()
  #queue: (() => void)[] = []
  #busy = false
  state: MemberState = 'up'
  requests = 0
  prefilled = 0
  /** Heads of the requests that wait here, for each request. */
  readonly waiting = new Map<symbol, number>()

  constructor(id: string, clock: ManualClock, shape: FleetShape & { readonly capacity: number }) {
    this.id = id
    this.#clock = clock
    this.#shape = shape
    this.#capacity = shape.capacity
  }

  /** `done` is called with the tokens that were cached once the first token is there. */
  prefill(prompt: Prompt, done: (cached: number) => void): void {
    this.requests++
    const ticket = Symbol()
    this.waiting.set(ticket, prompt.head)
    this.#queue.push(() => {
      const cached = Math.min(this.#match(prompt) * (BLOCK_CHARS / CHARS_A_TOKEN), prompt.tokens - 1)
      this.prefilled += prompt.tokens - cached
      this.#clock.after(((prompt.tokens - cached) / this.#shape.tokensPerSecond) * 1000, () => {
        this.#keep(prompt)
        this.#busy = false
        this.waiting.delete(ticket)
        done(cached)
        this.#next()
      })
    })
    this.#next()
  }

  clear(): void {
    this.#blocks = new Map()
  }

  #next(): void {
    if (this.#busy) return
    const run = this.#queue.shift()
    if (run === undefined) return
    this.#busy = true
    run()
  }

  #match(prompt: Prompt): number {
    let blocks = 0
    while (blocks < prompt.blocks.length && this.#blocks.has(prompt.blocks[blocks] as string)) blocks++
    return blocks
  }

  /** The tail is touched first, so that it is the first to go. */
  #keep({ blocks }: Prompt): void {
    for (const block of blocks.toReversed()) {
      this.#blocks.delete(block)
      this.#blocks.set(block, true)
    }
    for (const block of this.#blocks.keys()) {
      if (this.#blocks.size <= this.#capacity) return
      this.#blocks.delete(block)
    }
  }
}

interface Prompt {
  readonly head: number
  readonly tokens: number
  readonly blocks: readonly string[]
}

function promptOf(workload: Workload, session: number, turn: number): Prompt {
  const head = workload.heads[session % workload.heads.length] as number
  const chars = workload.headChars + workload.firstChars + turn * workload.turnChars
  const shared = Math.floor(workload.headChars / BLOCK_CHARS)
  const blocks = Array.from({ length: Math.floor(chars / BLOCK_CHARS) }, (_, i) =>
    i < shared ? `head ${head} ${i}` : `session ${session} ${i}`,
  )
  return { head, tokens: Math.ceil(chars / CHARS_A_TOKEN), blocks }
}

function queryOf(workload: Workload, session: number, turn: number): RouteQuery {
  const head = workload.heads[session % workload.heads.length] as number
  // Tools, system, task; then two messages a turn.
  const hashes = [`t${head}`, `h${head}`, `s${session}.0`]
  const chars = [workload.headChars / 4, workload.headChars, workload.headChars + workload.firstChars]
  for (let i = 1; i <= turn; i++) {
    const at = workload.headChars + workload.firstChars + i * workload.turnChars
    hashes.push(`s${session}.${i}a`, `s${session}.${i}t`)
    chars.push(at - workload.turnChars * 0.8, at)
  }
  // The router's estimate is of bytes of JSON, which are somewhat more.
  const tokens = chars.map((count) => Math.round((count * 1.07) / CHARS_A_TOKEN))
  return {
    id: `${session}.${turn}`,
    model: 'mock',
    tenant: 'default',
    salt: '',
    ...(workload.named && { session: `session-${session}` }),
    requestClass: 'main',
    priority: 'interactive',
    segments: { hashes, tokens, head: 2 },
    promptTokens: tokens.at(-1) as number,
    estimated: true,
  }
}

/** Tokens that one cache without bounds would prefill, and all blocks there are. */
function idealOf(workload: Workload): { prefilled: number; blocks: number } {
  const seen = new Set<string>()
  let prefilled = 0
  for (let turn = 0; turn < workload.turns; turn++) {
    for (let session = 0; session < workload.sessions; session++) {
      const { tokens, blocks } = promptOf(workload, session, turn)
      const known = blocks.findIndex((block) => !seen.has(block))
      const cached = (known < 0 ? blocks.length : known) * (BLOCK_CHARS / CHARS_A_TOKEN)
      prefilled += tokens - Math.min(cached, tokens - 1)
      for (const block of blocks) seen.add(block)
    }
  }
  return { prefilled, blocks: seen.size }
}

export interface SimulationHooks {
  /** The fleet's members as they are made; tests change their state from timers of `clock`. */
  readonly begun?: (members: readonly SimulatedMember[], clock: ManualClock, router: FleetRouter) => void
}

export function simulate(
  workload: Workload,
  shape: FleetShape,
  create: (parts: { members: () => readonly Member[]; clock: ManualClock }) => FleetRouter,
  hooks: SimulationHooks = {},
): SimulatedFleet {
  const clock = new ManualClock()
  const ideal = idealOf(workload)
  const capacity = Math.ceil(ideal.blocks * shape.cacheShare)
  const servers = Array.from(
    { length: shape.members },
    (_, i) => new SimulatedMember(`up${i}`, clock, { ...shape, capacity }),
  )
  const members = servers.map((server) => memberOf(server, shape))
  const router = create({ members: () => members, clock })
  hooks.begun?.(servers, clock, router)
  const waits: number[] = []
  const visits: string[][] = Array.from({ length: workload.sessions }, () => [])
  const reasons: Record<string, number> = {}
  let left = workload.sessions
  const ask = (session: number, turn: number): void => {
    if (turn === workload.turns) {
      left--
      return
    }
    const prompt = promptOf(workload, session, turn)
    const query = queryOf(workload, session, turn)
    const askedAt = clock.now()
    clock.after(WIRE_MS, () => {
      const placement = router.place(query)
      const { id } = placement.member
      reasons[placement.reason] = (reasons[placement.reason] ?? 0) + 1
      visits[session]!.push(id)
      router.sent(query, placement)
      const server = servers.find((each) => each.id === id) as SimulatedMember
      const sentAt = clock.now()
      server.prefill(prompt, (cached) => {
        clock.after(WIRE_MS, () => {
          router.started(query, id)
          waits.push(clock.now() + WIRE_MS - askedAt)
          const ttftMs = clock.now() - sentAt
          clock.after(shape.decodeMs, () => {
            const { predictedHitTokens } = placement
            const usage = { cachedTokens: cached, promptTokens: prompt.tokens, completionTokens: 16 }
            router.settled({ query, member: id, predictedHitTokens, ...usage, ttftMs, failed: false })
            clock.after(WIRE_MS + (workload.thinkMs ?? 0), () => ask(session, turn + 1))
          })
        })
      })
    })
  }
  for (let session = 0; session < workload.sessions; session++) {
    // Clients that begin at once still arrive one after the other.
    clock.after(session * Math.max(workload.staggerMs, 0.5), () => ask(session, 0))
  }
  let idleMs = 0
  let idleSince: number | undefined
  while (left > 0) {
    clock.advance(1)
    const isIdle =
      servers.some(({ waiting, state }) => state === 'up' && waiting.size === 0) &&
      servers.some(({ waiting }) => new Set(waiting.values()).size >= 2)
    idleSince = isIdle ? (idleSince ?? clock.now()) : undefined
    if (idleSince !== undefined) idleMs = Math.max(idleMs, clock.now() - idleSince)
  }
  waits.sort((a, b) => a - b)
  const at = (share: number) => waits[Math.min(waits.length - 1, Math.ceil(share * waits.length) - 1)] as number
  const prefilled = servers.map((server) => server.prefilled)
  return {
    prefilledOverIdeal: prefilled.reduce((sum, each) => sum + each, 0) / ideal.prefilled,
    requests: servers.map(({ requests }) => requests),
    prefilled,
    wallMs: clock.now(),
    ttftMs: { p50: at(0.5), p95: at(0.95), max: at(1) },
    moves: visits.reduce((sum, ids) => sum + ids.filter((id, i) => i > 0 && id !== ids[i - 1]).length, 0),
    visits,
    reasons,
    idleMs,
  }
}

function memberOf(server: SimulatedMember, { assumedRate }: FleetShape): Member {
  return {
    id: server.id,
    url: `http://${server.id}`,
    kind: 'vllm',
    models: ['mock'],
    get state() {
      return server.state
    },
    weight: 1,
    knowledge: 'learned',
    load: { inFlight: 0, queuedPrefillTokens: 0, decoding: 0, reportedQueue: 0 },
    rates: { prefillTokensPerSecond: assumedRate, restoreCost: { device: 0, host: 0.1, disk: 0.5, remote: 0.8 } },
  }
}

// --- the workloads that routers are compared by ----------------------------------------------------------------------

const AGENTS = { turns: 12, headChars: 6144 + 330, firstChars: 230, turnChars: 128 + 896 + 50, staggerMs: 50 }

/** Four heads of six sessions each; each member caches a third of all. */
export const AFFINITY: Workload = { ...AGENTS, sessions: 24, heads: [0, 1, 2, 3], named: false }
/** Heads of 12, 6, 4 and 2 sessions. */
export const SKEW: Workload = { ...AGENTS, sessions: 24, heads: [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3], named: false }
/** One head, which is four fifths of the mean prompt. */
export const HOT_HEAD: Workload = {
  sessions: 32,
  turns: 6,
  heads: [0],
  headChars: 16_384 + 330,
  firstChars: 230,
  turnChars: 128 + 1024 + 50,
  staggerMs: 0,
  named: false,
}
export const BENCH_FLEET: FleetShape = {
  members: 4,
  cacheShare: 1 / 3,
  tokensPerSecond: 2000,
  assumedRate: 8000,
  decodeMs: 2,
}
