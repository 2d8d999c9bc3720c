// Lays a fold out as a context: messages in order, each with its digest chained to all before it. Invariant: what did not
// change since the last time is taken over, message objects and digests alike; what comes out is never changed afterwards.
//
//   root | tools | system | memory | message ... | tail ...      digest(n) = SHA-256(digest(n - 1) | kind | digest of content)

import type { ChatMessage } from '../../../core/request.js'
import type { PolicySnapshot } from '../../log/event.js'
import type { CompiledContext, ContextSegment, Origin } from '../contract.js'
import { type Placed, placedOf, sourcesOf } from './entries.js'
import type { Fold } from './fold.js'
import { chained, type Leading, leadingOf, leadingParts, VERSION } from './leading.js'
import { messageChars, messageDigest, noteMessage } from './messages.js'

/** Places in what was laid out. */
interface Mark {
  readonly messages: number
  readonly chars: number
}

/** What one incremental compiler laid out last. */
export class Layout {
  #leading: Leading | undefined
  #messages: ChatMessage[] = []
  #origins: Origin[] = []
  #segments: ContextSegment[] = []
  /** Before each entry. */
  #marks: Mark[] = []
  #chars = 0
  #sources = new Set<string>()
  #sorted: readonly string[] = []
  #withheld: readonly number[] = []

  compile(fold: Fold, policy: PolicySnapshot): CompiledContext {
    const head = fold.head.shown(policy.shared)
    const parts = leadingParts(head, fold.body.summary, policy.retention)
    const from = this.#lead(leadingOf(parts, this.#leading), fold.body.takeChanges())
    const waiting = this.#extend(fold, from)
    const tail = tailOf(fold, policy, waiting)
    const stableDigest = this.#segments.at(-1)?.digest ?? (this.#leading as Leading).root
    let digest = stableDigest
    const segments = this.#segments.slice()
    for (const { message, from, to } of tail.placed) {
      digest = chained(digest, 'tail', messageDigest(message))
      segments.push({ kind: 'tail', from, to, digest })
    }
    if (this.#withheld.length !== fold.withheldCount) this.#withheld = fold.withheld()
    return {
      version: VERSION,
      tools: head.tools,
      callable: fold.head.callable,
      messages: this.#messages.slice(),
      tail: tail.placed.map(({ message }) => message),
      origins: this.#origins.slice(),
      segments,
      stableDigest,
      digest,
      series: fold.series,
      withheld: this.#withheld,
      sources: this.#allSources([...head.sources, ...tail.sources]),
      chars: this.#chars,
    }
  }

  /** Index of the first entry that must be laid out again. */
  #lead(leading: Leading, changedFrom: number): number {
    if (this.#leading === leading) {
      if (changedFrom === 0) this.#sources.clear()
      return changedFrom
    }
    this.#leading = leading
    this.#messages = leading.message === undefined ? [] : [leading.message]
    this.#origins = leading.message === undefined ? [] : [leading.origin]
    this.#segments = [...leading.segments]
    this.#chars = leading.message === undefined ? 0 : messageChars(leading.message)
    this.#marks = []
    this.#sources.clear()
    return 0
  }

  #extend({ body }: Fold, from: number): readonly Placed[] {
    const mark = this.#marks[from]
    if (mark !== undefined) {
      const gone = this.#messages.length - mark.messages
      this.#messages.length = mark.messages
      this.#origins.length = mark.messages
      this.#segments.length -= gone
      this.#chars = mark.chars
      this.#marks.length = from
    }
    const { entries } = body
    let waiting: readonly Placed[] = []
    let digest = this.#segments.at(-1)?.digest ?? (this.#leading as Leading).root
    for (let i = from; i < entries.length; i++) {
      const entry = entries[i]!
      this.#marks.push({ messages: this.#messages.length, chars: this.#chars })
      const placed = placedOf(entry, entries[i + 1])
      for (const { message, from, to, made } of placed.body) {
        digest = chained(digest, 'message', messageDigest(message))
        this.#segments.push({ kind: 'message', from, to, message: this.#messages.length, digest })
        this.#messages.push(message)
        this.#origins.push(made === undefined ? { from, to } : { from, to, made })
        this.#chars += messageChars(message)
      }
      waiting = placed.tail
      for (const source of sourcesOf(entry)) this.#sources.add(source)
    }
    const last = entries.at(-1)
    if (from >= entries.length && last !== undefined) waiting = placedOf(last, undefined).tail
    return waiting
  }

  #allSources(more: readonly string[]): readonly string[] {
    const all = new Set(this.#sources)
    for (const source of more) all.add(source)
    const isSame = all.size === this.#sorted.length && this.#sorted.every((source) => all.has(source))
    if (!isSame) this.#sorted = [...all].sort()
    return this.#sorted
  }
}

function tailOf(
  fold: Fold,
  policy: PolicySnapshot,
  waiting: readonly Placed[],
): { readonly placed: readonly Placed[]; readonly sources: readonly string[] } {
  const placed = [...waiting]
  const sources: string[] = []
  const edits = fold.head.edits(policy.shared)
  if (edits !== undefined) {
    const { text, from, to } = edits
    placed.push({ message: { role: 'system', content: text }, from, to, made: undefined })
    sources.push(...edits.sources)
  }
  for (const note of fold.notes.values()) {
    const { position } = note
    placed.push({ message: noteMessage(note), from: position, to: position, made: undefined })
    sources.push(...note.sources)
  }
  return { placed, sources }
}
