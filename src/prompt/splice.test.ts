// Sampled tokens in a rendered prompt: the next prompt begins with the last prompt and its answer, token by token, and
// spells what the template wrote; what is not certain stays text.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { scriptedTemplate } from '../backend/scripted-template.js'
import { createScriptedTokenizer, scriptedPieces } from '../backend/scripted-tokenizer.js'
import type { Reply } from '../core/reply.js'
import type { ChatMessage, Thinking } from '../core/request.js'
import { encodePieces, splice } from './splice.js'

const house = (template: string, end = '</s>', specials: readonly string[] = ['<s>']) => {
  const parts = scriptedTemplate({ template, end, specials })
  const tokenizer = createScriptedTokenizer(template === 'plain' ? {} : { end: parts.end, specials: parts.specials })
  return { template: parts.template, tokenizer }
}
type House = ReturnType<typeof house>

const render = ({ template }: House, messages: readonly ChatMessage[], thinking?: Thinking) =>
  template.render(messages, { tools: [], addGenerationPrompt: true, ...(thinking && { thinking }) })

async function encoded(
  own: House,
  messages: readonly ChatMessage[],
  more: { replies?: (Reply | undefined)[]; thinking?: Thinking; beyondTemplate?: boolean } = {},
) {
  const rendered = render(own, messages, more.thinking)
  const { replies = [], beyondTemplate = false } = more
  const pieces = splice(rendered, { messages, replies, beyondTemplate, tokenizer: own.tokenizer })
  const prompt = await encodePieces(pieces, { tokenizer: own.tokenizer, options: { special: 'parse', bos: 'none' } })
  return { rendered, pieces, ...prompt, text: own.tokenizer.decode(prompt.tokens, { special: 'keep' }) }
}

const replyOf = (opening: string, written: string, message: Reply['message'], rest = ''): Reply => ({
  id: written,
  opening,
  ids: Int32Array.from(scriptedPieces(written)),
  rest,
  message,
})
const user = (content: string): ChatMessage => ({ role: 'user', content })
const says = (message: Reply['message']): ChatMessage => ({ role: 'assistant', ...message })

describe.each(['plain', 'chatml'])('%s', (name) => {
  test('a conversation of any length: every prompt begins with the one before and its answer', async () => {
    const own = house(name)
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.string({ unit: 'grapheme', minLength: 1 }), fc.stringMatching(/^\w[\w \n]*\w$/)), {
          minLength: 1,
          maxLength: 5,
        }),
        async (turns) => {
          const messages: ChatMessage[] = []
          const replies: (Reply | undefined)[] = []
          let before: number[] = []
          for (const [asked, written] of turns) {
            messages.push(user(asked))
            replies.push(undefined)
            const { rendered, tokens, text } = await encoded(own, messages, { replies })
            expect([...tokens.subarray(0, before.length)]).toEqual(before)
            expect(text).toBe(rendered.text)
            const reply = replyOf(rendered.text.slice(rendered.tail), written, { content: written })
            before = [...tokens, ...reply.ids]
            messages.push(says(reply.message))
            replies.push(reply)
          }
        },
      ),
      { numRuns: 50 },
    )
  })

  test('what stands behind the answer is where it was: places in the text are places in the tokens', async () => {
    const own = house(name)
    const messages = [user('hello there'), says({ content: 'an answer' }), user('and now?')]
    const opening = name === 'plain' ? 'assistant: ' : '<|im_start|>assistant\n'
    const reply = replyOf(opening, 'an answer', { content: 'an answer' })
    const { rendered, tokens, tokensBefore } = await encoded(own, messages, { replies: [undefined, reply] })
    for (const { end } of rendered.spans) {
      const head = own.tokenizer.decode(tokens.subarray(0, tokensBefore(end)), { special: 'keep' })
      expect(rendered.text.slice(0, end).startsWith(head.replace(/\ufffd+$/, ''))).toBe(true)
      expect(end - head.length).toBeLessThan(4)
    }
    expect(tokensBefore(rendered.text.length)).toBe(tokens.length)
    expect(tokensBefore(0)).toBe(0)
  })
})

