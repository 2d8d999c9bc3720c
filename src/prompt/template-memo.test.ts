// What a template remembers of messages changes no text: whatever was rendered before, with whatever options, a chat renders
// as it does to a template that remembers nothing. On builds that are hard to remember, and on all real templates at hand.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { RefrainError } from '../core/errors.js'
import type { ChatMessage, ToolDefinition } from '../core/request.js'
import { realTemplates } from '../testing/real-templates.js'
import type { ChatTemplate, RenderOptions } from './contract.js'
import { compileTemplate, SharedDict, type Value } from './jinja/index.js'
import { planLoops } from './jinja/loop-plan.js'
import { parseTemplate } from './jinja/nodes.js'
import { createTemplate } from './template.js'

/** What a body can depend on beside its message, and how; each is one trap. */
const BUILDS: Readonly<Record<string, string>> = {
  'the place in the loop':
    '{% for m in messages %}{{ loop.index }}{{ m.content }}{% if not loop.first %}+{% endif %}{% if loop.last %}!{% endif %}{{ loop.revindex0 % 2 }}{% endfor %}',
  neighbours:
    "{% for m in messages %}{% if loop.first or messages[loop.index0 - 1].role != m.role %}<{{ m.role }}>{% endif %}{{ m.content }}{% if not loop.last and loop.nextitem.role == 'user' %}>{% endif %}{% endfor %}",
  'a namespace that it also sets':
    "{% set ns = namespace(count=0, seen=false) %}{% for m in messages %}{% if ns.count > 2 %}many{% endif %}{% if m.role == 'user' %}{% set ns.count = ns.count + 1 %}{% endif %}{% if ns.count == 2 and not ns.seen %}{% set ns.seen = true %}second{% endif %}{{ m.content }}{% endfor %}{{ ns.count }}",
  'a sum whose comparison stays the same':
    '{% set ns = namespace(n=base or 0) %}{% for m in messages %}{% if ns.n > 100 %}x{% endif %}{% set ns.n = ns.n + m.content | length %}{% if ns.n > 9 %}y{% endif %}{{ m.content }}{% endfor %}',
  'a limit that a sum comes to':
    '{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = m.content | length %}{% if ns.n > (limit or 9) %}x{% endif %}{{ m.content }}{% set ns.n = 0 %}{% endfor %}',
  'a namespace by another name, and by a text':
    "{% set a = namespace(x=0) %}{% set b = a %}{% for m in messages %}{{ b.x }}{{ b['x'] }}{% set a.x = a.x + 1 %}{{ m.content }}{% endfor %}",
  'an outer name that it shadows later':
    "{% set word = messages[0].content %}{% for m in messages %}{{ word }}{% if m.role == 'user' %}{% set word = m.content %}{% endif %}{{ word }}{% endfor %}",
  'macros that read outer names':
    "{% set mood = messages | length %}{% macro show(x, mark='!') %}{{ x }}{{ mark }}{% if mood > 3 %}{{ mood }}{% endif %}{% endmacro %}{% for m in messages %}{{ show(m.content) }}{{ show(m.role, mark='?') }}{% endfor %}",
  'a macro that sets a namespace':
    '{% set ns = namespace(n=0) %}{% macro next() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}{% for m in messages %}{{ next() }}{{ m.content }}{% endfor %}',
  'a macro with the name of the message':
    '{% set m = messages[0] %}{% macro show() %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ show() }}{{ m.content }}{% endfor %}',
  'an early end':
    "{% for m in messages %}{% if m.content | length > 9 %}{% break %}{% endif %}{{ m.content }}{% if m.role == 'assistant' %}{% continue %}{% endif %}.{% endfor %}",
  lists:
    '{% set all = [] %}{% for m in messages %}{% set _ = all.append(m.role) %}{{ all | length }}{{ m.content }}{% endfor %}',
  options:
    "{% for m in messages %}{{ m.content }}{% if tools and loop.last %}{{ tools | length }}{% endif %}{% if enable_thinking is defined and enable_thinking %}T{% endif %}{{ strftime_now('%Y') }}{% if add_generation_prompt %}:{% endif %}{% endfor %}",
  'what it is told to raise':
    "{% for m in messages %}{% if loop.index0 > 4 and m.role == 'system' %}{{ raise_exception('late') }}{% endif %}{{ m.content }}{% endfor %}",
  'inner loops and calls':
    '{% for m in messages %}{{ m.role }}{% for c in m.tool_calls %}{{ loop.index }}{{ c.function.name }}{{ c.function.arguments | tojson }}{% if not loop.last %},{% endif %}{% else %}none{% endfor %}{{ m.content }}{% endfor %}',
  'a message that it changes':
    "{% for m in messages %}{% set _ = m.update(content='changed ' ~ m.content) %}{{ m.content }}{% endfor %}",
  'a filtered block':
    '{% for m in messages %}{% filter upper %}{{ m.content }}{{ loop.index if tools }}{% endfilter %}{% endfor %}',
  'text gathered in a namespace':
    "{% set ns = namespace(out='') %}{% for m in messages %}{% set ns.out = ns.out ~ m.content %}{% endfor %}{{ ns.out }}",
  'arguments that spread':
    '{% macro f(a, b=0) %}{{ a }}{{ b }}{% endmacro %}{% for m in messages %}{{ f(*[m.content, loop.index0 % 2]) }}{{ f(m.role, **{"b": loop.first}) }}{% endfor %}',
}

