// Plays a conversation through a log, the compiler and one way of keeping its context short, and counts: what would be sent,
// what of it a prefix cache has, what that costs, and what the model needed later and no longer saw. Pure: nothing is
// generated, answers are those that the conversation has. For benches and tests.

import { hash } from 'node:crypto'
import type { ChatMessage } from '../core/request.js'
import { SECTIONS } from '../session/compaction/check.js'
import type { Lifecycle } from '../session/compaction/contract.js'
import { namesIn } from '../session/compaction/facts.js'
import { micro } from '../session/compaction/micro.js'
import { eventBehind } from '../session/compaction/on-trial.js'
import { runCompaction } from '../session/compaction/plan.js'
import { isUnderPressure } from '../session/compaction/triggers.js'
import { historyChars, stepInput } from '../session/compaction/units.js'
import { CURRENT_COMPILER, createIncrementalCompiler } from '../session/compile/compilers.js'
import type { CompiledContext } from '../session/compile/contract.js'
import type { EventBody, SessionEvent } from '../session/log/event.js'
import { PLAIN_POLICY } from './random-log.js'

/** One request: what is said before it, and what was answered. */
export interface PlayStep {
  readonly said: readonly EventBody[]
  readonly answer: readonly EventBody[]
}

export interface Play {
  readonly head: readonly EventBody[]
  readonly steps: readonly PlayStep[]
}

export interface PlayStrategy {
  readonly name: string
  /** `broken`: something in front of everything changes with each request. */
  readonly cache: 'prefix' | 'broken' | 'none'
  readonly lifecycle: Lifecycle
  /** `never`: the context only grows. `pruned`: results become placeholders before every request. */
  readonly when: 'never' | 'pressure' | 'pruned'
}

export interface PlayOptions {
  /** Tokens of the window. */
  readonly window: number
  countTokens(text: string): number
}

/** Prices of a token of input: computed without a cache 1, computed and kept, read. */
export const PRICES = { plain: 1, write: 1.25, read: 0.1 }

const BLOCK_TOKENS = 64

export interface Played {
  readonly requests: number
  /** Of all requests, those for summaries included. */
  readonly inputTokens: number
  readonly computedTokens: number
  readonly cachedTokens: number
  readonly cost: number
  readonly summaries: number
  readonly boundaries: number
  /** Boundaries that came to nothing although there was pressure. */
  readonly rejected: number
  /** Requests that had more tokens than the window. */
  readonly overflows: number
  /** Names (paths, ids) that answers' calls used and the whole history had; and those of them that were out of sight. */
  readonly needed: number
  readonly missed: number
  /** Tokens of the whole history that the last request did not show. */
  readonly hiddenTokens: number
}

export async function playContext(play: Play, strategy: PlayStrategy, options: PlayOptions): Promise<Played> {
  const player = new Player(strategy, options)
  player.log(play.head)
  for (const { said, answer } of play.steps) {
    player.log(said)
    await player.shorten()
    player.send()
    player.need(answer)
    player.log(answer)
  }
  return player.figures()
}

