// Prompts tokenized where they are new: the same tokens as of the whole, few and small questions, and less belief where a
// member counts otherwise.

import { describe, expect, test } from 'vitest'
import { promptKeys } from '../../core/block-keys.js'
import type { PromptBlocks } from '../../router/contract.js'
import { ManualClock } from '../../testing/manual-clock.js'
import { type AskedPrompt, type FoundBlocks, PromptTokens } from './prompt-tokens.js'
import type { ChatText, TokenizeChat } from './tokenize.js'

interface Message {
  readonly role: string
  readonly content: unknown
}

/** ChatML with a token for each character; a default system message where there is none, as many templates have. */
function render({ messages, tools, isOpen }: ChatText): string {
  const read = messages.map((json) => JSON.parse(json) as Message)
  const head = read[0]?.role === 'system' ? '' : '<system>helpful</system>'
  const turns = read.map(({ role, content }) => `<${role}>${content}</${role}>`)
  return `${head}${tools ?? ''}${turns.join('')}${isOpen ? '<assistant>' : ''}`
}

const idsOf = (text: string) => Int32Array.from(text, (char) => char.charCodeAt(0))

function house(more: { tokenize?: TokenizeChat; memoBytes?: number; patienceMs?: number } = {}) {
  const asked: ChatText[] = []
  const clock = new ManualClock()
  const tokenize = more.tokenize ?? (async (chat) => idsOf(render(chat)))
  const tokens = new PromptTokens(
    { memoBytes: more.memoBytes ?? 2 ** 20, patienceMs: more.patienceMs ?? 1000 },
    {
      tokenize: (chat) => {
        asked.push(chat)
        return tokenize(chat)
      },
      forms: () => [
        { blockTokens: 8, salted: true },
        { blockTokens: 16, salted: false },
      ],
      adapterOf: (model) => (model === 'm' ? undefined : model),
      clock,
    },
  )
  return { tokens, asked, clock }
}

function prompt(
  messages: readonly Message[],
  more: { tools?: string; salt?: string; model?: string } = {},
): AskedPrompt {
  const texts = messages.map((each) => JSON.stringify(each))
  // As segments are: tools first, each name covering all in front.
  const front = more.tools === undefined ? [] : [more.tools]
  const hashes = [...front, ...texts].map((_, i, all) => all.slice(0, i + 1).join('|'))
  return {
    model: more.model ?? 'm',
    chat: {
      count: texts.length,
      message: (i) => texts[i] as string,
      role: (i) => (messages[i] as Message).role,
      tools: more.tools,
      values: undefined,
    },
    segments: { hashes, tokens: hashes.map(() => 0), head: front.length },
    salt: more.salt,
  }
}

const say = (role: string, content: unknown): Message => ({ role, content })
const open = { tools: undefined, values: undefined, isOpen: true } as const
const first = [say('system', 'You are brief.'), say('user', 'What is the time, and who asks?')]
const second = [...first, say('assistant', 'Noon, and I do.'), say('user', 'Thank you very much.')]

/** As of the whole prompt. */
function expected(messages: readonly Message[], more: { tools?: string; salt?: string } = {}): FoundBlocks {
  const texts = messages.map((each) => JSON.stringify(each))
  const ids = idsOf(render({ model: 'm', messages: texts, tools: more.tools, values: undefined, isOpen: true }))
  const blocks: PromptBlocks[] = [
    { blockTokens: 8, salted: true, keys: promptKeys(ids, { blockTokens: 8, salt: more.salt }) },
    { blockTokens: 16, salted: false, keys: promptKeys(ids, { blockTokens: 16 }) },
  ]
  return { blocks, promptTokens: ids.length }
}