const TOOL: ToolDefinition = {
  name: 'look',
  json: '{"type":"function","function":{"name":"look","description":"Looks it up","parameters":{"type":"object","properties":{"city":{"type":"string","description":"Where"}}}}}',
}

const step = fc.oneof(
  fc.constantFrom<ChatMessage[]>(
    [{ role: 'user', content: 'ask' }],
    [{ role: 'user', content: 'another question' }],
    [
      { role: 'user', content: 'ask' },
      { role: 'assistant', content: 'answer' },
    ],
    [
      { role: 'user', content: 'x' },
      { role: 'assistant', content: 'a long answer', reasoning: 'why' },
    ],
    [
      { role: 'assistant', content: '<think>\nhm\n</think>\n\nso' },
      { role: 'user', content: 'ask' },
    ],
    [
      { role: 'assistant', content: 'late' },
      { role: 'system', content: 'note' },
      { role: 'user', content: 'go' },
    ],
  ),
  fc.constantFrom('aaaaaaaa1', 'aaaaaaaa2').map((id): ChatMessage[] => [
    { role: 'assistant', content: '', toolCalls: [{ id, name: 'look', arguments: '{"city": "Rome"}' }] },
    { role: 'tool', content: 'sunny', name: 'look', toolCallId: id },
  ]),
)

const request = fc.record({
  system: fc.constantFrom('', 'be brief'),
  keep: fc.nat({ max: 12 }),
  steps: fc.array(step, { maxLength: 3 }),
  tools: fc.boolean(),
  addGenerationPrompt: fc.boolean(),
  thinking: fc.constantFrom(undefined, { enabled: true }, { enabled: false }),
  year: fc.constantFrom(2024, 2025),
  values: fc.constantFrom(undefined, '{"base": 200}', '{"limit": 4}'),
})
type Request = typeof request extends fc.Arbitrary<infer T> ? T : never

/** Each request goes on from the one before, or from where it was earlier. */
function chatsOf(requests: readonly Request[]): { messages: ChatMessage[]; options: RenderOptions }[] {
  let history: ChatMessage[] = [{ role: 'user', content: 'start' }]
  return requests.map(({ system, keep, steps, tools, addGenerationPrompt, thinking, year, values }) => {
    history = [...history.slice(0, 1 + keep), ...steps.flat()]
    // As new objects, as a body brings them.
    const messages = structuredClone(
      system === '' ? history : [{ role: 'system' as const, content: system }, ...history],
    )
    const date = new Date(year, 0, 1)
    const more = { ...(thinking && { thinking }), ...(values !== undefined && { values }) }
    return { messages, options: { tools: tools ? [TOOL] : [], addGenerationPrompt, date, ...more } }
  })
}

