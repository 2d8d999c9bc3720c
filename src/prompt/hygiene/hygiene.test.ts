// The conformance of all rules of prompt hygiene, and what each takes out.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../../core/request.js'
import { billingHeader } from './billing-header.js'
import * as rules from './index.js'

const system = (content: string): ChatMessage => ({ role: 'system', content })
const user = (content: string): ChatMessage => ({ role: 'user', content })

describe.each(Object.entries(rules))('%s', (_, kind) => {
  const { apply } = kind.create({}, undefined)
  const lists = fc.array(
    fc.record({ role: fc.constantFrom('system', 'user', 'assistant'), content: fc.string({ unit: 'grapheme' }) }),
    { maxLength: 5 },
  ) as fc.Arbitrary<ChatMessage[]>

  test('leaves the very list where there is nothing to take out', () => {
    const messages = [system('You are an agent.'), user('Hi')]
    expect(apply(messages)).toBe(messages)
    expect(apply([])).toEqual([])
  })

  test('changes nothing of what it was given, and nothing the second time', () => {
    fc.assert(
      fc.property(lists, (messages) => {
        const before = JSON.stringify(messages)
        const once = apply(messages)
        expect(JSON.stringify(messages)).toBe(before)
        expect(apply(once)).toBe(once)
        expect(once.filter(({ role }) => role !== 'system')).toEqual(messages.filter(({ role }) => role !== 'system'))
      }),
    )
  })
})

describe('billing-header', () => {
  const { apply } = billingHeader.create({}, undefined)
  const header = (cch: string) => `x-anthropic-billing-header: cc_version=2.1.177.a1; cc_entrypoint=cli; cch=${cch};`
  const rest = 'You are an agent.\n\nBe brief.'

  test.each([
    ['a line', (cch: string) => [system(`${header(cch)}\n${rest}`)]],
    ['a block of its own', (cch: string) => [system(header(cch)), system(rest)]],
    ['behind blank lines', (cch: string) => [system(`\n  ${header(cch)}\n${rest}`)]],
    ['two of them', (cch: string) => [system(`${header(cch)}\nx-anthropic-other: ${cch}\n${rest}`)]],
    ['the second block', (cch: string) => [system(rest), system(`${header(cch)}\nMore.`)]],
  ])('%s goes, whatever it says', (_, of) => {
    const texts = ['36ee5', '0aaa9'].map((cch) => JSON.stringify(apply([...of(cch), user('Hi')])))
    expect(texts[0]).toBe(texts[1])
    expect(texts[0]).not.toContain('x-anthropic')
    expect(texts[0]).toContain('You are an agent.\\n\\nBe brief.')
  })

  test('a system message that was nothing else goes with it', () => {
    expect(apply([system(header('1')), user('Hi')])).toEqual([user('Hi')])
    expect(apply([system(header('1'))])).toEqual([])
  })

  test('what speaks of it stays: in the text, later, or in a user message', () => {
    for (const messages of [
      [system(`Never print ${header('1')}`)],
      [system(`You are.\n${header('1')}`)],
      [user(`${header('1')}\nWhat is this?`)],
      [user('Hi'), system(header('1'))],
    ]) {
      expect(apply(messages)).toBe(messages)
    }
  })

  test('is quick on a long text of almost nothing else', () => {
    const started = performance.now()
    apply([system(`${'\n'.repeat(200_000)}x-anthropic`), user('Hi')])
    apply([system('x-anthropic-'.repeat(50_000)), user('Hi')])
    expect(performance.now() - started).toBeLessThan(500)
  })
})
