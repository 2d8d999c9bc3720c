// The head of a context: tools, system text and memory blocks, as they stand in the prompt and as they stand in the log.
// Invariant: what stands in the prompt changes at a boundary only; until then a change is told behind the history (`append`),
// rides in the tail (memory) or waits (`boundary`).

import type { ToolDefinition } from '../../../core/request.js'
import type { HeadEvent, MemoryEvent, PolicySnapshot } from '../../log/event.js'
import type { Of } from './messages.js'
import { type BlockText, memoryEdits, toldSystem, toldTools } from './words.js'

/** Undefined members: there are none, and no event gave them. */
interface Instructions {
  readonly tools: readonly ToolDefinition[]
  readonly system: string
  readonly toolsAt: number
  readonly systemAt: number
  readonly toolsSources: readonly string[]
  readonly systemSources: readonly string[]
}

interface Block {
  readonly value: string
  readonly at: number
  /** Of one that several sessions see. */
  readonly shared: string | undefined
  readonly sources: readonly string[]
}

/** A value of a shared block, and what it rests on. */
export type Shared = PolicySnapshot['shared']

/** What of the head a prompt shows. */
export interface ShownHead extends Instructions {
  readonly blocks: readonly BlockText[]
  /** Position of the last edit that they show; 0: none. */
  readonly memoryAt: number
  readonly memoryFrom: number
  readonly sources: readonly string[]
}

const NONE: Instructions = { tools: [], system: '', toolsAt: 0, systemAt: 0, toolsSources: [], systemSources: [] }

/** One session's head. */
export class Head {
  readonly #revoked: ReadonlySet<string>
  /** Nothing of a body stands behind it yet: changes of it cost nothing. */
  #fresh = true
  #shown = NONE
  #latest = NONE
  /** What the model knows: the head, and what was told behind it. */
  #told = NONE
  #memory = new Map<string, Block>()
  /** Resolved when the boundary came. */
  #shownMemory: ReadonlyMap<string, Block> = new Map()
  /** Values of shared blocks as the log knows them. */
  #shared: Shared = {}

  constructor(revoked: ReadonlySet<string>) {
    this.#revoked = revoked
  }

  /** One that goes on from here by itself. */
  clone(): Head {
    const copy = new Head(this.#revoked)
    copy.#fresh = this.#fresh
    copy.#shown = this.#shown
    copy.#latest = this.#latest
    copy.#told = this.#told
    copy.#memory = new Map(this.#memory)
    copy.#shownMemory = this.#shownMemory
    copy.#shared = this.#shared
    return copy
  }

  get callable(): readonly ToolDefinition[] {
    return this.#told.tools
  }

  /** What is to be told behind the history, if anything; and whether the prefix ends here. */
  change(event: Of<HeadEvent>): { readonly tell?: string; readonly settles?: true } {
    const { apply, system, tools } = event.body
    const { position, sources } = event
    const over = (old: Instructions): Instructions => ({
      ...old,
      ...(system !== undefined && { system, systemAt: position, systemSources: sources }),
      ...(tools !== undefined && { tools, toolsAt: position, toolsSources: sources }),
    })
    this.#latest = over(this.#latest)
    if (this.#fresh) {
      this.#settleInstructions()
      return {}
    }
    if (apply === 'now') return { settles: true }
    if (apply === 'boundary') return {}
    const before = this.#told
    this.#told = over(before)
    const parts = [
      before.system === this.#told.system ? '' : toldSystem(before.system, this.#told.system),
      toldTools(before.tools, this.#told.tools),
    ].filter((part) => part !== '')
    return parts.length === 0 ? {} : { tell: parts.join('\n\n') }
  }

  edit({ body, position, sources }: Of<MemoryEvent>): void {
    const { label, value, shared } = body
    if (value === undefined) this.#memory.delete(label)
    else {
      this.#memory.set(label, { value, at: position, shared, sources })
      if (shared !== undefined) this.#shared = { ...this.#shared, [shared]: { label, value, sources } }
    }
  }

  /** A snapshot in the log says what shared blocks read from there on. */
  share(shared: Shared): void {
    this.#shared = { ...this.#shared, ...shared }
  }

  /** A body begins: what is shown stands from here on. */
  begin(): void {
    if (!this.#fresh) return
    this.#fresh = false
    this.#shownMemory = this.#resolved(this.#shared)
  }

  /** A boundary: everything that waited is shown. `fresh`: there is no body behind it. */
  settle(fresh: boolean): void {
    this.#settleInstructions()
    this.#fresh = fresh
    this.#shownMemory = this.#resolved(this.#shared)
  }

  /** As shown in a prompt that is compiled now. */
  shown(now: Shared): ShownHead {
    const memory = this.#fresh ? this.#resolved({ ...this.#shared, ...now }) : this.#shownMemory
    const blocks = [...memory].map(([label, { value }]) => ({ label, value }))
    const places = [...memory.values()].map(({ at }) => at)
    return {
      ...this.#shown,
      blocks,
      memoryFrom: Math.min(...places),
      memoryAt: Math.max(0, ...places),
      sources: [
        ...this.#shown.toolsSources,
        ...this.#shown.systemSources,
        ...[...memory.values()].flatMap(({ sources }) => sources),
      ],
    }
  }

  /** Edits that a prompt which is compiled now shows in its tail; undefined: none. */
  edits(
    now: Shared,
  ):
    | { readonly text: string; readonly from: number; readonly to: number; readonly sources: readonly string[] }
    | undefined {
    if (this.#fresh) return undefined
    const current = this.#resolved({ ...this.#shared, ...now })
    const edits: { label: string; value: string | undefined }[] = []
    const sources: string[] = []
    let to = 0
    for (const [label, block] of current) {
      if (this.#shownMemory.get(label)?.value === block.value) continue
      edits.push({ label, value: block.value })
      sources.push(...block.sources)
      to = Math.max(to, block.at)
    }
    for (const [label, { at }] of this.#shownMemory) {
      if (current.has(label)) continue
      edits.push({ label, value: undefined })
      to = Math.max(to, at)
    }
    return edits.length === 0 ? undefined : { text: memoryEdits(edits), from: to, to, sources }
  }

  #settleInstructions(): void {
    this.#shown = this.#latest
    this.#told = this.#latest
  }

  /** Blocks by label, those shared with the values of `shared`; without what rests on a revoked source. */
  #resolved(shared: Shared): Map<string, Block> {
    const blocks = new Map<string, Block>()
    for (const [label, block] of this.#memory) {
      const now = block.shared === undefined ? undefined : shared[block.shared]
      const resolved = now === undefined ? block : { ...block, value: now.value, sources: now.sources ?? block.sources }
      if (!resolved.sources.some((source) => this.#revoked.has(source))) blocks.set(label, resolved)
    }
    return blocks
  }
}
