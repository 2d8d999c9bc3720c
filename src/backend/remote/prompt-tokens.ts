// Which blocks a prompt has, for members that tell what their caches hold: the prompt's tokens, remembered by the chain of its
// messages, so that a turn is tokenized where it is new. Invariant: what is remembered was tokenized as a whole or in
// pieces that stand by themselves (checked at their seams); where a member then counts other tokens, pieces and at last the
// model are given up, and its prompts are routed by what was sent before.
//
//   known [0, i) ++ (tokens of (stand-in + new messages) behind those of the stand-in alone) ++ the answer's header

import { chainKeys, type KeyRoot, rootKey } from '../../core/block-keys.js'
import type { Clock } from '../../core/clock.js'
import { note } from '../../core/signals.js'
import type { PromptBlocks, SegmentChain } from '../../router/contract.js'
import type { TokenizeChat } from './tokenize.js'

/** A request's chat, of which no more is looked at than is new. */
export interface ChatParts {
  readonly count: number
  /** Raw JSON of one message. */
  message(index: number): string
  role(index: number): string
  readonly tools: string | undefined
  readonly values: string | undefined
}

export interface AskedPrompt {
  readonly model: string
  readonly chat: ChatParts
  readonly segments: SegmentChain
  /** The `cache_salt` that members get; undefined: none. */
  readonly salt: string | undefined
}

/** In which forms members' events have keys. */
export interface KeyForm {
  readonly blockTokens: number
  readonly salted: boolean
}

export interface PromptTokensOptions {
  /** Of token ids that are remembered. */
  readonly memoBytes: number
  /** How long a request waits for its new messages to be tokenized; what comes later is for its next turn. */
  readonly patienceMs: number
}

export interface PromptTokensParts {
  readonly tokenize: TokenizeChat
  forms(model: string): readonly KeyForm[]
  /** The adapter's name as events have it, where `model` names one. */
  adapterOf(model: string): string | undefined
  readonly clock: Clock
}

export interface FoundBlocks {
  readonly blocks: readonly PromptBlocks[]
  /** Of the whole prompt; undefined: only its front is known. */
  readonly promptTokens: number | undefined
}

/** A conversation's tokens as far as they are known. */
interface Line {
  readonly tokens: Int32Array
  /** Names of chains that end in it. */
  readonly names: string[]
  /** Of its full blocks, by form. */
  readonly keys: Map<string, Uint32Array>
}

interface Known {
  line: Line
  readonly count: number
}

/** A model with some values for its template. */
interface Scope {
  /** How much is believed: of pieces, of whole prompts, of nothing. */
  trust: 'pieces' | 'whole' | 'none'
  wrong: number
  readonly asked: Map<string, Promise<StandIn | undefined>>
  readonly standIns: Map<string, StandIn>
}

interface StandIn {
  readonly messages: readonly string[]
  readonly tokens: Int32Array
  /** Of the answer's header. */
  readonly opening: Int32Array
}

/** Wrong counts of a model before less of it is believed. */
const WRONG = 4
const SCOPES = 64
/** Messages that are more than text have tokens that only their engine knows. */
const MEDIA = /"type"\s*:\s*"(image|image_url|input_image|input_audio|audio_url|video_url|file)"/

export class PromptTokens {
  readonly #options: PromptTokensOptions
  readonly #parts: PromptTokensParts
  readonly #scopes = new Map<string, Scope>()
  readonly #known = new Map<string, Known>()
  /** Least recently used first. */
  readonly #lines = new Set<Line>()
  readonly #learning = new Map<string, Promise<Known | undefined>>()
  #bytes = 0

  constructor(options: PromptTokensOptions, parts: PromptTokensParts) {
    this.#options = options
    this.#parts = parts
  }

  /** Undefined: nothing of it is known, or nobody needs it. At once where all of it was seen before. */
  blocksOf(asked: AskedPrompt): FoundBlocks | undefined | Promise<FoundBlocks | undefined> {
    const forms = this.#parts.forms(asked.model)
    if (forms.length === 0 || asked.chat.count === 0) return undefined
    const scopeName = `${asked.model}\0${asked.chat.values ?? ''}`
    const scope = this.#scope(scopeName)
    if (scope.trust === 'none') return undefined
    const prompt: Prompt = { asked, forms, scope, scopeName }
    const front = this.#front(prompt)
    if (front?.upTo === asked.chat.count) return this.#whole(prompt, front.known)
    return this.#wait(prompt, front)
  }

  /** What the member counted; a prompt whose tokens were known otherwise teaches. */
  counted(asked: Pick<AskedPrompt, 'model' | 'chat'>, expected: number, promptTokens: number): void {
    const scope = this.#scopes.get(`${asked.model}\0${asked.chat.values ?? ''}`)
    if (scope === undefined || expected === promptTokens) {
      if (scope !== undefined) scope.wrong = 0
      return
    }
    if (++scope.wrong < WRONG) return
    scope.wrong = 0
    scope.trust = scope.trust === 'pieces' ? 'whole' : 'none'
    const how = scope.trust === 'whole' ? 'are tokenized as a whole' : 'are routed by what was sent before'
    note.publish({
      level: 'warn',
      text: `${asked.model}: prompts have other tokens than expected; from now on they ${how}`,
    })
    this.#forget()
  }

