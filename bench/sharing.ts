// Question: what does it cost a router, for each request, to tell others of it, and to hear of theirs; and to have their
// owner explain it?
// Method: CPU of this process alone (process.cpuUsage), which other work on the machine moves little. Sessions whose prompts
// grow by two messages a turn, placed, sent, begun and settled as in serve-fleet.ts: by a router alone, by one that tells
// (its batches are made as text, and thrown away), and by one that only hears what the second told, in batches of eight
// requests. Ten rounds of each in turn, the medians of all but the first two. For the owner the same requests are told as
// turns, made into messages and read from them, and kept.
// Run: npm run bench -- sharing [messages of a prompt, 60]

import { deserialize, serialize } from 'node:v8'
import { createFleetTurns } from '../src/explain/fleet-turns.js'
import { listenedTo, type TurnEars } from '../src/explain/turn-ears.js'
import { TurnHearer, TurnTeller } from '../src/explain/turn-wire.js'
import type { Member, RouteQuery } from '../src/router/contract.js'
import { createFleetRouter, type SharedRouter } from '../src/router/fleet-router.js'
import { ROUTER_DEFAULTS } from '../src/router/options.js'
import { Peers } from '../src/router/peers.js'
import { ManualClock } from '../src/testing/manual-clock.js'

const ROUNDS = 10
const WARM = 2
const SESSIONS = 200
const TURNS = 10
const BATCH = 8
const MESSAGES = Number(process.argv[2] ?? 60)

const clock = new ManualClock()
const members = Array.from(
  { length: 8 },
  (_, i): Member => ({
    id: `http://10.0.0.${i}:8000`,
    url: `http://10.0.0.${i}:8000`,
    kind: 'vllm',
    models: ['m'],
    state: 'up',
    weight: 1,
    knowledge: 'learned',
    load: { inFlight: 0, queuedPrefillTokens: 0, decoding: 0, reportedQueue: 0 },
    rates: { prefillTokensPerSecond: 2000, restoreCost: { device: 0, host: 0.1, disk: 0.5, remote: 0.8 } },
  }),
)

const texts: string[] = []
const alone = createFleetRouter(ROUTER_DEFAULTS, { members: () => members, clock })
const telling = withPeers((text) => void texts.push(text))
const hearing = withPeers(() => undefined)

function withPeers(send: (text: string) => void): { router: SharedRouter; peers: Peers } {
  const peers: Peers = new Peers({ wire: { send }, clock, books: () => router.books })
  const router = createFleetRouter(ROUTER_DEFAULTS, { members: () => members, clock, peers })
  return { router, peers }
}

function queriesOf(round: number): RouteQuery[] {
  const queries: RouteQuery[] = []
  for (let turn = 0; turn < TURNS; turn++) {
    for (let session = 0; session < SESSIONS; session++) {
      const count = MESSAGES - 2 * TURNS + 2 * turn
      const hashes = Array.from(
        { length: count },
        (_, i) => `${i < 2 ? 'head' : `${round}.${session}`}.${i}.0abcdef.ghijk`,
      )
      queries.push({
        id: `${round}.${turn}.${session}`,
        model: 'm',
        tenant: 'default',
        salt: '',
        requestClass: 'main',
        priority: 'interactive',
        segments: { hashes, tokens: hashes.map((_, i) => (i + 1) * 170), head: 2 },
        promptTokens: count * 170,
        estimated: true,
      })
    }
  }
  return queries
}

function run(router: SharedRouter, queries: readonly RouteQuery[], each: (i: number) => void = () => undefined) {
  for (const [i, query] of queries.entries()) {
    const placement = router.place(query)
    const member = placement.member.id
    router.sent(query, placement)
    router.started(query, member)
    const { predictedHitTokens, promptTokens } = { ...placement, ...query }
    router.settled({ query, member, predictedHitTokens, promptTokens, completionTokens: 50, failed: false })
    each(i)
  }
}

/** Microseconds of CPU for each of `count`. */
function cost(count: number, work: () => void): number {
  const before = process.cpuUsage()
  work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / count
}

const median = (values: readonly number[]) => values.toSorted((a, b) => a - b)[values.length >> 1] as number
const rounded = (value: number) => Math.round(value * 10) / 10

/** A router that does nothing. */
const idle = { sent: () => undefined, settled: () => undefined, started: () => undefined } as unknown as SharedRouter
const PLACEMENT = { member: members[0] as Member, scores: [], reason: '', predictedHitTokens: 0 }

/** As the path of a request tells of it. */
function runEars(ears: TurnEars, queries: readonly RouteQuery[], each: (i: number) => void) {
  const router = listenedTo(idle, ears)
  for (const [i, query] of queries.entries()) {
    const { promptTokens } = query
    router.sent(query, PLACEMENT)
    const counts = { promptTokens, completionTokens: 50, cachedTokens: Math.max(0, promptTokens - 340) }
    router.settled({ query, member: PLACEMENT.member.id, predictedHitTokens: 0, ...counts, failed: false })
    each(i)
  }
}

const turns = createFleetTurns({ turns: 64, sessions: 1000, memoryBytes: 2 ** 26, keepText: false })
const teller = new TurnTeller()
const hearer = new TurnHearer(turns)
const messages: Buffer[] = []

const found = {
  alone: [] as number[],
  telling: [] as number[],
  hearing: [] as number[],
  tellingTurns: [] as number[],
  keepingTurns: [] as number[],
}
let bytes = 0
let turnBytes = 0
for (let round = 0; round < ROUNDS; round++) {
  // Each gets texts of its own: whoever looks one up first pays for its hash.
  const [queries, others] = [queriesOf(round), queriesOf(round)]
  const times = {
    alone: cost(queries.length, () => run(alone, queries)),
    telling: cost(others.length, () =>
      run(telling.router, others, (i) => {
        if (i % BATCH === BATCH - 1) telling.peers.flush()
      }),
    ),
    hearing: cost(queries.length, () => {
      for (const text of texts) hearing.peers.hear(text)
    }),
    tellingTurns: cost(queries.length, () =>
      runEars(teller, queries, (i) => {
        if (i % BATCH === BATCH - 1) messages.push(serialize(teller.take()))
      }),
    ),
    keepingTurns: cost(queries.length, () => {
      for (const message of messages) hearer.hear(deserialize(message))
    }),
  }
  turnBytes = messages.reduce((sum, { length }) => sum + length, 0) / queries.length
  messages.length = 0
  bytes = texts.reduce((sum, text) => sum + text.length, 0) / queries.length
  texts.length = 0
  if (round < WARM) continue
  for (const key of Object.keys(found) as (keyof typeof found)[]) found[key].push(times[key])
}
const [one, tells, hears] = [median(found.alone), median(found.telling), median(found.hearing)]
process.stdout.write(
  `${JSON.stringify({
    bench: 'sharing',
    messages: MESSAGES,
    routerUs: rounded(one),
    tellingMoreUs: rounded(tells - one),
    hearingUs: rounded(hears),
    bytesPerRequest: Math.round(bytes),
    tellingTurnsUs: rounded(median(found.tellingTurns)),
    keepingTurnsUs: rounded(median(found.keepingTurns)),
    turnBytesPerRequest: Math.round(turnBytes),
  })}\n`,
)
