// The token ids of a chat as a member's engine would have them: asked of a member, or made here of its model's own files.
// Invariant: no answer is an answer too (`undefined`): what cannot be tokenized is routed by what was sent before. Who asks,
// and how seldom, is prompt-tokens.ts's affair.

import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { ChatMessage, ToolDefinition } from '../../core/request.js'
import { createTemplate } from '../../prompt/template.js'
import { createTokenizer } from '../../prompt/tokenizer.js'
import { type Remote, RemoteFault } from './contract.js'

/** A chat or a part of one, as raw JSON texts. */
export interface ChatText {
  /** The model's name at its members. */
  readonly model: string
  readonly messages: readonly string[]
  readonly tools: string | undefined
  /** `chat_template_kwargs` */
  readonly values: string | undefined
  /** Whether the header of an answer follows. */
  readonly isOpen: boolean
}

/** Undefined: it cannot be told. Never throws for what the chat holds. */
export type TokenizeChat = (chat: ChatText) => Promise<Int32Array | undefined>

// --- asked -----------------------------------------------------------------------------------------------------------

/** Asks the first of `remotes` that answers; they are asked in their order, one at a time. */
export function askMembers(remotes: (model: string) => readonly Remote[]): TokenizeChat {
  return async (chat) => {
    for (const remote of remotes(chat.model)) {
      try {
        const tokens = await (remote.facts?.kind === 'llama-cpp' ? askLlama(remote, chat) : askVllm(remote, chat))
        if (tokens !== undefined) return tokens
      } catch (fault) {
        if (!(fault instanceof RemoteFault)) throw fault
      }
    }
    return undefined
  }
}

/** https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#tokenizer-api */
async function askVllm(remote: Remote, { model, messages, tools, values, isOpen }: ChatText) {
  const body = {
    ...{ model, messages: messages.map(parsed), add_generation_prompt: isOpen },
    ...(tools !== undefined && { tools: parsed(tools) }),
    ...(values !== undefined && { chat_template_kwargs: parsed(values) }),
  }
  const { status, value } = await remote.call('POST', '/tokenize', { body })
  return status === 200 ? idsIn(value) : undefined
}

/** Its template first, then its tokenizer; BOS stands in the rendered text where the model wants one. */
async function askLlama(remote: Remote, { messages, tools, values, isOpen }: ChatText) {
  const body = {
    ...{ messages: messages.map(parsed), add_generation_prompt: isOpen },
    ...(tools !== undefined && { tools: parsed(tools) }),
    ...(values !== undefined && { chat_template_kwargs: parsed(values) }),
  }
  const rendered = await remote.call('POST', '/apply-template', { body })
  const { prompt: content } = (rendered.value ?? {}) as { prompt?: unknown }
  if (rendered.status !== 200 || typeof content !== 'string') return undefined
  const asked = { content, add_special: true, parse_special: true }
  const { status, value } = await remote.call('POST', '/tokenize', { body: asked })
  return status === 200 ? idsIn(value) : undefined
}

function idsIn(value: unknown): Int32Array | undefined {
  const { tokens } = (value ?? {}) as { tokens?: unknown }
  const isIds = Array.isArray(tokens) && tokens.every((id) => Number.isInteger(id) && id >= 0 && id < 2 ** 31)
  return isIds ? Int32Array.from(tokens) : undefined
}

function parsed(json: string): unknown {
  return JSON.parse(json)
}

// --- from files ------------------------------------------------------------------------------------------------------

/** A chat as the template takes it; undefined: it holds what no text is. */
export type ReadChat = (
  chat: ChatText,
) => { readonly messages: readonly ChatMessage[]; readonly tools: readonly ToolDefinition[] } | undefined

export interface LocalOptions {
  /** Holds `tokenizer.json`, `tokenizer_config.json`, and `chat_template.jinja` where the template stands apart. */
  readonly folder: string
  readonly read: ReadChat
  /** Of texts and their ids that are remembered. */
  readonly memoBytes: number
}

interface TokenizerConfig {
  readonly chat_template?: unknown
  readonly bos_token?: unknown
  readonly eos_token?: unknown
  readonly add_bos_token?: unknown
}

/** @throws Error where a file is missing or is not what it should be. */
export async function openLocalTokenizer({ folder, read, memoBytes }: LocalOptions): Promise<TokenizeChat> {
  const [json, configText] = await Promise.all([
    readFile(join(folder, 'tokenizer.json'), 'utf8'),
    readFile(join(folder, 'tokenizer_config.json'), 'utf8'),
  ])
  const config = JSON.parse(configText) as TokenizerConfig
  const apart = join(folder, 'chat_template.jinja')
  const source = existsSync(apart) ? await readFile(apart, 'utf8') : templateIn(config.chat_template)
  if (source === undefined) throw new Error(`${folder} has no chat template`)
  const [bosToken, eosToken] = [spellingOf(config.bos_token), spellingOf(config.eos_token)]
  const plain = createTokenizer(json, { addBos: false, eosTokenIds: [], memoBytes: 0 })
  const bosTokenId = bosToken === '' ? undefined : plain.specialId(bosToken)
  const addBos = config.add_bos_token === true && bosTokenId !== undefined
  const tokenizer = createTokenizer(json, { bosTokenId, addBos, eosTokenIds: [], memoBytes })
  const template = createTemplate(source, { bosToken, eosToken, dateNow: () => new Date() })
  return async (chat) => {
    const asked = read(chat)
    if (asked === undefined) return undefined
    try {
      const { text } = template.render(asked.messages, {
        tools: asked.tools,
        addGenerationPrompt: chat.isOpen,
        ...(chat.values !== undefined && { values: chat.values }),
      })
      return tokenizer.encode(text, { special: 'parse', bos: 'add' })
    } catch (fault) {
      // The template's own refusal: the member will say it to the client.
      if ((fault as { code?: string }).code === undefined) throw fault
      return undefined
    }
  }
}

/** One text, or a list of named ones of which the default counts. */
function templateIn(value: unknown): string | undefined {
  if (typeof value === 'string') return value
  if (!Array.isArray(value)) return undefined
  const named = value.find((each: { name?: unknown }) => each?.name === 'default') as { template?: unknown } | undefined
  return typeof named?.template === 'string' ? named.template : undefined
}

/** A token is its spelling, or an object that has it. */
function spellingOf(token: unknown): string {
  if (typeof token === 'string') return token
  const { content } = (token ?? {}) as { content?: unknown }
  return typeof content === 'string' ? content : ''
}