const made = (source: string, memoBytes: number): ChatTemplate =>
  createTemplate(source, {
    ...{ bosToken: '<s>', eosToken: '</s>', dateNow: () => new Date(0), toolFallback: 'hermes', memoBytes },
  })

function outcome(template: ChatTemplate, { messages, options }: ReturnType<typeof chatsOf>[number]): object {
  try {
    return template.render(messages, options)
  } catch (error) {
    if (error instanceof RefrainError) return { refused: error.message }
    throw error
  }
}

function property(source: string, runs: number): void {
  const plain = made(source, 0)
  const remembering = made(source, 1_000_000)
  fc.assert(
    fc.property(fc.array(request, { minLength: 1, maxLength: 8 }), (requests) => {
      for (const chat of chatsOf(requests)) expect(outcome(remembering, chat)).toEqual(outcome(plain, chat))
    }),
    { numRuns: runs, seed: 8 },
  )
}

describe('what is remembered of messages', () => {
  test.each(Object.entries(BUILDS))('with %s', (_, source) => {
    property(source, 40)
  })

  test('saves running the body: with the same things around it, a message is looked at once', () => {
    let looks = 0
    class Watched extends SharedDict {
      override get(key: Value): Value {
        looks++
        return super.get(key)
      }
    }
    const items = Array.from({ length: 10 }, (_, i) => new Watched([['content', `message ${i}`]]))
    const rendering = compileTemplate(
      '{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}{% if mood %}{{ mood }}{% endif %}{% endfor %}',
    )
    const render = (count: number, mood: Value): [string, number] => {
      looks = 0
      const text = rendering([
        ['messages', items.slice(0, count)],
        ['mood', mood],
      ])
      return [text.slice(-10), looks]
    }
    expect(render(9, null)).toEqual(['message 8!', 9])
    expect(render(9, null)).toEqual(['message 8!', 0])
    // The one that is no longer the last, and the new one.
    expect(render(10, null)).toEqual(['message 9!', 2])
    expect(render(10, 'x')).toEqual(['essage 9!x', 10])
    expect(render(10, null)).toEqual(['message 9!', 0])
  })
})

const contextsOf = (source: string): string[] =>
  [...planLoops(parseTemplate(source)).values()].flatMap(({ contexts }) =>
    contexts.map(({ node, truth }) => `${truth ? 'whether ' : ''}${node.type}`),
  )

describe('a plan', () => {
  test('names what a body depends on, and no more', () => {
    expect(contextsOf('{% for m in messages %}{{ m.role + m.content | trim }}{% endfor %}')).toEqual([])
    expect(
      contextsOf('{% for m in messages %}{% if tools and loop.first and m.role %}a{% endif %}{% endfor %}'),
    ).toEqual(['whether BinaryExpression'])
    expect(contextsOf('{% for m in messages %}{{ m.role + suffix }}{% endfor %}')).toEqual(['Identifier'])
    expect(contextsOf('{% for m in messages %}{{ m | tojson(indent=width) }}{{ m.x[from:] }}{% endfor %}')).toEqual([
      'Identifier',
      'Identifier',
    ])
  })

  test('is not made for what changes things, or reads them by names that are worked out', () => {
    const bodies = [
      '{% set _ = found.append(m) %}',
      '{% set ns.x = 1 %}{{ ns[m.role] }}',
      "{{ ns | attr('x') }}",
      '{% macro f() %}{% endmacro %}',
      '{% set f = range %}',
    ]
    for (const body of bodies)
      expect(planLoops(parseTemplate(`{% for m in messages %}${body}{% endfor %}`)).size).toBe(0)
  })
})

const templates = realTemplates()
describe.skipIf(templates === undefined)('what real templates remember (need ../shared/tools/get-templates)', () => {
  test.each([...(templates ?? new Map<string, string>())])('%s', (_, source) => {
    property(source, 8)
  })
})