class Player {
  readonly #strategy: PlayStrategy
  readonly #options: PlayOptions
  readonly #events: SessionEvent[] = []
  readonly #compiler = createIncrementalCompiler()
  /** The same log without compactions. */
  readonly #whole = createIncrementalCompiler()
  readonly #wholeEvents: SessionEvent[] = []
  readonly #tokens = new WeakMap<ChatMessage, number>()
  /** What a prefix cache has. */
  readonly #sent: Sent = { next: new Map() }
  readonly #figures = {
    ...{ requests: 0, inputTokens: 0, computedTokens: 0, cachedTokens: 0, cost: 0, summaries: 0, boundaries: 0 },
    ...{ rejected: 0, overflows: 0, needed: 0, missed: 0, hiddenTokens: 0 },
  }
  /** All text that the model saw so far, whole and as it was last sent. */
  #seen = ''
  #shown = ''

  constructor(strategy: PlayStrategy, options: PlayOptions) {
    this.#strategy = strategy
    this.#options = options
  }

  log(bodies: readonly EventBody[]): void {
    for (const body of bodies) {
      this.#push(body)
      const event = eventBehind(this.#wholeEvents, body)
      this.#wholeEvents.push(event)
      this.#whole.append([event])
    }
  }

  #push(body: EventBody): void {
    const event = eventBehind(this.#events, body)
    this.#events.push(event)
    this.#compiler.append([event])
  }

  async shorten(): Promise<void> {
    const { when, lifecycle } = this.#strategy
    if (when === 'never') return
    const context = this.#compiler.compile(PLAIN_POLICY)
    const usedTokens = this.#measure(context)
    if (when === 'pruned') {
      const step = micro.plan(stepInput(context, { events: this.#events, lifecycle, keep: lifecycle.keep }))
      if (step?.step !== 'micro') return
      const { chars } = context
      this.#push({ kind: 'compaction', trigger: 'api', steps: [step], charsBefore: chars, charsAfter: chars })
      this.#figures.boundaries++
      return
    }
    const { window, countTokens } = this.#options
    if (!isUnderPressure(lifecycle, { usedTokens, window, chars: historyChars(context) })) return
    const plan = await runCompaction(
      {
        ...{ events: this.#events, policy: PLAIN_POLICY, compiler: CURRENT_COMPILER, lifecycle, trigger: 'pressure' },
        ...{ window, usedTokens, countTokens, measure: (each) => this.#measure(each) },
      },
      async ({ messages, instruction }) => {
        const asked: ChatMessage[] = [...messages, { role: 'user', content: instruction }]
        this.#count(asked)
        this.#figures.summaries++
        return SCRIPTED
      },
    )
    const event = plan.kind === 'apply' ? plan.event : plan.kind === 'rejected' ? plan.partial : undefined
    if (plan.kind === 'rejected') this.#figures.rejected++
    if (event === undefined) return
    this.#push(event)
    this.#figures.boundaries++
  }

  send(): void {
    const { messages, tail } = this.#compiler.compile(PLAIN_POLICY)
    const sent = [...messages, ...tail]
    this.#figures.requests++
    if (this.#count(sent) > this.#options.window) this.#figures.overflows++
    this.#shown = textOf(sent)
    const whole = this.#whole.compile(PLAIN_POLICY)
    this.#seen = textOf(whole.messages)
    this.#figures.hiddenTokens = Math.max(0, this.#measure(whole) - sent.reduce((sum, each) => sum + this.#of(each), 0))
  }

  /** What the answer's calls use must have been seen. */
  need(answer: readonly EventBody[]): void {
    for (const body of answer) {
      if (body.kind !== 'tool_call') continue
      for (const name of new Set(namesIn(body.arguments))) {
        if (!this.#seen.includes(name)) continue
        this.#figures.needed++
        if (!this.#shown.includes(name)) this.#figures.missed++
      }
    }
  }

  figures(): Played {
    return { ...this.#figures }
  }

  /** Tokens of what is sent, after its price was added up. */
  #count(messages: readonly ChatMessage[]): number {
    let place = this.#sent
    let tokens = 0
    let known = 0
    for (const message of messages) {
      const name = nameOf(message)
      const next = place.next.get(name)
      tokens += this.#of(message)
      if (next !== undefined) known = tokens
      place.next.set(name, next ?? { next: new Map() })
      place = place.next.get(name) as Sent
    }
    const { cache } = this.#strategy
    const cached = cache === 'prefix' ? Math.floor(known / BLOCK_TOKENS) * BLOCK_TOKENS : 0
    const computed = tokens - cached
    const figures = this.#figures
    figures.inputTokens += tokens
    figures.cachedTokens += cached
    figures.computedTokens += computed
    figures.cost += computed * (cache === 'none' ? PRICES.plain : PRICES.write) + cached * PRICES.read
    return tokens
  }

  #measure({ messages, tail }: CompiledContext): number {
    let tokens = 0
    for (const message of messages) tokens += this.#of(message)
    for (const message of tail) tokens += this.#of(message)
    return tokens
  }

  #of(message: ChatMessage): number {
    const known = this.#tokens.get(message)
    if (known !== undefined) return known
    const { content, reasoning = '', toolCalls = [] } = message
    const calls = toolCalls.map((call) => `${call.name}${call.arguments}`).join('')
    const tokens = this.#options.countTokens(`${reasoning}${content}${calls}`)
    this.#tokens.set(message, tokens)
    return tokens
  }
}

/** What a writer that writes nothing of use gives: all that is kept is what the check adds. */
const SCRIPTED = SECTIONS.map((section) => `## ${section}\nnone`).join('\n')

/** Everything that was sent, as a tree of messages: equal ones are one, whichever objects they are. */
interface Sent {
  readonly next: Map<string, Sent>
}

const names = new WeakMap<ChatMessage, string>()

function nameOf(message: ChatMessage): string {
  const name = names.get(message) ?? hash('sha256', JSON.stringify(message))
  names.set(message, name)
  return name
}

function textOf(messages: readonly ChatMessage[]): string {
  return messages
    .map(({ content, toolCalls = [] }) => [content, ...toolCalls.map((call) => call.arguments)].join('\n'))
    .join('\n')
}
