import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { cardNames, loadCard, packageModels, parseCard } from './card.js'
import type { ModelError } from './model-error.js'

const good = {
  name: 'm',
  description: 'a model',
  license: 'MIT',
  sources: [{ kind: 'url', url: 'https://example.org/m.gguf' }] as unknown[],
  sha256: 'ab'.repeat(32),
  bytes: 10,
  contextLength: 100,
  formats: { toolCalls: 'none', reasoning: 'none' } as Record<string, unknown>,
}

function faults(change: Record<string, unknown>): readonly string[] {
  try {
    parseCard(JSON.stringify({ ...good, ...change }), 'models/m.yaml')
  } catch (error) {
    return (error as ModelError).details
  }
  return []
}

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-cards-'))
})
afterAll(async () => {
  await rm(folder, { recursive: true })
})

describe('cards of the package', () => {
  test('every one parses, and all but unpinned ones say their size', async () => {
    const names = await cardNames()
    expect(names).toContain('smollm2-135m-instruct')
    for (const name of names) {
      const card = await loadCard(name)
      expect(card.name).toBe(name)
      expect(card.sha256 === undefined).toBe(card.bytes === undefined)
    }
  })

  test('the default model is pinned and reachable in three ways', async () => {
    const card = await loadCard('smollm2-135m-instruct')
    expect(card.sources.map(({ kind }) => kind)).toEqual(['file', 'pip', 'url'])
    expect(card).toMatchObject({ bytes: 98362432, contextLength: 8192, toolFallback: 'hermes' })
    expect(card.sha256).toMatch(/^[0-9a-f]{64}$/)
  })
})

describe('lookup', () => {
  test('an unknown name lists the known ones; a path is no name', async () => {
    await expect(loadCard('gpt-9')).rejects.toThrow(/no model is called 'gpt-9'; known are .*smollm2-135m-instruct/)
    await expect(loadCard('../models/smollm2-135m-instruct')).rejects.toThrow(/no model is called/)
    await expect(loadCard('x', [join(folder, 'absent')])).rejects.toThrow(/known are none/)
  })

  test("the operator's folder wins over the package's", async () => {
    const own = { ...good, name: 'smollm2-135m-instruct', contextLength: 512 }
    await writeFile(join(folder, 'smollm2-135m-instruct.yaml'), JSON.stringify(own))
    const card = await loadCard('smollm2-135m-instruct', [folder, packageModels()])
    expect(card.contextLength).toBe(512)
    expect(await cardNames([folder, packageModels()])).toEqual(await cardNames())
  })
})

describe('what is refused', () => {
  test('a sound card has no faults, with or without a digest', () => {
    expect(faults({})).toEqual([])
    expect(faults({ sha256: undefined, bytes: undefined })).toEqual([])
  })

  test('unknown keys, with their path', () => {
    expect(faults({ sha265: 'x' })).toEqual(['sha265: unknown key'])
    expect(faults({ formats: { ...good.formats, tools: 'x' } })).toEqual(['formats.tools: unknown key'])
    const source = { kind: 'pip', package: 'p', version: '1', member: 'm', wheel: 'w' }
    expect(faults({ sources: [good.sources[0], source] })).toEqual(['sources[1].wheel: unknown key'])
  })

  test('missing and wrong values, with their path', () => {
    expect(faults({ license: undefined })).toEqual(['license: is missing'])
    expect(faults({ contextLength: 0 })).toEqual(['contextLength: must be >= 1'])
    expect(faults({ sha256: 'ABC' })[0]).toMatch(/^sha256: must match/)
    expect(faults({ formats: { toolCalls: 'No Such', reasoning: 'none' } })[0]).toMatch(
      /^formats.toolCalls: must match/,
    )
    expect(faults({ sources: [] })[0]).toMatch(/^sources: /)
    expect(faults({ sources: [{ kind: 'torrent' }] })).toEqual(['sources[0].kind: must be one of file, pip, url'])
    expect(faults({ sources: [{ kind: 'url', url: 'ftp://x' }] })[0]).toMatch(/^sources\[0\].url: must match/)
    expect(faults({ sources: [{ kind: 'pip', package: '--index-url', version: '1', member: 'm' }] })[0]).toMatch(
      /^sources\[0\].package: must match/,
    )
  })

  test('what is no card at all', () => {
    expect(() => parseCard('a: [', 'models/m.yaml')).toThrow(/models\/m.yaml: it is not YAML/)
    expect(() => parseCard('just text', 'models/m.yaml')).toThrow(/the card: must be object/)
    expect(() => parseCard(JSON.stringify(good), 'models/other.yaml')).toThrow(/name is 'm', but the file is called/)
  })
})
