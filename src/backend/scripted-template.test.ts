import { describe, expect, test } from 'vitest'
import type { ChatMessage } from '../core/request.js'
import { scriptedTemplate } from './scripted-template.js'

const chatml = () => scriptedTemplate({ template: 'chatml', end: '<end>', specials: [] })
const tool = { name: 'look', json: '{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}' }
const loop: readonly ChatMessage[] = [
  { role: 'system', content: 'Be brief.' },
  { role: 'user', content: 'Look.' },
  {
    role: 'assistant',
    content: 'Yes.',
    reasoning: 'I should look.',
    toolCalls: [{ id: 'c1', name: 'look', arguments: '{"at": 20.0}' }],
  },
  { role: 'tool', content: 'a tree', toolCallId: 'c1' },
]

describe('chatml', () => {
  test('reads as a chat model writes: tools in front, reasoning in tags, Hermes calls, results', () => {
    const { template, end, specials } = chatml()
    const { text } = template.render(loop, { tools: [tool], addGenerationPrompt: true })
    expect(text).toBe(
      `<|im_start|>system\nBe brief.\n\n# Tools\n\n<tools>\n${'{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}'}\n</tools><|im_end|>\n` +
        '<|im_start|>user\nLook.<|im_end|>\n' +
        '<|im_start|>assistant\n<think>\nI should look.\n</think>\n\nYes.\n<tool_call>\n{"name": "look", "arguments": {"at": 20.0}}\n</tool_call><|im_end|>\n' +
        '<|im_start|>user\n<tool_response>\na tree\n</tool_response><|im_end|>\n<|im_start|>assistant\n',
    )
    expect([end, ...specials]).toEqual(['<|im_end|>', '<|im_start|>'])
  })

  test('system messages stay where they are, and a call without text has no line break before it', () => {
    const { template } = chatml()
    const messages: ChatMessage[] = [
      { role: 'user', content: 'a' },
      { role: 'system', content: 'b' },
      { role: 'assistant', content: '', toolCalls: [{ id: 'c', name: 'look', arguments: '{}' }] },
    ]
    expect(template.render(messages, { tools: [], addGenerationPrompt: false }).text).toBe(
      '<|im_start|>user\na<|im_end|>\n<|im_start|>system\nb<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>\n',
    )
  })
})

test('a Jinja source of one own, with its end token', () => {
  const source = '{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}'
  const { template, end } = scriptedTemplate({ template: source, end: '</s>', specials: [] })
  expect(template.render([{ role: 'user', content: 'x' }], { tools: [], addGenerationPrompt: true }).text).toBe(
    `[user]x${end}`,
  )
  expect(() => scriptedTemplate({ template: '{% if %}', end: '</s>', specials: [] })).toThrow(
    expect.objectContaining({ code: 'template_failed' }),
  )
})
