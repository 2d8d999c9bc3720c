// The structures of all formats as real grammars: what a decoder is held to takes whole calls, and no half ones.

import { afterAll, expect, test } from 'vitest'
import { createGrammars, GRAMMAR_LIMITS } from '../../engine/grammar.js'
import { jsonText } from '../../engine/grammar-json.js'
import { awkwardVocabulary, takes } from '../../testing/grammar-walk.js'
import { seeded } from '../../testing/random.js'
import { sampleStructure } from '../../testing/sample-structure.js'
import type { CallableTool, ToolCallFormat } from './contract.js'
import * as formats from './index.js'

const vocabulary = awkwardVocabulary()
const grammars = createGrammars(vocabulary, { ...GRAMMAR_LIMITS, compileMs: 60_000 })
afterAll(() => grammars.close())

const properties = {
  path: { type: 'string' },
  count: { type: 'integer' },
  mode: { enum: ['fast', 'slow'] },
  names: { type: 'array', items: { type: 'string' } },
  where: { $ref: '#/$defs/place' },
}
const $defs = { place: { type: 'object', properties: { deep: { type: 'boolean' } }, additionalProperties: false } }
const schema = { type: 'object', properties, required: ['path', 'names'], additionalProperties: false, $defs }
const tools: readonly CallableTool[] = [
  { name: 'edit_file', schema: JSON.stringify(schema) },
  { name: 'now', schema: '{"type": "object", "properties": {}, "additionalProperties": false}' },
  { name: 'anything', schema: undefined },
]

test.each(Object.entries(formats).filter(([name]) => name !== 'none'))('%s', async (_, format: ToolCallFormat) => {
  const structure = format.calls(tools, { min: 1, max: 2 })
  const grammar = await grammars.compile({ kind: 'structure', structure })
  for (let seed = 0; seed < 12; seed++) {
    const text = sampleStructure(structure, seeded(seed), jsonText)
    expect({ text, takes: takes(grammar, vocabulary, text) }).toEqual({ text, takes: true })
    for (const cut of [text.slice(0, -1), text.slice(1), `${text} `]) {
      expect({ cut, takes: takes(grammar, vocabulary, cut) }).toEqual({ cut, takes: false })
    }
  }
  const other = sampleStructure(
    format.calls([{ name: 'absent', schema: undefined }], { min: 1, max: 1 }),
    seeded(1),
    jsonText,
  )
  expect(takes(grammar, vocabulary, other)).toBe(false)
})
