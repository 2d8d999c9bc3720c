// Cards and the kinds that they name: every card of the package can be opened, and an unknown name is the operator's fault,
// said before anything is pulled.

import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { findWeights, formatsOf } from './compose-embedded.js'
import { ConfigError } from './config.js'
import { cardNames, loadCard } from './model/card.js'

let dataDir: string
beforeAll(async () => {
  dataDir = await mkdtemp(join(tmpdir(), 'refrain-formats-'))
})
afterAll(async () => {
  await rm(dataDir, { recursive: true })
})

test('the formats that the cards of the package name are there', async () => {
  for (const name of await cardNames()) expect(formatsOf((await loadCard(name)).formats).specials).toBeDefined()
})

test('special tokens of calls and of reasoning show up, each once', () => {
  const { specials } = formatsOf({ toolCalls: 'harmony', reasoning: 'harmony' })
  expect(specials).toContain('<|call|>')
  expect(new Set(specials).size).toBe(specials.length)
})

test('an unknown format is refused with the known ones', async () => {
  await mkdir(join(dataDir, 'cards'))
  const card = { name: 'm', description: '', license: '', sources: [{ kind: 'file', path: 'absent.gguf' }] }
  const formats = { toolCalls: 'telegraph', reasoning: 'none' }
  await writeFile(join(dataDir, 'cards', 'm.yaml'), JSON.stringify({ ...card, contextLength: 64, formats }))
  const opening = findWeights({ model: { name: 'm', directory: dataDir, aliases: {} }, dataDir } as never)
  await expect(opening).rejects.toThrow(ConfigError)
  await expect(opening).rejects.toThrow(
    /^the card of 'm': formats.toolCalls: unknown kind 'telegraph'; known are deepseek-v3, .*hermes, .*seed$/,
  )
})