describe('a prompt', () => {
  test('has the blocks of its whole text, salted and not', async () => {
    const { tokens } = house()
    const more = { tools: '[{"type":"function"}]', salt: 'tenant' }
    expect(await tokens.blocksOf(prompt(first, more))).toEqual(expected(first, more))
  })

  test('has blocks of its own for an adapter, which stay apart from those of the model', async () => {
    const { tokens } = house()
    const blocksOf = async (model: string, salt?: string) =>
      (await tokens.blocksOf(prompt(first, { model, ...(salt !== undefined && { salt }) }))) as FoundBlocks
    const ids = idsOf(render({ model: 'm', messages: first.map((each) => JSON.stringify(each)), ...open }))
    for (const model of ['m', 'sql', 'm', 'sql', 'poem']) {
      const adapter = model === 'm' ? undefined : model
      const [eights, sixteens] = (await blocksOf(model, 'tenant')).blocks
      expect(eights?.keys).toEqual(promptKeys(ids, { blockTokens: 8, adapter, salt: 'tenant' }))
      expect(sixteens?.keys).toEqual(promptKeys(ids, { blockTokens: 16, adapter }))
    }
  })

  test('is tokenized where it is new, and gives what the whole would', async () => {
    const { tokens, asked } = house()
    const tools = '[{"type":"function"}]'
    await tokens.blocksOf(prompt(first, { tools }))
    asked.length = 0
    expect(await tokens.blocksOf(prompt(second, { tools }))).toEqual(expected(second, { tools }))
    expect(asked.map(({ messages }) => messages.length)).toEqual([3])
    expect(asked.some(({ tools: sent }) => sent !== undefined)).toBe(false)
    const third = [...second, say('assistant', ''), say('tool', '12:01'), say('tool', '12:02')]
    expect(await tokens.blocksOf(prompt(third, { tools }))).toEqual(expected(third, { tools }))
  })

  test('is known at once when it comes again, and so is a branch of it', async () => {
    const { tokens, asked } = house()
    await tokens.blocksOf(prompt(first))
    await tokens.blocksOf(prompt(second))
    asked.length = 0
    expect(tokens.blocksOf(prompt(first))).toEqual(expected(first))
    expect(tokens.blocksOf(prompt(second))).toEqual(expected(second))
    const branch = [...first, say('assistant', 'Midnight.'), say('user', 'Good night.')]
    expect(await tokens.blocksOf(prompt(branch))).toEqual(expected(branch))
    expect(asked.length).toBe(1)
  })

  test('of two requests at once is tokenized once', async () => {
    const { tokens, asked } = house()
    const both = await Promise.all([tokens.blocksOf(prompt(first)), tokens.blocksOf(prompt(first))])
    expect(both).toEqual([expected(first), expected(first)])
    // The whole, and a stand-in without and with the header of an answer.
    expect(asked.length).toBe(3)
  })

  test('that takes too long goes by its known front, and is known the next time', async () => {
    const waiting: (() => void)[] = []
    let isSlow = false
    const { tokens, clock } = house({
      patienceMs: 20,
      tokenize: async (chat) => {
        if (isSlow) await new Promise<void>((resolve) => waiting.push(resolve))
        return idsOf(render(chat))
      },
    })
    await tokens.blocksOf(prompt(first))
    isSlow = true
    const late = tokens.blocksOf(prompt(second)) as Promise<FoundBlocks>
    clock.advance(20)
    const { blocks, promptTokens } = await late
    expect(promptTokens).toBeUndefined()
    const front = expected(second).blocks[0]?.keys as Uint32Array
    expect(blocks[0]?.keys.length).toBeGreaterThan(4)
    expect(front.subarray(0, blocks[0]?.keys.length)).toEqual(blocks[0]?.keys)
    isSlow = false
    for (const resolve of waiting) resolve()
    await new Promise((resolve) => setImmediate(resolve))
    expect(tokens.blocksOf(prompt(second))).toEqual(expected(second))
  })

  test('that nobody can tokenize has none, and with images it is not tried', async () => {
    const { tokens, asked } = house({ tokenize: async () => undefined })
    expect(await tokens.blocksOf(prompt(first))).toBeUndefined()
    asked.length = 0
    const image = [say('user', [{ type: 'image_url', image_url: { url: 'http://127.0.0.1/x.png' } }])]
    expect(await tokens.blocksOf(prompt(image))).toBeUndefined()
    expect(asked).toEqual([])
  })

  test('is forgotten when there is no room, and tokenized as a whole again', async () => {
    const { tokens, asked } = house({ memoBytes: 2000 })
    for (let i = 0; i < 20; i++) await tokens.blocksOf(prompt([say('user', `Number ${i} of many.`)]))
    asked.length = 0
    expect(await tokens.blocksOf(prompt([say('user', 'Number 0 of many.')]))).toEqual(
      expected([say('user', 'Number 0 of many.')]),
    )
    expect(asked.length).toBe(1)
  })
})

describe('a template whose messages do not stand by themselves', () => {
  /** Numbers its messages. */
  const numbered = (chat: ChatText) =>
    `${chat.messages.map((json, i) => `${i}:${(JSON.parse(json) as Message).content}`).join(' ')}${chat.isOpen ? ' >' : ''}`
  const count = (messages: readonly Message[]) =>
    numbered({
      ...{ model: 'm', tools: undefined, values: undefined, isOpen: true },
      messages: messages.map((each) => JSON.stringify(each)),
    }).length

  test('is found out by what members count: pieces are given up, then the model', async () => {
    const { tokens, asked } = house({ tokenize: async (chat) => idsOf(numbered(chat)) })
    const long = Array.from({ length: 12 }, (_, i) => say(i % 2 === 0 ? 'user' : 'assistant', `message ${i}`))
    await tokens.blocksOf(prompt(long.slice(0, 11)))
    for (let i = 0; i < 4; i++) {
      const turn = [...long, say('user', `turn ${i}`)]
      const found = (await tokens.blocksOf(prompt(turn))) as FoundBlocks
      expect(found.promptTokens).not.toBe(count(turn))
      tokens.counted(prompt(turn), found.promptTokens as number, count(turn))
    }
    asked.length = 0
    const turn = [...long, say('user', 'again')]
    const found = (await tokens.blocksOf(prompt(turn))) as FoundBlocks
    expect(found.promptTokens).toBe(count(turn))
    expect(asked.some(({ messages }) => messages.length === 13)).toBe(true)
    for (let i = 0; i < 4; i++) tokens.counted(prompt(turn), 1, 2)
    expect(tokens.blocksOf(prompt(turn))).toBeUndefined()
  })
})
