import { describe, expect, test } from 'vitest'
import { call, logOf, result, says, user } from '../../testing/random-log.js'
import type { EventBody } from '../log/event.js'
import { checkSummary, SECTIONS } from './check.js'
import { factsOf, namesIn } from './facts.js'

const facts = (...bodies: EventBody[]) => factsOf(logOf(bodies))
const nothing = facts()

describe('names', () => {
  test.each([
    ['look at src/a/b.ts and ./c, ../d/e or /etc/hosts.', ['src/a/b.ts', './c', '../d/e', '/etc/hosts']],
    ['see https://example.com/a?b=1, please', ['https://example.com/a?b=1']],
    ['user mia_li_3668 has ZFA04Y on HAT069', ['mia_li_3668', 'ZFA04Y', 'HAT069']],
    ['commit 9f8a7b6c fixes #12345 and order 8811223', ['9f8a7b6c', '#12345', '8811223']],
    ['id 123e4567-e89b-12d3-a456-426614174000', ['123e4567-e89b-12d3-a456-426614174000']],
  ])('are found in %j', (text, names) => {
    expect([...namesIn(text)].sort()).toEqual([...names].sort())
  })

  test.each([
    'and/or, 24/7, 100ms, utf-8, 2024-05-06, step-1, 3.14159, no ids here',
    'a / b // c',
    'Bob has 1234 apples',
  ])('are none in %j', (text) => {
    expect(namesIn(text)).toEqual([])
  })

  test('a long text without any takes no time', () => {
    const text = `${'a'.repeat(100_000)}/${'b-'.repeat(50_000)}${'1'.repeat(50_000)}`
    const begun = process.cpuUsage().user
    namesIn(text)
    expect((process.cpuUsage().user - begun) / 1000).toBeLessThan(2000)
  })
})

describe('facts', () => {
  test('of a text with very many names are each told once', () => {
    const text = Array.from({ length: 200_000 }, (_, i) => `id${10_000 + (i % 150_000)}`).join(' ')
    expect(facts(user(text)).names.length).toBe(150_000)
  })

  test('files are those that calls were made with, the five latest', () => {
    const reads = [1, 2, 3, 4, 5, 6, 2].map((i) => call(`c${i}`, JSON.stringify({ file_path: `f${i}.ts` })))
    expect(facts(...reads).files).toEqual(['f2.ts', 'f6.ts', 'f5.ts', 'f4.ts', 'f3.ts'])
  })

  test('results do not count, but where they are stored', () => {
    expect(facts(result('a', 'see src/x/y.ts and ABC-1234')).names).toEqual([])
    const stored: EventBody = {
      kind: 'tool_result',
      callId: 'a',
      content: 'stub',
      spilled: { locator: 'res_1', chars: 9 },
    }
    expect(facts(stored).locators).toEqual(['res_1'])
  })

  test('a task is open until it is ticked off, in words or by a planning tool', () => {
    expect(facts(says('- [ ] one\n- [ ] two\n* [x] three'), says('1. [X] One')).tasks).toEqual(['two'])
    const plan = (...items: [string, string][]) =>
      call('p', JSON.stringify({ todos: items.map(([content, status]) => ({ content, status })) }), 'TodoWrite')
    expect(
      facts(plan(['a', 'pending'], ['b', 'pending']), plan(['a', 'completed'], ['b', 'in_progress'], ['c', 'pending']))
        .tasks,
    ).toEqual(['b', 'c'])
  })

  test('arguments that are no JSON are read as text', () => {
    expect(facts(call('a', '{"path": "src/a.ts", broken')).names).toContain('src/a.ts')
  })
})

describe('a check', () => {
  const forms = [
    SECTIONS.map((section) => `## ${section}\nnone`),
    SECTIONS.map((section) => `**${section}:** none`),
    SECTIONS.map((section) => `${section.toUpperCase()}: none`),
  ]
  test.each(forms.map((form) => form.join('\n')))('takes headings in several forms: %j', (text) => {
    expect(checkSummary(text, nothing, 0)).toEqual({ added: [], problems: [] })
  })

  test('names the section that is missing', () => {
    const text = SECTIONS.filter((section) => section !== 'Errors').map((section) => `# ${section}\nErrors happen`)
    expect(checkSummary(text.join('\n'), nothing, 0).problems).toEqual(["the summary has no section 'Errors'"])
  })

  test('a name inside of a longer one does not count', () => {
    const text = forms[0]!.join('\n')
    const given = facts(user('src/a.ts, id AB-12345'))
    expect([...checkSummary(`${text} lib/src/a.tsx AB-123456`, given, 100).added].sort()).toEqual([
      'AB-12345',
      'src/a.ts',
    ])
    expect(checkSummary(`${text} (src/a.ts) AB-12345.`, given, 100).added).toEqual([])
  })

  test('tasks are compared by their words', () => {
    const text = `${forms[0]!.join('\n')}\n- Write  the TEST!`
    expect(checkSummary(text, facts(says('- [ ] write the test')), 100).added).toEqual([])
  })
})