  #scope(name: string): Scope {
    const known = this.#scopes.get(name)
    if (known !== undefined) return known
    if (this.#scopes.size >= SCOPES) this.#scopes.delete(this.#scopes.keys().next().value as string)
    const scope: Scope = { trust: 'pieces', wrong: 0, asked: new Map(), standIns: new Map() }
    this.#scopes.set(name, scope)
    return scope
  }

  /** The longest front that is known. */
  #front(prompt: Prompt): { readonly known: Known; readonly upTo: number } | undefined {
    for (let upTo = prompt.asked.chat.count; upTo > 0; upTo--) {
      const known = this.#known.get(nameOf(prompt, upTo))
      if (known === undefined) continue
      this.#lines.delete(known.line)
      this.#lines.add(known.line)
      return { known, upTo }
    }
    return undefined
  }

  async #wait(prompt: Prompt, front: Front | undefined): Promise<FoundBlocks | undefined> {
    const learning = this.#learn(prompt, front)
    let cancel: () => void = () => undefined
    const late = new Promise<'late'>((resolve) => {
      cancel = this.#parts.clock.after(this.#options.patienceMs, () => resolve('late'))
    })
    const known = await Promise.race([learning, late])
    cancel()
    if (known !== 'late' && known !== undefined) return this.#whole(prompt, known)
    return front && { blocks: this.#blocks(prompt, front.known, NOTHING), promptTokens: undefined }
  }

  /** One at a time for the same prompt. */
  #learn(prompt: Prompt, front: Front | undefined): Promise<Known | undefined> {
    const name = nameOf(prompt, prompt.asked.chat.count)
    const going = this.#learning.get(name)
    if (going !== undefined) return going
    const learning = this.#tokenized(prompt, front).then((found) => found && this.#keep(name, found, front))
    this.#learning.set(name, learning)
    const forget = () => this.#learning.delete(name)
    void learning.then(forget, forget)
    return learning
  }

  async #tokenized(prompt: Prompt, front: Front | undefined): Promise<Int32Array | undefined> {
    const { chat, model } = prompt.asked
    const { count, tools, values } = chat
    const messages = Array.from({ length: count - (front?.upTo ?? 0) }, (_, i) => chat.message(i + (front?.upTo ?? 0)))
    if (messages.some((message) => MEDIA.test(message))) return undefined
    if (front !== undefined && prompt.scope.trust === 'pieces') {
      const standIn = await this.#standIn(prompt, chat.role(front.upTo - 1))
      const ids = standIn && (await this.#piece(prompt, standIn, messages))
      if (ids !== undefined) await this.#standIn(prompt, chat.role(count - 1))
      if (ids !== undefined) return joined(front.known.line.tokens.subarray(0, front.known.count), ids)
    }
    const before = Array.from({ length: front?.upTo ?? 0 }, (_, i) => chat.message(i))
    const all = [...before, ...messages]
    if (before.some((message) => MEDIA.test(message))) return undefined
    const [ids] = await Promise.all([
      this.#parts.tokenize({ model, messages: all, tools, values, isOpen: false }),
      this.#standIn(prompt, chat.role(count - 1)),
    ])
    return ids
  }

  async #piece(prompt: Prompt, standIn: StandIn, messages: readonly string[]): Promise<Int32Array | undefined> {
    const { model, chat } = prompt.asked
    const both = [...standIn.messages, ...messages]
    const ids = await this.#parts.tokenize({
      model,
      messages: both,
      tools: undefined,
      values: chat.values,
      isOpen: false,
    })
    const { length } = standIn.tokens
    const isBehind = ids !== undefined && ids.length > length && startsWith(ids, standIn.tokens)
    return isBehind ? ids.subarray(length) : undefined
  }

  /** Something short that ends with a message of `role`. */
  #standIn({ asked, scope }: Prompt, role: string): Promise<StandIn | undefined> {
    const known = scope.asked.get(role)
    if (known !== undefined) return known
    const messages = STAND_INS[role]
    if (messages === undefined) return Promise.resolve(undefined)
    const { model, chat } = asked
    const chatOf = (isOpen: boolean) => ({ model, messages, tools: undefined, values: chat.values, isOpen })
    const made = Promise.all([this.#parts.tokenize(chatOf(false)), this.#parts.tokenize(chatOf(true))]).then(
      ([tokens, open]) => {
        if (tokens === undefined || open === undefined || !startsWith(open, tokens)) {
          // Nobody answered, or it is not so made: asked again with the next prompt that needs it.
          scope.asked.delete(role)
          return undefined
        }
        const standIn = { messages, tokens, opening: open.slice(tokens.length) }
        scope.standIns.set(role, standIn)
        return standIn
      },
    )
    scope.asked.set(role, made)
    return made
  }

  /** The line with what is new; the front's other names live on in it. */
  #keep(name: string, tokens: Int32Array, front: Front | undefined): Known {
    const old = front?.known
    const isGrown = old !== undefined && old.count === old.line.tokens.length && startsWith(tokens, old.line.tokens)
    const line: Line = { tokens, names: isGrown ? old.line.names : [], keys: isGrown ? old.line.keys : new Map() }
    if (isGrown) {
      this.#lines.delete(old.line)
      this.#bytes -= bytesOf(old.line)
      for (const each of line.names) {
        const other = this.#known.get(each)
        if (other?.line === old.line) other.line = line
      }
    }
    const known: Known = { line, count: tokens.length }
    line.names.push(name)
    this.#known.set(name, known)
    this.#lines.add(line)
    this.#bytes += bytesOf(line)
    for (const oldest of this.#lines) {
      if (this.#bytes <= this.#options.memoBytes) break
      this.#drop(oldest)
    }
    return known
  }

  #drop(line: Line): void {
    this.#lines.delete(line)
    this.#bytes -= bytesOf(line)
    for (const name of line.names) if (this.#known.get(name)?.line === line) this.#known.delete(name)
  }

  #forget(): void {
    for (const line of [...this.#lines]) this.#drop(line)
  }

  #whole(prompt: Prompt, known: Known): FoundBlocks {
    const { chat } = prompt.asked
    const opening = prompt.scope.standIns.get(chat.role(chat.count - 1))?.opening
    const promptTokens = opening && known.count + opening.length
    return { blocks: this.#blocks(prompt, known, opening ?? NOTHING), promptTokens }
  }

  #blocks({ asked, forms }: Prompt, { line, count }: Known, opening: Int32Array): PromptBlocks[] {
    const adapter = this.#parts.adapterOf(asked.model)
    return forms.map(({ blockTokens, salted }) => {
      const root: KeyRoot = { blockTokens, adapter, salt: salted ? asked.salt : undefined }
      const own = keysOf(line, root).subarray(0, 2 * Math.floor(count / blockTokens))
      const rest = Math.floor((count + opening.length) / blockTokens) - own.length / 2
      if (rest === 0) return { blockTokens, salted, keys: own }
      const tokens = joined(line.tokens.subarray((own.length / 2) * blockTokens, count), opening)
      const more = new Uint32Array(2 * rest)
      chainKeys({ parent: lastOf(own, root), tokens, at: 0, blockTokens, count: rest }, more)
      const keys = new Uint32Array(own.length + more.length)
      keys.set(own)
      keys.set(more, own.length)
      return { blockTokens, salted, keys }
    })
  }
}

