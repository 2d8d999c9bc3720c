// Spans hold what their message wrote and nothing of another's, over random chats, on templates of every build: plain
// loops, results inside of calls, positions instead of items, text gathered in a namespace, and all real ones at hand.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { createScriptedTemplate, scriptedTemplate } from '../backend/scripted-template.js'
import { RefrainError } from '../core/errors.js'
import type { ChatMessage, ToolDefinition } from '../core/request.js'
import { realTemplates } from '../testing/real-templates.js'
import type { ChatTemplate, Rendered } from './contract.js'
import { compileTemplate, strftimeAt } from './jinja/index.js'
import { createTemplate } from './template.js'
import { probeTemplate, type RenderValues } from './template-probe.js'

const TOOL: ToolDefinition = {
  name: 'look',
  json: '{"type":"function","function":{"name":"look","description":"Looks it up","parameters":{"type":"object","properties":{"city":{"type":"string","description":"Where"}},"required":["city"]}}}',
}

const CHATML = `{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

/** Builds of their own, by what is hard about them. */
const BUILDS: Readonly<Record<string, string>> = {
  'an analysis loop in front': `{% for m in messages[::-1] %}{% set last = loop.index0 %}{% endfor %}${CHATML}`,
  'the system message out of the loop':
    "{{ messages[0].content if messages[0].role == 'system' }}{% for m in (messages[1:] if messages[0].role == 'system' else messages) %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}",
  'results inside of the call': `{% for m in messages %}{% set at = loop.index0 %}{% if m.role != 'tool' %}({{ m.role }} {{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% if m.tool_calls %}{% for k in range(at + 1, messages | length) %}{% set r = messages[k] %}{% if r.role != 'tool' %}{% break %}{% endif %}<{{ r.content }}>{% endfor %}{% endif %}){% endif %}{% endfor %}`,
  'positions instead of items':
    '{% for i in range(messages | length) %}{% set m = messages[i] %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}',
  'text gathered in a namespace':
    "{% set ns = namespace(head='HEAD', out='') %}{% for m in messages %}{% set ns.out = ns.out ~ '[' ~ m.role ~ ']' ~ m.content ~ (m.tool_calls | tojson if m.tool_calls else '') %}{% endfor %}{{ ns.head }}{{ ns.out }}{{ '[assistant]' if add_generation_prompt }}",
  'the prompt inside of the loop':
    '{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% if loop.last and add_generation_prompt %}[assistant]{% endif %}{% endfor %}',
}

const made = (source: string, toolFallback?: 'hermes'): ChatTemplate =>
  createTemplate(source, { bosToken: '<s>', eosToken: '</s>', dateNow: () => new Date(0), toolFallback })

/** Chats whose texts are all different: `M<message>.<part>;` in each part. */
const chats = fc
  .record({
    system: fc.boolean(),
    turns: fc.array(
      fc.record({ steps: fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 2 }), late: fc.boolean() }),
      { minLength: 1, maxLength: 4 },
    ),
  })
  .map(({ system, turns }) => {
    const messages: ChatMessage[] = []
    const mark = (part = 'text') => `M${messages.length}.${part};`
    if (system) messages.push({ role: 'system', content: mark() })
    for (const [i, { steps, late }] of turns.entries()) {
      messages.push({ role: 'user', content: mark() })
      for (const count of steps) {
        const ids = Array.from({ length: count }, (_, k) => `${String(messages.length).padStart(3, 'c')}abcde${k}`)
        messages.push({
          role: 'assistant',
          content: '',
          toolCalls: ids.map((id, k) => ({ id, name: 'look', arguments: `{"city":"${mark(`call${k}`)}"}` })),
        })
        for (const toolCallId of ids) messages.push({ role: 'tool', content: mark(), name: 'look', toolCallId })
      }
      if (i === turns.length - 1) break
      messages.push({ role: 'assistant', content: mark() })
      if (late) messages.push({ role: 'system', content: mark() })
    }
    return messages
  })

const options = { tools: [TOOL], addGenerationPrompt: true } as const

/** Undefined: the template refuses this chat, and says so itself. */
function rendered(template: ChatTemplate, messages: readonly ChatMessage[]): Rendered | undefined {
  try {
    return template.render(messages, options)
  } catch (error) {
    if (error instanceof RefrainError) return undefined
    throw error
  }
}

/** The messages that the marks in `text` are of. */
const marksIn = (text: string): number[] => [...text.matchAll(/M(\d+)\.\w+;/g)].map(([, message]) => Number(message))

function check({ text, spans, tail }: Rendered, messages: readonly ChatMessage[]): void {
  let end = 0
  for (const span of spans) {
    expect(span.start).toBeGreaterThanOrEqual(end)
    expect(span.end).toBeGreaterThan(span.start)
    end = span.end
  }
  expect(tail).toBeGreaterThanOrEqual(end)
  expect(new Set(spans.map(({ message }) => message)).size).toBe(spans.length)
  expect(marksIn(text.slice(tail))).toEqual([])
  for (const [i, message] of messages.entries()) {
    if (message.role !== 'assistant') continue
    const span = spans.find((each) => each.message === i)
    expect(span, `assistant message ${i} of ${text}`).toBeDefined()
    const marks = new Set(marksIn(text.slice(span!.start, span!.end)))
    expect([...marks], `assistant message ${i} in ${text.slice(span!.start, span!.end)}`).toEqual([i])
    const count = marksIn(text).filter((each) => each === i).length
    expect(marksIn(text.slice(span!.start, span!.end))).toHaveLength(count)
  }
}

function property(template: ChatTemplate, runs: number): void {
  let shown = 0
  fc.assert(
    fc.property(chats, (messages) => {
      const result = rendered(template, messages)
      if (result === undefined) return
      shown++
      check(result, messages)
    }),
    { numRuns: runs, seed: 4 },
  )
  expect(shown).toBeGreaterThan(0)
}

describe('spans', () => {
  test.each(Object.entries(BUILDS))('of %s', (_, source) => {
    property(made(`{{ tools | tojson if tools }}${source}`), 60)
  })

  test('of ChatML with calls, and with the fallback for tools', () => {
    property(made(`{{ tools | tojson if tools }}${CHATML}`), 60)
    property(made(CHATML.replace(/\{% for c in.*?endfor %\}/, ''), 'hermes'), 60)
  })

  test("of the scripted backend's templates", () => {
    property(createScriptedTemplate(), 60)
    property(scriptedTemplate({ template: 'chatml', end: '', specials: [] }).template, 60)
  })

  test('results that become one message belong to the first', () => {
    const messages: ChatMessage[] = [
      { role: 'user', content: 'u' },
      { role: 'assistant', content: '', toolCalls: ['a', 'b'].map((id) => ({ id, name: 'look', arguments: '{}' })) },
      { role: 'tool', content: 'one', toolCallId: 'a' },
      { role: 'tool', content: 'two', toolCallId: 'b' },
      { role: 'user', content: 'v' },
    ]
    const plain = CHATML.replace(/\{% for c in.*?endfor %\}/, '')
    const { text, spans } = made(plain, 'hermes').render(messages, { ...options, tools: [] })
    expect(spans.map(({ message }) => message)).toEqual([0, 1, 2, 4])
    expect(text.slice(spans[2]!.start, spans[2]!.end)).toMatch(/^<\|im_start\|>user\n.*one.*two.*<\|im_end\|>\n$/s)
  })

  test('the tail is the generation prompt, also where the last iteration writes it', () => {
    for (const source of [CHATML, BUILDS['the prompt inside of the loop']!]) {
      const messages: ChatMessage[] = [{ role: 'user', content: 'u' }]
      const { text, tail, spans } = made(source).render(messages, { tools: [], addGenerationPrompt: true })
      const bare = made(source).render(messages, { tools: [], addGenerationPrompt: false })
      expect(text.slice(0, tail)).toBe(bare.text)
      expect(bare.tail).toBe(bare.text.length)
      expect(spans).toEqual(bare.spans)
    }
  })
})

const templates = realTemplates()
/** Wants names that nobody gives it, or has no place for the system message of these chats. */
const REFUSE = ['fireworks-ai-llama-3-firefunction-v2']

describe.skipIf(templates === undefined)('spans of real templates (need ../shared/tools/get-templates)', () => {
  const all = [...(templates ?? new Map<string, string>())].filter(([name]) => !REFUSE.includes(name))

  test.each(all)('%s', (_, source) => {
    property(made(source, 'hermes'), 12)
  })

  test('watching changes no text', () => {
    const messages: ChatMessage[] = [
      { role: 'user', content: 'u' },
      { role: 'assistant', content: 'a' },
      { role: 'user', content: 'v' },
    ]
    for (const [name, source] of all) {
      const rendering = compileTemplate(source)
      const names: Parameters<typeof rendering>[0] = [
        ['documents', null],
        ['bos_token', '<s>'],
        ['eos_token', '</s>'],
        ['strftime_now', strftimeAt(new Date(0))],
      ]
      const render: RenderValues = (values, { tools, prompt }) =>
        rendering([...names, ['messages', values], ['tools', tools], ['add_generation_prompt', prompt]])
      const values = messages.map(({ role, content }) => new Map(Object.entries({ role, content })))
      const { noTools } = probeTemplate(render)
      const text = made(source).render(messages, { tools: [], addGenerationPrompt: true }).text
      expect(text, name).toBe(render(values, { tools: noTools, prompt: true }))
    }
  })
})
