// The part of the fleet's composition root that joins what is known of members' caches by their own word: followers of their
// events, the index of what they hold, and the tokens of prompts to ask it with. Invariant: a member that cannot be
// followed, and a prompt that cannot be tokenized, are routed by what was sent before; no request fails of either.

import { randomUUID } from 'node:crypto'
import { readBody } from './api/body.js'
import { openaiChat } from './api/dialect/openai-chat.js'
import type { EventSink, EventsOptions } from './backend/kv-events/contract.js'
import type { Follower } from './backend/kv-events/follower.js'
import type { Remote } from './backend/remote/contract.js'
import { type KeyForm, PromptTokens } from './backend/remote/prompt-tokens.js'
import {
  askMembers,
  type ChatText,
  openLocalTokenizer,
  type ReadChat,
  type TokenizeChat,
} from './backend/remote/tokenize.js'
import type { Config } from './config.js'
import type { Clock } from './core/clock.js'
import { RefrainError } from './core/errors.js'
import { note } from './core/signals.js'
import type { Knowledge } from './router/contract.js'
import { createPreciseIndex, type PreciseIndex } from './router/precise-index.js'

export interface KnowledgeParts {
  remotes(): readonly Remote[]
  /** Ids of members that may be asked. */
  isUp(id: string): boolean
  readonly clock: Clock
  /** Another process follows members and tells the index what it hears. */
  readonly isTold?: boolean
  /** Hears what the index hears, before it. */
  readonly listener?: EventSink
}

export interface CacheKnowledge {
  readonly index: PreciseIndex
  readonly tokens: PromptTokens
  knowledgeOf(id: string): Knowledge | undefined
  /** The same remote, followed where it publishes events, until it is closed. */
  follow(remote: Remote): Remote
}

export function createKnowledge(config: Config, parts: KnowledgeParts): CacheKnowledge {
  const index = createPreciseIndex()
  const sink = parts.listener === undefined ? index : both(parts.listener, index)
  const followed = new Set<string>()
  const { tokenizeMs: patienceMs, tokenBytes: memoBytes } = config.fleet
  const serving = (model: string) =>
    parts.remotes().filter(({ facts }) => facts?.models.some(({ id }) => id === model) === true)
  const tokens = new PromptTokens(
    { memoBytes, patienceMs },
    {
      tokenize: tokenizer(serving, { isUp: parts.isUp, read: readerOf(config), memoBytes }),
      forms(model) {
        const told = followed.size === 0 ? [] : serving(model).filter(({ id }) => followed.has(id))
        return formsOf(told, index)
      },
      adapterOf(model) {
        const isAdapter = serving(model).some(({ facts }) => facts?.models.find(({ id }) => id === model)?.isAdapter)
        return isAdapter ? model : undefined
      },
      clock: parts.clock,
    },
  )
  return {
    index,
    tokens,
    knowledgeOf: (id) => (followed.has(id) ? 'precise' : undefined),
    follow(remote) {
      const { events } = remote.options
      if (events === undefined) return remote
      followed.add(remote.id)
      const stop = parts.isTold === true ? async () => undefined : startFollowing(remote, events, sink)
      return Object.create(remote, {
        close: {
          async value() {
            followed.delete(remote.id)
            await stop()
            sink.lost(remote.id)
            await remote.close()
          },
        },
      }) as Remote
    },
  }
}

function both(first: EventSink, second: EventSink): EventSink {
  return {
    stored(...told) {
      first.stored(...told)
      second.stored(...told)
    },
    removed(...told) {
      first.removed(...told)
      second.removed(...told)
    },
    cleared(...told) {
      first.cleared(...told)
      second.cleared(...told)
    },
    lost(member) {
      first.lost(member)
      second.lost(member)
    },
    followed(...told) {
      first.followed(...told)
      second.followed(...told)
    },
  }
}

/** Returns at once; what ends it waits until it has begun. ZeroMQ is loaded by the first that needs it. */
function startFollowing(remote: Remote, events: EventsOptions, sink: EventSink): () => Promise<void> {
  const rank = remote.options.dataParallelRank
  const begin = async (): Promise<Follower | undefined> => {
    try {
      const { followMember } = await import('./backend/kv-events/follower.js')
      return await followMember({ member: remote.id, events, ...(rank !== undefined && { rank }) }, { sink })
    } catch (error) {
      const text = `${remote.id}: its events can't be followed: ${(error as Error).message}`
      note.publish({ level: 'error', text })
      return undefined
    }
  }
  const begun = begin()
  return async () => (await begun)?.close()
}

/** Each block size once, with and without salts as it comes. */
function formsOf(remotes: readonly Remote[], index: PreciseIndex): KeyForm[] {
  const forms = new Map<string, KeyForm>()
  for (const { id } of remotes) {
    const { blockTokens: sizes = [], salted = true } = index.state(id) ?? {}
    for (const blockTokens of sizes) forms.set(`${blockTokens} ${salted}`, { blockTokens, salted })
  }
  return [...forms.values()]
}

/** Engines that can be asked for tokens. */
const ASKED: readonly string[] = ['vllm', 'sglang', 'llama-cpp']

interface TokenizerOptions {
  readonly isUp: (id: string) => boolean
  readonly read: ReadChat
  readonly memoBytes: number
}

/** By the files of one of the model's members where there are any, else one of them is asked. */
function tokenizer(
  serving: (model: string) => readonly Remote[],
  { isUp, read, memoBytes }: TokenizerOptions,
): TokenizeChat {
  const asked = askMembers((model) =>
    serving(model).filter(({ id, facts }) => isUp(id) && facts !== undefined && ASKED.includes(facts.kind)),
  )
  const local = new Map<string, Promise<TokenizeChat>>()
  const opened = (folder: string) => {
    const known = local.get(folder)
    if (known !== undefined) return known
    const opening = openLocalTokenizer({ folder, read, memoBytes }).catch((error: Error): TokenizeChat => {
      note.publish({ level: 'error', text: `backends: the tokenizer in ${folder} can't be used: ${error.message}` })
      return asked
    })
    local.set(folder, opening)
    return opening
  }
  return async (chat) => {
    const folder = serving(chat.model).find(({ options }) => options.tokenizer !== undefined)?.options.tokenizer
    return folder === undefined ? asked(chat) : (await opened(folder))(chat)
  }
}

/** Messages and tools as the embedded engine's dialect reads them. */
function readerOf({ limits }: Config): ReadChat {
  const tenant = { name: 'router', salt: 'router', admin: false }
  return ({ model, messages, tools, values }: ChatText) => {
    const more = tools === undefined ? '' : `,"tools":${tools}`
    const options = values === undefined ? '' : `,"chat_template_kwargs":${values}`
    const body = Buffer.from(`{"model":${JSON.stringify(model)},"messages":[${messages.join(',')}]${more}${options}}`)
    try {
      const envelope = { id: randomUUID(), tenant, session: undefined, priority: 'interactive', limits } as const
      const prompt = openaiChat.decode(readBody(body), envelope).requests[0]?.prompt
      return prompt?.kind === 'chat' ? { messages: prompt.messages, tools: prompt.tools } : undefined
    } catch (error) {
      // What this dialect refuses its backend may take: it is routed without tokens.
      if (error instanceof RefrainError) return undefined
      throw error
    }
  }
}
