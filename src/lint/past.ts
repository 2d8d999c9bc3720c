// The prompts that a new one is held against: the last of its conversation, the last with its head, the last few of all.
// Invariant: keeps at most `mostBytes` of text, whatever was logged; the least recently used goes first.

import { hash } from 'node:crypto'
import { NOTHING_SHARED, type Shared, sharedStart } from './break.js'
import type { LoggedPrompt } from './prompt-text.js'

export interface Match {
  /** The same conversation's last prompt; undefined: it begins here. */
  readonly before: LoggedPrompt | undefined
  /** What both have, where the model is the same. */
  readonly shared: Shared
  /** The prompt that has most of this one; what a cache that keeps everything would have of it. */
  readonly best: { readonly prompt: LoggedPrompt; readonly shared: Shared } | undefined
}

const RECENT = 4

export class Past {
  readonly #mostBytes: number
  /** By every key that finds it; least recently used first. */
  readonly #byKey = new Map<string, LoggedPrompt>()
  readonly #keys = new Map<LoggedPrompt, number>()
  #recent: readonly LoggedPrompt[] = []
  #bytes = 0

  constructor(mostBytes: number) {
    this.#mostBytes = mostBytes
  }

  /** The prompt's past, of which it is a part from now on. */
  add(prompt: LoggedPrompt): Match {
    const [conversation, head] = keysOf(prompt)
    const before = this.#byKey.get(conversation)
    const candidates = new Set([before, this.#byKey.get(head), ...this.#recent])
    let best: Match['best']
    let mine = NOTHING_SHARED
    for (const each of candidates) {
      if (each === undefined || each.model !== prompt.model) continue
      const shared = sharedStart(each, prompt)
      if (each === before) mine = shared
      if (best === undefined || shared.bytes > best.shared.bytes) best = { prompt: each, shared }
    }
    this.#put(conversation, prompt)
    this.#put(head, prompt)
    this.#recent = [prompt, ...this.#recent].slice(0, RECENT)
    for (const key of this.#byKey.keys()) {
      if (this.#bytes <= this.#mostBytes) break
      this.#drop(key)
    }
    return { before, shared: mine, best }
  }

  #put(key: string, prompt: LoggedPrompt): void {
    this.#drop(key)
    this.#byKey.set(key, prompt)
    const keys = this.#keys.get(prompt) ?? 0
    if (keys === 0) this.#bytes += prompt.bytes
    this.#keys.set(prompt, keys + 1)
  }

  #drop(key: string): void {
    const prompt = this.#byKey.get(key)
    if (prompt === undefined) return
    this.#byKey.delete(key)
    const keys = (this.#keys.get(prompt) ?? 0) - 1
    if (keys > 0) this.#keys.set(prompt, keys)
    else {
      this.#keys.delete(prompt)
      this.#bytes -= prompt.bytes
    }
  }
}

/** What tells conversations apart: their own name, or what is said first; and what they may share: tools and system text. */
function keysOf({ model, session, pieces }: LoggedPrompt): readonly [string, string] {
  const first = pieces.find(({ kind }) => kind === 'message')
  const said = first === undefined ? '' : digest(first.text)
  const head = pieces.filter(({ kind }) => kind !== 'message').map(({ text }) => text)
  return [session === undefined ? `said ${said}` : `session ${session}`, `head ${model} ${digest(head.join('\n'))}`]
}

function digest(text: string): string {
  return hash('sha1', text, 'base64')
}
