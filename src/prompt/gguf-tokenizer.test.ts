// Real vocabularies: the texts and expected ids that lie beside llama.cpp's vocabulary-only GGUFs, which
// ../shared/tools/get-templates puts under ~/.cache/refrain-peers. Each family has to give every id, or be refused by name.

import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { Gguf } from '../model/gguf.js'
import { TOY_SPECIALS, toyTokenizerMetadata, toyTokens } from '../testing/toy-vocabulary.js'
import { buildTokenizerJson, tokenizerTraits } from './gguf-tokenizer.js'
import { createTokenizer } from './tokenizer.js'

const peers = join(homedir(), '.cache', 'refrain-peers')
const folder = existsSync(peers)
  ? readdirSync(peers)
      .filter((name) => name.startsWith('llama-models-'))
      .map((name) => join(peers, name))
      .find((path) => existsSync(join(path, 'ready')))
  : undefined

async function metadataOf(family: string): Promise<Record<string, unknown>> {
  const gguf = await Gguf.open(join(folder ?? '', `ggml-vocab-${family}.gguf`))
  try {
    return Object.fromEntries(gguf.metadata)
  } finally {
    await gguf.close()
  }
}

/** Texts and their ids; a text that is empty at the very end is the file's own last line break. */
function expectedIds(family: string): { text: string; ids: number[] }[] {
  const path = join(folder ?? '', `ggml-vocab-${family}.gguf`)
  const texts = readFileSync(`${path}.inp`, 'utf8').split('\n__ggml_vocab_test__\n')
  const lines = readFileSync(`${path}.out`, 'utf8').split('\n')
  return texts
    .map((text, i) => ({ text, ids: (lines[i] ?? '').trim().split(' ').filter(Boolean).map(Number) }))
    .filter(({ text }, i) => text !== '' || i < texts.length - 1)
}

const EXACT = [
  'command-r',
  'deepseek-coder',
  'deepseek-llm',
  'falcon',
  'gpt-2',
  'llama-bpe',
  'llama-spm',
  'mpt',
  'phi-3',
  'qwen2',
  'qwen35',
  'refact',
  'starcoder',
]
const REFUSED: readonly (readonly [string, RegExp])[] = [
  ['aquila', /names no pre-tokenizer/],
  ['gpt-neox', /names no pre-tokenizer/],
  ['bert-bge', /model 'bert' is not supported/],
  ['nomic-bert-moe', /model 't5' is not supported/],
  ['gemma-4', /model 'gemma4' is not supported/],
]

describe.skipIf(folder === undefined)('real vocabularies (need ../shared/tools/get-templates)', () => {
  test.each(EXACT)('%s gives every expected id', async (family) => {
    const json = buildTokenizerJson(await metadataOf(family))
    const tokenizer = createTokenizer(json, { addBos: false, eosTokenIds: [], memoBytes: 0 })
    const samples = expectedIds(family)
    expect(samples.length).toBeGreaterThan(40)
    for (const { text, ids } of samples) {
      expect([...tokenizer.encode(text, { special: 'parse', bos: 'none' })], JSON.stringify(text)).toEqual(ids)
    }
  })

  test.each(REFUSED)('%s is refused by name', async (family, sentence) => {
    const metadata = await metadataOf(family)
    expect(() => buildTokenizerJson(metadata)).toThrow(sentence)
  })

  test('traits of files that say little', async () => {
    expect(tokenizerTraits(await metadataOf('llama-bpe'))).toMatchObject({
      bosTokenId: 128000,
      addBos: true,
      bosToken: '<|begin_of_text|>',
      eosToken: '<|end_of_text|>',
      eosTokenIds: [128001, 128009],
    })
    expect(tokenizerTraits(await metadataOf('qwen2'))).toMatchObject({ addBos: false, eosTokenIds: [151643, 151645] })
  })
})

/** As a GGUF reader gives it. */
function toyMetadata(pre: string): Record<string, unknown> {
  const types = toyTokens().map((_, id) => (id < TOY_SPECIALS.length ? 3 : 1))
  return { ...toyTokenizerMetadata(pre), 'tokenizer.ggml.token_type': types }
}

describe('toy vocabularies', () => {
  test('an unknown pre-tokenizer is refused with the list of known ones', () => {
    expect(() => buildTokenizerJson(toyMetadata('no-such'))).toThrow(/'no-such' is not supported; known are .*qwen2/)
    expect(() => buildTokenizerJson(toyMetadata('toString'))).toThrow(/'toString' is not supported/)
  })

  test('two tokens with one spelling are refused', () => {
    const metadata = { ...toyMetadata('gpt-2'), 'tokenizer.ggml.tokens': ['a', 'b', 'a'] }
    expect(() => buildTokenizerJson(metadata)).toThrow("tokens 0 and 2 have the same spelling 'a'")
  })

  test('what is missing is named', () => {
    for (const key of ['tokenizer.ggml.tokens', 'tokenizer.ggml.merges']) {
      expect(() => buildTokenizerJson({ ...toyMetadata('gpt-2'), [key]: undefined })).toThrow(key)
    }
  })

  test('a list that is none is named', () => {
    const metadata = { ...toyMetadata('gpt-2'), 'tokenizer.ggml.token_type': 3 }
    expect(() => buildTokenizerJson(metadata)).toThrow('tokenizer.ggml.token_type is not a list')
  })

  test('the same metadata gives the same text', () => {
    expect(buildTokenizerJson(toyMetadata('smollm'))).toBe(buildTokenizerJson(toyMetadata('smollm')))
  })
})
