// Tokenizers for commands that count: wherever one is, and what is said where there is none.

import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openCounter } from './compose-tokenizer.js'
import { makeConfig } from './config.js'
import { lintCommand } from './lint/command.js'
import { Gguf } from './model/gguf.js'
import { buildTokenizerJson } from './prompt/gguf-tokenizer.js'
import { createTokenizer } from './prompt/tokenizer.js'
import { writeToyModel } from './testing/toy-model.js'

let folder: string
let gguf: string
let json: string
let config: ReturnType<typeof makeConfig>

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-counter-'))
  gguf = join(folder, 'toy.gguf')
  await writeToyModel(gguf, { architecture: 'llama', quantization: 'Q4_1' })
  const file = await Gguf.open(gguf)
  json = buildTokenizerJson(Object.fromEntries(file.metadata))
  await file.close()
  await mkdir(join(folder, 'hub'))
  await writeFile(join(folder, 'hub', 'tokenizer.json'), json)
  await mkdir(join(folder, 'data', 'cards'), { recursive: true })
  const card = { name: 'toy', description: '', license: '', sources: [{ kind: 'file', path: 'toy-weights.gguf' }] }
  const formats = { toolCalls: 'none', reasoning: 'none' }
  await writeFile(join(folder, 'data', 'cards', 'toy.yaml'), JSON.stringify({ ...card, contextLength: 64, formats }))
  config = makeConfig({ flags: { dataDir: join(folder, 'data'), 'model.directory': join(folder, 'weights') } })
})

afterAll(() => rm(folder, { recursive: true }))

const text = 'The quick brown fox, 12 times: <|im_start|> and again. '.repeat(20)

describe('a counter', () => {
  test('is the same from a GGUF file, a folder, a tokenizer.json and a card', async () => {
    await expect(openCounter('toy', config)).rejects.toThrow(
      /^--tokenizer toy: its weights are not here: refrain pull toy/,
    )
    await cp(gguf, join(folder, 'data', 'toy-weights.gguf'))
    const tokenizer = createTokenizer(json, { addBos: false, eosTokenIds: [], memoBytes: 0 })
    const expected = tokenizer.encode(text, { special: 'text', bos: 'none' }).length
    const names = [gguf, join(folder, 'hub'), join(folder, 'hub', 'tokenizer.json'), 'toy']
    const counters = await Promise.all(names.map((name) => openCounter(name, config)))
    expect(counters.map(({ count }) => count(text))).toEqual(names.map(() => expected))
    expect(counters.map(({ name }) => name)).toEqual(['toy.gguf', 'tokenizer.json', 'tokenizer.json', 'toy'])
  })

  test('of what is not there, or is none, is refused in a sentence', async () => {
    await expect(openCounter(join(folder, 'absent.json'), config)).rejects.toThrow(/^--tokenizer: there is no file \//)
    await expect(openCounter('no-such-card', config)).rejects.toThrow(/no-such-card/)
    const broken = join(folder, 'broken.json')
    await writeFile(broken, '{"model":{"type":"Magic"}}')
    await expect(openCounter(broken, config)).rejects.toThrow(/^--tokenizer .*broken\.json: /)
  })

  test('gives lint counts in place of estimates', async () => {
    const log = join(folder, 'log.jsonl')
    const messages = [{ role: 'user', content: text }]
    const more = [...messages, { role: 'assistant', content: text }, { role: 'user', content: 'And?' }]
    await writeFile(log, [messages, more].map((each) => JSON.stringify({ model: 'm', messages: each })).join('\n'))
    const counter = await openCounter(gguf, config)
    const report = JSON.parse(await lintCommand(log, { json: true }, { counter }))
    const [long, short] = [counter.count(text) + 4, counter.count('And?') + 4]
    expect(report).toMatchObject({ tokensAreEstimated: false, tokenizer: 'toy.gguf', promptTokens: 3 * long + short })
    expect(report.hitRate16).toBeCloseTo((long - (long % 16)) / report.promptTokens, 10)
    expect(await lintCommand(log, {}, { counter })).toMatch(
      /^2 requests, [\d,]+ prompt tokens \(counted with toy\.gguf\)/,
    )
    expect(await lintCommand(log, {})).toMatch(/^2 requests, about [\d,]+ prompt tokens \(estimated from bytes\)/)
  })
})