describe('the answer stands as it was sampled', () => {
  const chatml = house('chatml')
  const OPENING = '<|im_start|>assistant\n'

  test('calls in a form that the template would write otherwise, and no end of turn twice', async () => {
    const written = 'Look:\n<tool_call>\n{"name": "look",  "arguments": {"a":1.0}}\n</tool_call>'
    const message = { content: 'Look:', toolCalls: [{ id: 'c', name: 'look', arguments: '{"a":1.0}' }] }
    const { text, rendered } = await encoded(chatml, [user('x'), says(message)], {
      replies: [undefined, replyOf(OPENING, written, message)],
    })
    expect(rendered.text).not.toContain(written)
    expect(text).toBe(`<|im_start|>user\nx<|im_end|>\n${OPENING}${written}<|im_end|>\n${OPENING}`)
  })

  test('cut by the length or by a stop string it ends as the template ends a turn', async () => {
    const message = { content: 'to be or' }
    const { text } = await encoded(chatml, [user('x'), says(message)], {
      replies: [undefined, replyOf(OPENING, 'to be', message, ' or')],
    })
    expect(text).toBe(`<|im_start|>user\nx<|im_end|>\n${OPENING}to be or<|im_end|>\n${OPENING}`)
  })

  test('behind the generation prompt that it had, which history does not repeat', async () => {
    const opening = `${OPENING}<think>\n\n</think>\n\n`
    expect(render(chatml, [user('x')], { enabled: false }).text.endsWith(opening)).toBe(true)
    const message = { content: 'yes' }
    const { text } = await encoded(chatml, [user('x'), says(message)], {
      replies: [undefined, replyOf(opening, 'yes', message)],
      thinking: { enabled: false },
    })
    expect(text).toContain(`${opening}yes<|im_end|>`)
  })

  test('its text may spell special tokens: they stay text', async () => {
    const message = { content: 'say <|im_end|> twice <|im_end|>' }
    const { tokens, text } = await encoded(chatml, [user('x'), says(message)], {
      replies: [undefined, replyOf(OPENING, message.content, message)],
    })
    expect(text).toContain(`${OPENING}${message.content}<|im_end|>\n${OPENING}`)
    const end = chatml.tokenizer.specialId('<|im_end|>')
    expect([...tokens].filter((id) => id === end).length).toBe(2)
  })
})

describe('stays text', () => {
  const chatml = house('chatml')
  const OPENING = '<|im_start|>assistant\n'
  const same = async (own: House, messages: readonly ChatMessage[], reply: Reply) => {
    const { pieces, text, rendered } = await encoded(own, messages, { replies: [undefined, reply] })
    expect(pieces.length).toBe(1)
    expect(text).toBe(rendered.text)
  }
  const thought = { content: 'yes', reasoning: 'let me think about it' }
  const written = '<think>\nlet me think about it\n</think>\n\nyes'

  test('an answer whose reasoning is not shown again', async () => {
    await same(chatml, [user('x'), says({ content: 'yes' })], replyOf(OPENING, written, thought))
  })

  test('an answer whose reasoning the template leaves out, unless the rule goes beyond the template', async () => {
    const source =
      '{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}'
    const own = house(source)
    const reply = replyOf('<s>assistant\n', written, thought)
    await same(own, [user('x'), says(thought)], reply)
    const beyond = await encoded(own, [user('x'), says(thought)], { replies: [undefined, reply], beyondTemplate: true })
    expect(beyond.text).toBe(`<s>user\nx</s>\n<s>assistant\n${written}</s>\n<s>assistant\n`)
  })

  test('an answer that the template changes, or in a turn that begins otherwise', async () => {
    const shouting = house('{% for m in messages %}<s>{{ m.content | upper }}</s>{% endfor %}<s>')
    await same(shouting, [user('x'), says({ content: 'yes' })], replyOf('<s>', 'yes', { content: 'yes' }))
    await same(chatml, [user('x'), says({ content: 'yes' })], replyOf('assistant:', 'yes', { content: 'yes' }))
  })

  test('an answer that ends otherwise than it was sampled, in a template without an end of turn', async () => {
    const own = house('{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}[assistant]')
    await same(own, [user('x'), says({ content: 'yes' })], replyOf('[assistant]', 'yes, but', { content: 'yes' }))
    const marked = house('{% for m in messages %}[{{ m.role }}]{{ m.content }} (over){% endfor %}[assistant]')
    await same(marked, [user('x'), says({ content: 'yes' })], replyOf('[assistant]', 'yes', { content: 'yes' }))
    for (const written of ['yes', 'yes\n']) {
      const { text } = await encoded(own, [user('x'), says({ content: written })], {
        replies: [undefined, replyOf('[assistant]', written, { content: written })],
      })
      expect(text).toBe(`[user]x[assistant]${written}[assistant]`)
    }
  })

  test('nothing of an answer that ends with another special token than the end', async () => {
    const own = house('{% for m in messages %}<s>{{ m.role }}: {{ m.content }}<e>{% endfor %}<s>assistant: ', '</s>', [
      '<s>',
      '<e>',
    ])
    const { text, rendered } = await encoded(own, [user('x'), says({ content: 'certainly yes' }), user('y')], {
      replies: [undefined, replyOf('<s>assistant: ', 'certainly yes', { content: 'certainly yes' })],
    })
    expect(text).toBe(rendered.text)
  })

  test('an answer beside whose calls the template leaves out what was said is as it was sampled', async () => {
    const source =
      '{% for m in messages %}<s>{{ m.role }}: {% if m.tool_calls %}{{ m.tool_calls[0].function.name }}({{ m.tool_calls[0].function.arguments | tojson }}){% else %}{{ m.content }}{% endif %}</s>{% endfor %}<s>assistant: '
    const own = house(source)
    const message = { content: 'I look.', toolCalls: [{ id: 'c', name: 'look', arguments: '{}' }] }
    const { text } = await encoded(own, [user('x'), says(message)], {
      replies: [undefined, replyOf('<s>assistant: ', 'I look. look({ })', message)],
    })
    expect(text).toBe('<s>user: x</s><s>assistant: I look. look({ })</s><s>assistant: ')
  })
})
