// What a request asks of a template beside its messages: to continue the last one, reasoning on or off, names of the
// client's, a frozen date, the tools that its session had; and system messages in mid-conversation.

import { describe, expect, test } from 'vitest'
import { RefrainError } from '../core/errors.js'
import type { ChatMessage, ToolDefinition } from '../core/request.js'
import { realTemplates } from '../testing/real-templates.js'
import type { RenderOptions } from './contract.js'
import { createTemplate } from './template.js'

const CHATML = `{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content | trim }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

const user = (content: string): ChatMessage => ({ role: 'user', content })
const system = (content: string): ChatMessage => ({ role: 'system', content })
const assistant = (content: string): ChatMessage => ({ role: 'assistant', content })
const look: ToolDefinition = { name: 'look', json: '{"type":"function","function":{"name":"look"}}' }

const made = (source: string, toolFallback?: 'hermes') =>
  createTemplate(source, { bosToken: '<s>', eosToken: '</s>', dateNow: () => new Date(2025, 2, 9), toolFallback })

const render = (source: string, messages: readonly ChatMessage[], more: Partial<RenderOptions> = {}): string =>
  made(source).render(messages, { tools: [], addGenerationPrompt: true, ...more }).text

function refusal(run: () => unknown): Pick<RefrainError, 'code' | 'param' | 'message'> | undefined {
  try {
    run()
    return undefined
  } catch (error) {
    if (!(error instanceof RefrainError)) throw error
    return { code: error.code, param: error.param, message: error.message }
  }
}

describe('a final message that is continued', () => {
  const continued = (source: string, messages: readonly ChatMessage[]) =>
    made(source).render(messages, { tools: [], addGenerationPrompt: true, continueFinal: true })

  test('ends the text with its content, white space and all', () => {
    const { text, spans, tail } = continued(CHATML, [user('a'), assistant('Once upon ')])
    expect(text).toBe('<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nOnce upon ')
    expect(tail).toBe(text.length)
    expect(spans.at(-1)).toEqual({ message: 1, start: text.indexOf('<|im_start|>assistant'), end: text.length })
  })

  test('may be empty, or hold the very word that its end is found by', () => {
    expect(continued(CHATML, [user('a'), assistant('')]).text).toMatch(/assistant\n$/)
    const text = 'refrain_end refrain_end__'
    expect(continued(CHATML, [user(text), assistant(text)]).text).toMatch(/assistant\nrefrain_end refrain_end__$/)
  })

  test("is refused where it is not the assistant's, has calls, or is not shown", () => {
    expect(refusal(() => continued(CHATML, [user('a')]))).toMatchObject({ code: 'invalid_request', param: 'messages' })
    const calling: ChatMessage = { ...assistant('x'), toolCalls: [{ id: 'a', name: 'look', arguments: '{}' }] }
    expect(refusal(() => continued(CHATML, [user('a'), calling]))?.message).toMatch(/has tool calls/)
    const mute = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
    expect(refusal(() => continued(mute, [user('a'), assistant('b')]))).toMatchObject({
      code: 'template_failed',
      message: expect.stringMatching(/cannot be continued/),
    })
  })
})

describe('names', () => {
  test("are the client's, but for what the request itself gives", () => {
    const source = `{{ flavour }} {{ size | tojson }}${CHATML}`
    expect(render(source, [user('a')], { values: '{"flavour":"plum","size":1.0}' })).toMatch(/^plum 1.0</)
    for (const values of ['{"messages":[]}', '{"tools":[]}', '{"add_generation_prompt":false}', '[]', '{"a"']) {
      expect(refusal(() => render(source, [user('a')], { values }))).toMatchObject({
        code: 'invalid_request',
        param: 'chat_template_kwargs',
      })
    }
  })

  test('the date is the one that was given, or now', () => {
    const source = `{{ strftime_now('%d %b %Y') }}${CHATML}`
    expect(render(source, [user('a')])).toMatch(/^09 Mar 2025/)
    expect(render(source, [user('a')], { date: new Date(2024, 11, 31) })).toMatch(/^31 Dec 2024/)
  })
})

describe('reasoning', () => {
  const SWITCH = `${CHATML}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}`

  test('is switched by the name that the template reads', () => {
    expect(made(SWITCH).traits?.options).toEqual(['thinking'])
    expect(render(SWITCH, [user('a')], { thinking: { enabled: false } })).toMatch(/<think><\/think>$/)
    expect(render(SWITCH, [user('a')], { thinking: { effort: 'high' } })).toBe(render(SWITCH, [user('a')]))
    const other = SWITCH.replaceAll('enable_thinking', 'thinking')
    expect(render(other, [user('a')], { thinking: { enabled: false } })).toMatch(/<think><\/think>$/)
    const none = CHATML
    expect(made(none).traits?.options).toEqual([])
    expect(render(none, [user('a')], { thinking: { enabled: false, effort: 'low' } })).toBe(render(none, [user('a')]))
  })

  test("values of the client's go before it", () => {
    const options = { thinking: { enabled: true }, values: '{"enable_thinking":false}' }
    expect(render(SWITCH, [user('a')], options)).toMatch(/<think><\/think>$/)
  })

  test('has the nearest effort that the template knows', () => {
    const printed = `{{ 'Reasoning: ' + (reasoning_effort or 'medium') }}${CHATML}`
    const strict = `{% if reasoning_effort is defined and reasoning_effort not in ['low', 'high'] %}{{ raise_exception('no') }}{% endif %}{{ 'Effort ' + reasoning_effort if reasoning_effort }}${CHATML}`
    const most = `{% if reasoning_effort == 'max' %}MOST{% endif %}${CHATML}`
    const budget = `{% if thinking_budget is defined %}budget {{ thinking_budget }}{% endif %}${CHATML}`
    const table = (['minimal', 'low', 'medium', 'high', 'xhigh', 'max'] as const).map((effort) =>
      [printed, strict, most, budget].map((source) => {
        const text = render(source, [user('a')], { thinking: { effort } })
        return text.slice(0, text.indexOf('<')).replace(/Reasoning: |Effort |budget /, '')
      }),
    )
    expect(table).toEqual([
      ['low', 'low', '', '512'],
      ['low', 'low', '', '1024'],
      ['medium', 'low', '', '4096'],
      ['high', 'high', '', '16384'],
      ['high', 'high', '', '-1'],
      ['high', 'high', 'MOST', '-1'],
    ])
  })

  test('of earlier turns: what a template keeps of itself is found, and kept where it can be told to', () => {
    const keeping = (test: string) =>
      `{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content and (${test}) %}<{{ m.reasoning_content }}>{% endif %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}`
    const sources = {
      all: keeping('true'),
      'since-user': keeping('loop.index0 > ns.last'),
      none: keeping('false'),
      told: keeping('loop.index0 > ns.last or (clear_thinking is defined and not clear_thinking)'),
    }
    expect(made(sources.all).traits?.keepsReasoning).toBe('all')
    expect(made(sources['since-user']).traits?.keepsReasoning).toBe('since-user')
    expect(made(sources.none).traits?.keepsReasoning).toBe('none')
    expect(made(sources.told).traits).toMatchObject({ keepsReasoning: 'since-user', options: ['keepReasoning'] })
    const chat = [user('a'), { ...assistant('b'), reasoning: 'why' }, user('c')]
    expect(render(sources.told, chat)).not.toContain('why')
    expect(render(sources.told, chat, { keepReasoning: true })).toContain('<why>')
  })
})

describe('tools of the session', () => {
  const NATIVE = `{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}`

  test('keep a prefix whole when a request has none', () => {
    const before = render(NATIVE, [user('a')], { tools: [look] })
    expect(render(NATIVE, [user('a')], { keepTools: [look] })).toBe(before)
    const fallback = made(CHATML, 'hermes')
    const options = { tools: [], addGenerationPrompt: true, keepTools: [look] }
    expect(fallback.render([user('a')], options).text).toContain('look')
    // There they were refused, so there is no prefix to keep.
    expect(render(CHATML, [user('a')], { keepTools: [look] })).toBe(render(CHATML, [user('a')]))
  })

  test('where definitions stand is found', () => {
    expect(made(NATIVE).traits?.toolsAt).toBe('head')
    const last = `{% for m in messages %}{% if loop.last and tools %}{{ tools | tojson }}{% endif %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}`
    expect(made(last).traits?.toolsAt).toBe('later')
    expect(made(CHATML).traits?.toolsAt).toBe('nowhere')
  })
})

describe('system messages in mid-conversation', () => {
  const STRICT = `{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}{{ m.role[0] }}({{ m.content }}){{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}`
  const HOISTED = `{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}{% for m in messages if m.role != 'system' %}{{ m.role[0] }}({{ m.content }}){% endfor %}`
  const ALTERNATING = `{% set ns = namespace(last='') %}{% for m in messages %}{% if m.role == ns.last or (m.role == 'user' and ns.last == 'tool') %}{{ raise_exception('alternate') }}{% endif %}{% set ns.last = m.role %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}{{ m.role[0] }}({{ m.content }}){{ '' if m.tool_calls else '' }}{% endfor %}`
  const chat = [system('S'), user('a'), assistant('b'), system('T'), user('c')]
  const reminder = (text: string) => `<system-reminder>\n${text}\n</system-reminder>`

  test('are reminders where they stand, and what is in front of them stays as it was', () => {
    const before = render(STRICT, chat.slice(0, 3))
    expect(render(STRICT, chat)).toBe(`${before}u(${reminder('T')})u(c)`)
    expect(render(STRICT, chat.slice(0, 4))).toBe(`${before}u(${reminder('T')})`)
  })

  test('are not lifted to the top by a template that would', () => {
    expect(render(HOISTED, chat)).toBe(`Su(a)a(b)u(${reminder('T')})u(c)`)
  })

  test('join a neighbour where roles must alternate', () => {
    expect(render(ALTERNATING, chat)).toBe(`s(S)u(a)a(b)u(${reminder('T')}\n\nc)`)
    expect(render(ALTERNATING, [user('a'), system('T')])).toBe(`u(a\n\n${reminder('T')})`)
    expect(render(ALTERNATING, [user('a'), system('T'), system('U'), assistant('b'), system('V')])).toBe(
      `u(a\n\n${reminder('T')}\n\n${reminder('U')})a(b)u(${reminder('V')})`,
    )
  })

  test('have the span of the message that they are, or none in a neighbour', () => {
    const { spans, text } = made(STRICT).render(chat, { tools: [], addGenerationPrompt: true })
    expect(spans.map(({ message, start, end }) => [message, text.slice(start, end)]).at(3)).toEqual([
      3,
      `u(${reminder('T')})`,
    ])
    const joined = made(ALTERNATING).render(chat, { tools: [], addGenerationPrompt: true })
    expect(joined.spans.map(({ message }) => message)).toEqual([0, 1, 2, 4])
  })

  const templates = realTemplates()
  test.skipIf(templates === undefined)(
    'keep the prefix on all real templates (needs ../shared/tools/get-templates)',
    () => {
      let kept = 0
      for (const [name, source] of templates ?? []) {
        const template = made(source)
        const text = (messages: readonly ChatMessage[]) =>
          template.render(messages, { tools: [], addGenerationPrompt: false }).text
        const lead = refusal(() => text([system('S'), user('a')])) === undefined ? [system('S')] : []
        if (refusal(() => text([...lead, user('a')])) !== undefined) continue
        const shared = text([...lead, user('asked'), assistant('said'), user('more')])
        const whole = text([...lead, user('asked'), assistant('said'), system('SECOND'), user('more')])
        const at = whole.indexOf('said') + 'said'.length
        expect(whole.slice(0, at), name).toBe(shared.slice(0, at))
        expect(whole.slice(at), name).toContain('SECOND')
        kept++
      }
      expect(kept).toBeGreaterThan(60)
    },
  )
})
