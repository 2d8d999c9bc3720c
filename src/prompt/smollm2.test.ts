// The default model's template and tokenizer against the reference: every chat's text and ids, and the perplexity text.
// Needs the weights that `refrain pull` stores under ~/.cache/refrain, and ../shared.

import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../core/request.js'
import { Gguf } from '../model/gguf.js'
import { buildTokenizerJson, tokenizerTraits } from './gguf-tokenizer.js'
import { createTemplate } from './template.js'
import { createTokenizer } from './tokenizer.js'

interface Reference {
  readonly chats: readonly {
    messages: ChatMessage[]
    text: string
    token_ids: number[]
    greedy_ids: number[]
    greedy_text: string
  }[]
  readonly perplexity: { readonly text: string; readonly token_ids: number[] }
}

const reference = resolve('../shared/fixtures/smollm2-reference/reference.json')
const store = join(homedir(), '.cache', 'refrain')
const stored = existsSync(store)
  ? readdirSync(store, { recursive: true, encoding: 'utf8' }).find((path) =>
      /smollm2-135m-instruct[^/]*\.gguf$/i.test(path),
    )
  : undefined

async function open() {
  const gguf = await Gguf.open(join(store, stored ?? ''))
  const metadata = Object.fromEntries(gguf.metadata)
  await gguf.close()
  const traits = tokenizerTraits(metadata)
  const tokenizer = createTokenizer(buildTokenizerJson(metadata), { ...traits, memoBytes: 16_000_000 })
  const template = createTemplate(traits.template ?? '', {
    ...traits,
    toolFallback: 'hermes',
    dateNow: () => new Date(0),
  })
  return { traits, tokenizer, template }
}

describe.skipIf(stored === undefined || !existsSync(reference))('SmolLM2 (needs its weights and ../shared)', () => {
  test("the reference's chats and texts", async () => {
    const { chats, perplexity } = JSON.parse(readFileSync(reference, 'utf8')) as Reference
    const { tokenizer, template, traits } = await open()
    expect(traits).toMatchObject({ bosTokenId: 1, addBos: false, eosTokenIds: [2, 0], eosToken: '<|im_end|>' })
    for (const chat of chats) {
      const text = template.render(chat.messages, { tools: [], addGenerationPrompt: true }).text
      expect(text).toBe(chat.text)
      expect([...tokenizer.encode(text, { special: 'parse', bos: 'none' })]).toEqual(chat.token_ids)
      expect(tokenizer.decode(chat.greedy_ids, { special: 'keep' })).toBe(chat.greedy_text)
    }
    expect([...tokenizer.encode(perplexity.text, { special: 'text', bos: 'none' })]).toEqual(perplexity.token_ids)
  })

  test('tools are text that the template renders', async () => {
    const { template } = await open()
    const tools = [{ name: 'look', json: '{"type":"function","function":{"name":"look"}}' }]
    const text = template.render([{ role: 'user', content: 'hi' }], { tools, addGenerationPrompt: true }).text
    expect(text).toMatch(
      /^<\|im_start\|>system\n# Tools.*<\|im_start\|>user\nhi<\|im_end\|>\n<\|im_start\|>assistant\n$/s,
    )
  })
})
