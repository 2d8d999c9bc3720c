// The catalogue: every named task can be asked in words; what a card says goes before them.

import { describe, expect, test } from 'vitest'
import { QUICK_TASKS } from '../core/quick.js'
import { parseCard } from '../model/card.js'
import { catalogueOf } from './catalogue.js'

describe('a catalogue', () => {
  test('has words for every named task, and names its choices in them', () => {
    const catalogue = catalogueOf()
    expect(Object.keys(catalogue).sort()).toEqual(QUICK_TASKS.filter((task) => task !== 'custom').sort())
    for (const { instruction, choices } of Object.values(catalogue)) {
      expect(instruction.includes('{choices}')).toBe(choices !== undefined)
    }
  })

  test('takes native tokens and other words from a card', () => {
    const { action, query, title } = catalogueOf({
      action: { token: '<a>', at: 'header', choices: ['Search', 'Answer'] },
      query: { token: '<u>', at: 'user', before: '{url}' },
      title: { instruction: 'Name it.', maxTokens: 5 },
    })
    expect(action).toMatchObject({ native: { token: '<a>', at: 'header' }, choices: ['Search', 'Answer'] })
    expect(query.native).toEqual({ token: '<u>', at: 'user', before: '{url}' })
    expect(title).toEqual({ instruction: 'Name it.', maxTokens: 5 })
  })

  test.each([[{ token: '<a>' }], [{ at: 'user' as const }]])('refuses half a native form: %j', (half) => {
    expect(() => catalogueOf({ action: half })).toThrow('token and at go together')
  })
})

describe('a card', () => {
  const card = (quick: unknown) =>
    parseCard(
      JSON.stringify({
        ...{ name: 'm', description: 'a model', license: 'MIT', contextLength: 100, quick },
        sources: [{ kind: 'file', path: 'm.gguf' }],
        formats: { toolCalls: 'none', reasoning: 'none' },
      }),
      'models/m.yaml',
    )

  test('says how tasks are asked', () => {
    const quick = { action: { token: '<a>', at: 'header' } }
    expect(card(quick).quick).toEqual(quick)
  })

  test.each([
    [{ dance: {} }, /quick\.dance: unknown key/],
    [{ action: { at: 'there' } }, /quick\.action\.at: must be one of user, reply, header/],
    [{ action: { choices: ['a'] } }, /quick\.action\.choices/],
  ])('is refused for %j', (quick, message) => {
    expect(() => card(quick)).toThrow(message)
  })
})