interface Prompt {
  readonly asked: AskedPrompt
  readonly forms: readonly KeyForm[]
  readonly scope: Scope
  readonly scopeName: string
}

interface Front {
  readonly known: Known
  readonly upTo: number
}

const NOTHING = new Int32Array(0)

const message = (role: string, more: object = { content: 'x' }) => JSON.stringify({ role, ...more })
const CALL = { id: 'call_0', type: 'function', function: { name: 'x', arguments: '{}' } }
/** What stands for all before a message, by the role of the last of it. */
const STAND_INS: Readonly<Record<string, readonly string[]>> = {
  user: [message('user')],
  assistant: [message('user'), message('assistant')],
  tool: [
    message('user'),
    message('assistant', { content: '', tool_calls: [CALL] }),
    message('tool', { tool_call_id: 'call_0', content: 'x' }),
  ],
}

/** What stands for the first `upTo` messages and all that is in front of them. */
function nameOf({ asked, scopeName }: Prompt, upTo: number): string {
  const { segments, chat } = asked
  return `${segments.hashes[segments.hashes.length - chat.count + upTo - 1]}\0${scopeName}`
}

function startsWith(ids: Int32Array, front: Int32Array): boolean {
  if (ids.length < front.length) return false
  for (let i = 0; i < front.length; i++) if (ids[i] !== front[i]) return false
  return true
}

function joined(a: Int32Array, b: Int32Array): Int32Array {
  const both = new Int32Array(a.length + b.length)
  both.set(a)
  both.set(b, a.length)
  return both
}

/** Of all full blocks of a line; what was made of a shorter one is gone on with. */
function keysOf(line: Line, root: KeyRoot): Uint32Array {
  const { blockTokens, adapter, salt } = root
  const form = JSON.stringify([blockTokens, adapter, salt])
  const known = line.keys.get(form) ?? new Uint32Array(0)
  const count = Math.floor(line.tokens.length / blockTokens)
  const done = known.length / 2
  if (done === count) return known
  const keys = new Uint32Array(2 * count)
  keys.set(known)
  const run = {
    parent: lastOf(known, root),
    tokens: line.tokens,
    at: done * blockTokens,
    blockTokens,
    count: count - done,
  }
  chainKeys(run, keys.subarray(known.length))
  line.keys.set(form, keys)
  return keys
}

function lastOf(keys: Uint32Array, root: KeyRoot): readonly [number, number] {
  const { length } = keys
  return length === 0 ? rootKey(root) : [keys[length - 2] as number, keys[length - 1] as number]
}

/** Its ids, and about as much for keys and names. */
function bytesOf({ tokens }: Line): number {
  return tokens.byteLength * 2 + 256
}
