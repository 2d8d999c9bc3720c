// `cache_control` of the Messages API: hints on blocks, tools or the whole body about what a client wants kept. Invariant:
// a mark never reaches the prompt and never decides what is reused; it becomes a checkpoint, four of them at most.
// https://platform.claude.com/docs/en/build-with-claude/prompt-caching

import type { Checkpoint } from '../../core/request.js'
import { accepted, custom, type Field, invalid, oneOf, readFields, required } from './fields.js'

const TTL_MS = { '5m': 300_000, '1h': 3_600_000 } as const

/** Marks that a body may carry. */
const MARKS = 4

const markFields = {
  type: oneOf(['ephemeral'], 'The only kind.'),
  ttl: oneOf(['5m', '1h'], 'How long the prefix is kept. Default 5m.'),
  scope: accepted("prefixes are shared within the tenant's key"),
}

/** Milliseconds that a mark asks for. */
export const cacheControl: Field<number> = custom(
  { type: 'object', description: '`{type: "ephemeral", ttl?: "5m" | "1h"}`: keep what ends here.' },
  (value, path, reading) => {
    const read = readFields(markFields, value, path, reading)
    required(read.type, `${path}.type`)
    return TTL_MS[read.ttl ?? '5m']
  },
)

/** The marks of a body, as they are come upon. */
export class CacheMarks {
  readonly #longest = new Map<Checkpoint['after'], number>()
  #count = 0
  #last: number | undefined

  /** `after`: see Checkpoint; -1, where no message stands yet, means the head. */
  add(after: Checkpoint['after'], ttlMs: number | undefined): void {
    if (ttlMs === undefined) return
    const at = after === -1 ? 'head' : after
    this.#count++
    this.#last = ttlMs
    this.#longest.set(at, Math.max(ttlMs, this.#longest.get(at) ?? 0))
  }

  /** How the tokens that were newly written are counted in `cache_creation`: by the last mark, 5m without one. */
  get lifetime(): '5m' | '1h' {
    return this.#last === TTL_MS['1h'] ? '1h' : '5m'
  }

  /**
   * What is marked in a conversation of `count` messages; undefined: nothing.
   * @throws RefrainError where more is marked than the API takes.
   */
  checkpoints(count: number): readonly Checkpoint[] | undefined {
    if (this.#count > MARKS) {
      throw invalid('cache_control', `may stand in at most ${MARKS} places of a body, not in ${this.#count}`)
    }
    if (this.#count === 0) return undefined
    // A mark may stand in a message that has nothing in it and so is none.
    return [...this.#longest].map(([after, ttlMs]) => ({
      after: after === 'head' ? after : Math.min(after, count - 1),
      ttlMs,
    }))
  }
}
