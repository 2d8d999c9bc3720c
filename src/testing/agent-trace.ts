// Seeded agents as a trace: a common start, sessions that each add some blocks a turn, a number of them at a time. For tests
// and benches of what a cache keeps; equal options give equal traces.

import type { Trace, TraceRequest } from '../trace/trace.js'
import { seeded } from './random.js'

export interface AgentTraceOptions {
  /** Blocks of all prompts together, at least. */
  readonly references: number
  /** Sessions at a time. */
  readonly sessions: number
  readonly turns: number
  /** Blocks that all prompts begin with. */
  readonly headBlocks: number
  /** Blocks that a turn adds, from and to. */
  readonly added: readonly [number, number]
  readonly seed: number
}

/** A prompt has one token behind its last full block, as all real ones have some. */
export function agentTrace(options: AgentTraceOptions): Trace {
  const { references, sessions, turns, headBlocks, added, seed } = options
  const random = seeded(seed)
  const begin = () => Array.from({ length: headBlocks }, (_, i) => i)
  const open = Array.from({ length: sessions }, (_, id) => ({ id, turn: 0, blocks: begin() }))
  const requests: TraceRequest[] = []
  let name = headBlocks
  for (let count = 0, at = 0; count < references; at++) {
    const session = open[random.below(sessions)]!
    if (session.turn === turns) Object.assign(session, { id: session.id + sessions, turn: 0, blocks: begin() })
    for (let more = added[0] + random.below(added[1] - added[0] + 1); more > 0; more--) session.blocks.push(name++)
    const blocks = [...session.blocks]
    const turn = ++session.turn
    requests.push({
      ...{ at, promptTokens: 64 * blocks.length + 1, outputTokens: 1, blocks, scope: 0 },
      ...{ session: String(session.id), turn },
    })
    count += blocks.length
  }
  return { name: 'seeded agents', blockTokens: 64, requests }
}

/**
 * As a file that `refrain bench` reads: one list, each request behind the one before it, whichever agent sends it. What
 * comes of it hangs on no clock.
 */
export function oneByOneFile({ blockTokens, requests }: Trace): string {
  const list = requests.map(({ at, promptTokens, outputTokens, blocks }) => ({
    ...{ t: at, type: 's', in: promptTokens, out: outputTokens, hash_ids: blocks },
  }))
  return JSON.stringify({ id: 'agents', block_size: blockTokens, hash_id_scope: 'local', requests: list })
}
