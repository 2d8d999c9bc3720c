// Long new text is tokenized by the thread, with the ids that would have been worked out in place; whatever happens to the
// thread, its requests get their ids. The worker is built from the sources, as dist/ may be older.

import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { build } from 'vite'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { TOY_SPECIALS, toyTokenizerMetadata, toyTokens } from '../testing/toy-vocabulary.js'
import type { Tokenizer } from './contract.js'
import { buildTokenizerJson } from './gguf-tokenizer.js'
import { createTokenizer, type TokenizerOptions } from './tokenizer.js'
import { TokenizerThread } from './tokenizer-thread.js'

const PARSED = { special: 'parse', bos: 'none' } as const

let folder: string
let workerUrl: URL
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-tokenizer-'))
  await build({
    ...{ configFile: false, logLevel: 'silent', root: fileURLToPath(new URL('../..', import.meta.url)) },
    build: {
      ...{ ssr: true, outDir: folder, emptyOutDir: true, target: 'node20' },
      rollupOptions: {
        input: fileURLToPath(new URL('./tokenizer-worker.ts', import.meta.url)),
        output: { entryFileNames: 'tokenizer-worker.mjs' },
      },
    },
    ssr: { noExternal: true },
  })
  workerUrl = pathToFileURL(join(folder, 'tokenizer-worker.mjs'))
})
afterAll(() => rm(folder, { recursive: true, force: true }))

const types = toyTokens().map((_, id) => (id < TOY_SPECIALS.length ? 3 : 1))
const json = buildTokenizerJson({ ...toyTokenizerMetadata('gpt-2'), 'tokenizer.ggml.token_type': types })
const made = (more: Partial<TokenizerOptions> = {}): Tokenizer =>
  createTokenizer(json, {
    ...{ bosTokenId: 1, addBos: true, eosTokenIds: [2], memoBytes: 10_000_000, threadUnits: 1000, ...more },
  })
const chat = (turns: number, from = 0): string =>
  Array.from(
    { length: turns },
    (_, i) => `<|im_start|>user\n${`on the ${from + i} and so on `.repeat(20)}<|im_end|>\n`,
  ).join('')

const plain = made()

test('short text comes at once, long new text by the thread, and at once when it is known', async () => {
  const tokenizer = made({ workerUrl })
  const short = tokenizer.encodeAsync?.(chat(2), PARSED)
  expect(short).toBeInstanceOf(Int32Array)
  const long = tokenizer.encodeAsync?.(chat(40), PARSED)
  expect(long).toBeInstanceOf(Promise)
  expect(await long).toEqual(plain.encode(chat(40), PARSED))
  const grown = tokenizer.encodeAsync?.(chat(42), PARSED)
  expect(grown).toBeInstanceOf(Int32Array)
  expect(grown).toEqual(plain.encode(chat(42), PARSED))
  await tokenizer.close?.()
})

test('many at once each get their own', async () => {
  const tokenizer = made({ workerUrl })
  const texts = Array.from({ length: 8 }, (_, i) => chat(20, i * 7))
  const ids = await Promise.all(texts.map((text) => tokenizer.encodeAsync?.(text, PARSED)))
  expect(ids).toEqual(texts.map((text) => plain.encode(text, PARSED)))
  await tokenizer.close?.()
})

test('many texts of which little is new each, but much together, are prepared', async () => {
  const tokenizer = made({ workerUrl })
  const texts = Array.from({ length: 8 }, (_, i) => chat(1, i * 7))
  expect(tokenizer.prepare?.(texts.slice(0, 2), PARSED)).toBeUndefined()
  await tokenizer.prepare?.(texts, PARSED)
  expect(texts.map((text) => tokenizer.encode(text, PARSED))).toEqual(texts.map((text) => plain.encode(text, PARSED)))
  expect(tokenizer.prepare?.(texts, PARSED)).toBeUndefined()
  await tokenizer.close?.()
})

test('a thread that does not start, dies or is closed costs no ids', async () => {
  const broken = join(folder, 'broken.mjs')
  await writeFile(broken, "throw new Error('no')")
  const mute = join(folder, 'mute.mjs')
  await writeFile(
    mute,
    "import { parentPort } from 'node:worker_threads'\nparentPort.once('message', () => process.exit(0))",
  )
  const missing = pathToFileURL(join(folder, 'missing.mjs'))
  for (const url of [pathToFileURL(broken), pathToFileURL(mute), missing]) {
    const tokenizer = made({ workerUrl: url })
    expect(await tokenizer.encodeAsync?.(chat(40), PARSED)).toEqual(plain.encode(chat(40), PARSED))
    await tokenizer.close?.()
  }
  const tokenizer = made({ workerUrl })
  const running = tokenizer.encodeAsync?.(chat(40), PARSED)
  await tokenizer.close?.()
  expect(await running).toEqual(plain.encode(chat(40), PARSED))
  expect(await tokenizer.encodeAsync?.(chat(40, 50), PARSED)).toEqual(plain.encode(chat(40, 50), PARSED))
})

test('an idle thread ends, and the next work starts another', async () => {
  const thread = new TokenizerThread(workerUrl, json, 1)
  for (const text of ['on the way', 'and so on']) {
    const ids = await thread.encode([text])
    expect(ids?.get(text)).toEqual(plain.encode(text, { special: 'text', bos: 'none' }))
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  await thread.close()
})
