// The plainest index that events can be followed into: which keys a member holds, by medium. It complains about what the
// contract of EventSink forbids. For tests.

import type { EventSink, FollowState, HeldBlocks } from '../backend/kv-events/contract.js'
import type { Medium } from '../router/contract.js'

export class HeldIndex implements EventSink {
  readonly complaints: string[] = []
  readonly told: string[] = []
  readonly states = new Map<string, FollowState>()
  readonly #held = new Map<string, Map<Medium, Set<string>>>()

  stored(member: string, { medium, keys }: HeldBlocks): void {
    const held = this.#of(member, medium)
    for (const key of spell(keys)) {
      if (held.has(key)) this.complaints.push(`${key} is stored twice`)
      held.add(key)
    }
  }

  removed(member: string, { medium, keys }: HeldBlocks): void {
    for (const key of spell(keys)) {
      if (!this.#of(member, medium).delete(key)) this.complaints.push(`${key} is removed and not held`)
    }
  }

  cleared(member: string, medium?: Medium): void {
    this.told.push('cleared')
    if (medium === undefined) this.#held.delete(member)
    else this.#held.get(member)?.delete(medium)
  }

  lost(member: string): void {
    this.told.push('lost')
    this.#held.delete(member)
  }

  followed(member: string, state: FollowState): void {
    this.states.set(member, state)
  }

  /** Sorted keys. */
  held(member: string, medium: Medium = 'device'): string[] {
    return [...(this.#held.get(member)?.get(medium) ?? [])].sort()
  }

  /** How many blocks at the front of `keys` are held. */
  prefix(member: string, keys: Uint32Array, medium: Medium = 'device'): number {
    const held = this.#held.get(member)?.get(medium) ?? new Set()
    const spelled = spell(keys)
    const missing = spelled.findIndex((key) => !held.has(key))
    return missing === -1 ? spelled.length : missing
  }

  #of(member: string, medium: Medium): Set<string> {
    const media = this.#held.get(member) ?? new Map<Medium, Set<string>>()
    this.#held.set(member, media)
    const held = media.get(medium) ?? new Set<string>()
    media.set(medium, held)
    return held
  }
}

function spell(keys: Uint32Array): string[] {
  const words = [...keys].map((word) => word.toString(16).padStart(8, '0'))
  return words.flatMap((word, i) => (i % 2 === 0 ? [`${words[i + 1]}${word}`] : []))
}
