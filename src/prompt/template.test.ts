// Chat templates: the reference's own chats, tools in every way they are rendered, and all real templates at hand (those
// that ../shared/tools/get-templates brings) with a table of what each refuses.

import { describe, expect, test } from 'vitest'
import { RefrainError } from '../core/errors.js'
import type { ChatMessage, ToolDefinition } from '../core/request.js'
import { realTemplates } from '../testing/real-templates.js'
import type { RenderOptions } from './contract.js'
import { createTemplate, type TemplateOptions } from './template.js'

const CHATML = [
  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}",
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
].join('')

// Knows tools, in a form of its own.
const NATIVE = [
  '{% if tools %}T{{ tools | tojson }}\\n{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}',
  '{% for c in m.tool_calls %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}',
  '{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %};{% endfor %}',
].join('')

const user = (content: string): ChatMessage => ({ role: 'user', content })
const system = (content: string): ChatMessage => ({ role: 'system', content })
const assistant = (content: string): ChatMessage => ({ role: 'assistant', content })
const toolNamed = (name: string): ToolDefinition => ({
  name,
  json: `{"type":"function","function":{"name":"${name}","description":"Looks it up","parameters":{"type":"object","properties":{"city":{"type":"string","description":"Where"}},"required":["city"]}}}`,
})
const calling = (args: string, id = 'call_1'): ChatMessage => ({
  role: 'assistant',
  content: '',
  toolCalls: [{ id, name: 'look', arguments: args }],
})
const result = (content: string, id = 'call_1'): ChatMessage => ({ role: 'tool', content, toolCallId: id })

function render(
  source: string,
  messages: readonly ChatMessage[],
  more: Partial<RenderOptions> & Pick<TemplateOptions, 'toolFallback'> = {},
): string {
  const { toolFallback, ...options } = more
  const made = { bosToken: '<s>', eosToken: '</s>', dateNow: () => new Date(2025, 2, 9) }
  const template = createTemplate(source, { ...made, ...(toolFallback && { toolFallback }) })
  return template.render(messages, { tools: [], addGenerationPrompt: true, ...options }).text
}

function refusal(run: () => unknown): Pick<RefrainError, 'code' | 'param' | 'message'> | undefined {
  try {
    run()
    return undefined
  } catch (error) {
    if (!(error instanceof RefrainError)) throw error
    return { code: error.code, param: error.param, message: error.message }
  }
}

describe('what a template gets', () => {
  test('names, flags and the date', () => {
    const source =
      '{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}|{{ strftime_now("%d %b %Y") }}|{{ tools is none }}'
    expect(render(source, [user('x')])).toBe('<s>|</s>|True|09 Mar 2025|True')
    expect(render(source, [user('x')], { addGenerationPrompt: false })).toContain('|False|')
  })

  test('the raised sentence goes to the caller', () => {
    const source =
      "{% if messages|length > 1 %}{{ raise_exception('One message only, please.') }}{% endif %}{{ messages[0].content }}"
    expect(refusal(() => render(source, [user('a'), user('b')]))).toEqual({
      code: 'template_failed',
      param: 'messages',
      message: 'One message only, please.',
    })
  })

  test('what is no template is refused when it is made', () => {
    expect(refusal(() => render('{% if %}', []))).toMatchObject({ code: 'template_failed' })
  })

  test('system messages stay where they are, as reminders where the template would lose them', () => {
    const chat = [system('A'), user('b'), assistant('c'), system('D'), user('e')]
    expect(render(CHATML, chat)).toMatch(/system\nA.*user\nb.*assistant\nc.*system\nD.*user\ne/s)
    const first =
      "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    expect(render(first, chat.slice(0, 3))).toBe('Abc')
    expect(render(first, chat)).toBe('Abc<system-reminder>\nD\n</system-reminder>e')
    expect(render(first, chat.slice(0, 4))).toBe('Abc<system-reminder>\nD\n</system-reminder>')
    expect(render(first, [system('A'), system('B'), user('c')])).toBe('A\n\nBc')
    const none = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    expect(refusal(() => render(none, chat.slice(0, 3)))?.message).toMatch(/leaves out system messages/)
  })

  test('reasoning goes under the name that the template reads', () => {
    for (const name of ['reasoning_content', 'reasoning', 'thinking']) {
      const source = `${NATIVE}{% for m in messages if m.${name} %}<{{ m.${name} }}>{% endfor %}`
      expect(render(source, [user('a'), { ...assistant('b'), reasoning: 'why' }])).toContain('<why>')
    }
  })
})

describe('tools that the template knows', () => {
  test('definitions keep the order of keys and the spelling of numbers, with the separators of json.dumps', () => {
    const json =
      '{"type":"function","function":{"parameters":{"9":1.0,"b":{"minimum":1e3,"a":[12345678901234567890, -0.50]},"2":null},"name":"look"}}'
    const printed =
      '{"type": "function", "function": {"parameters": {"9": 1.0, "b": {"minimum": 1e3, "a": [12345678901234567890, -0.50]}, "2": null}, "name": "look"}}'
    expect(render(NATIVE, [user('x')], { tools: [{ name: 'look', json }] })).toBe(`T[${printed}]\\nuser:x;`)
  })

  test('a definition that is too deep is refused', () => {
    const json = `{"a":${'['.repeat(5000)}${']'.repeat(5000)}}`
    expect(refusal(() => render(NATIVE, [user('x')], { tools: [{ name: 'look', json }] }))).toMatchObject({
      code: 'invalid_request',
      param: 'tools',
    })
  })

  test('what is remembered of them cannot be changed by a template, and changes nothing', () => {
    const template = (source: string) =>
      createTemplate(source, { bosToken: '', eosToken: '', dateNow: () => new Date(0) })
    const options = { tools: [toolNamed('look')], addGenerationPrompt: true }
    const native = template(NATIVE)
    expect(native.render([user('x')], options)).toEqual(native.render([user('x')], options))
    for (const change of ['update(x=1)', "pop('type')", 'setdefault("y")', 'function.parameters.required.append(1)']) {
      const source = `${NATIVE}{% if tools and tools[0].function.name == 'look' %}{{ tools[0].${change} }}{% endif %}`
      expect(refusal(() => template(source).render([user('x')], options))?.message).toMatch(/cannot change/)
    }
  })

  test('arguments are an object for the template, and what is no object stays text', () => {
    const chat = (args: string) => [user('x'), calling(args), result('sunny')]
    expect(render(NATIVE, chat('{"b":1.0,"a":"é"}'))).toBe(
      'user:x;assistant:[call_1 look {"b": 1.0, "a": "é"}];tool:sunny(call_1);',
    )
    expect(render(NATIVE, chat('{"b":1.0,'))).toContain('[call_1 look "{\\"b\\":1.0,"]')
  })

  test('a template that takes arguments as text gets the raw text', () => {
    const source = NATIVE.replace('c.function.arguments | tojson', '"" + c.function.arguments')
    expect(render(source, [user('x'), calling('{"b":1.0}'), result('sunny')])).toContain('[call_1 look {"b":1.0}]')
  })

  test('a template that wants ids of nine characters gets them, the same for the same id', () => {
    const strict = `{% for m in messages %}{% for c in m.tool_calls %}{% if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}{% endfor %}{% endfor %}${NATIVE}`
    const text = render(strict, [
      user('x'),
      calling('{}', 'call_of_some_length'),
      result('sunny', 'call_of_some_length'),
    ])
    const [, id] = /\[(\w{9}) look/.exec(text) ?? []
    expect(text).toContain(`sunny(${id})`)
    expect(render(strict, [calling('{}', 'abcDEF123')])).toContain('[abcDEF123 look')
  })
})

describe('tools that the template does not know', () => {
  const loop = [user('x'), calling('{"city": 1.0}'), result('sunny'), assistant('Nice.')]

  test('are refused by name where no fallback is named', () => {
    expect(refusal(() => render(CHATML, [user('x')], { tools: [toolNamed('look')] }))).toMatchObject({
      code: 'unsupported_parameter',
      param: 'tools',
    })
    expect(refusal(() => render(CHATML, loop))).toMatchObject({ code: 'unsupported_parameter', param: 'messages' })
    const users = CHATML.replace('in messages', "in messages if message.role != 'tool'")
    expect(refusal(() => render(users, [result('sunny')]))?.message).toMatch(/does not render tool results/)
  })

  test('are text in the Hermes form where it is', () => {
    const two: ChatMessage = {
      role: 'assistant',
      content: 'Two.',
      toolCalls: [
        { id: 'a', name: 'look', arguments: '{"city":"Rome"}' },
        { id: 'b', name: 'look', arguments: 'broken' },
      ],
    }
    const chat = [system('Be brief.'), user('x'), two, result('sunny', 'a'), result('rain', 'b'), user('y')]
    const text = render(CHATML, chat, { tools: [toolNamed('look')], toolFallback: 'hermes' })
    expect(text).toMatch(
      /^<\|im_start\|>system\nBe brief\.\n\n# Tools\n.*<tools>\n\{"type": "function", .*\}\n<\/tools>\n.*<\|im_end\|>\n/s,
    )
    expect(text.slice(text.indexOf('<|im_start|>user'))).toBe(
      [
        '<|im_start|>user\nx<|im_end|>\n',
        '<|im_start|>assistant\nTwo.\n<tool_call>\n{"name": "look", "arguments": {"city":"Rome"}}\n</tool_call>\n',
        '<tool_call>\n{"name": "look", "arguments": "broken"}\n</tool_call><|im_end|>\n',
        '<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n</tool_response><|im_end|>\n',
        '<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n',
      ].join(''),
    )
  })

  test('get a system message where there is none, and a place in the user message where there can be none', () => {
    const options = { tools: [toolNamed('look')], toolFallback: 'hermes' } as const
    expect(render(CHATML, [user('x')], options)).toMatch(/^<\|im_start\|>system\n# Tools/)
    const strict = `{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}${CHATML}`
    expect(render(strict, [user('x')], options)).toMatch(/^<\|im_start\|>user\n# Tools.*\n\nx<\|im_end\|>/s)
  })

  test('leave a chat without tools as it is', () => {
    const chat = [system('A'), user('b'), assistant('c'), user('d')]
    expect(render(CHATML, chat, { toolFallback: 'hermes' })).toBe(render(CHATML, chat))
  })
})

const templates = realTemplates()

type Case = 'chat' | 'bare' | 'tools' | 'loop' | 'system later'

const CASES: Readonly<Record<Case, { messages: readonly ChatMessage[]; tools: readonly ToolDefinition[] }>> = {
  chat: { messages: [system('SYSTEM1'), user('USER1'), assistant('ANSWER1'), user('USER2')], tools: [] },
  bare: { messages: [user('USER1')], tools: [] },
  tools: { messages: [user('USER1')], tools: [toolNamed('look')] },
  loop: { messages: [user('USER1'), calling('{"city":"PLACE1"}'), result('RESULT1')], tools: [toolNamed('look')] },
  'system later': {
    messages: [system('SYSTEM1'), user('USER1'), assistant('ANSWER1'), system('SYSTEM2'), user('USER2')],
    tools: [],
  },
}

const NO_TOOLS: Partial<Record<Case, RegExp>> = { tools: /does not render tools/, loop: /does not render tools/ }
const NO_HISTORY: Partial<Record<Case, RegExp>> = { loop: /does not render tool calls/ }
const NO_FUNCTIONS = /'functions' is undefined/

/** What each template refuses, without a fallback for tools; whatever is not listed has to render. */
const REFUSES: Readonly<Record<string, Partial<Record<Case, RegExp>>>> = {
  'HuggingFaceTB-SmolLM3-3B': NO_TOOLS,
  'LFM2-8B-A1B': NO_HISTORY,
  'LFM2.5-Instruct': NO_HISTORY,
  'deepseek-ai-DeepSeek-R1-Distill-Llama-8B': NO_TOOLS,
  'deepseek-ai-DeepSeek-R1-Distill-Qwen-32B': NO_TOOLS,
  'deepseek-ai-DeepSeek-V3.1': NO_TOOLS,
  // Wants its tools in a variable of another name, and the date beside them.
  'fireworks-ai-llama-3-firefunction-v2': {
    ...NO_TOOLS,
    chat: NO_FUNCTIONS,
    bare: NO_FUNCTIONS,
    'system later': NO_FUNCTIONS,
  },
  'google-gemma-2-2b-it': {
    ...NO_TOOLS,
    chat: /System role not supported/,
    'system later': /System role not supported/,
  },
  'ibm-granite-granite-3.3-2B-Instruct': NO_HISTORY,
  'llama-cpp-rwkv-world': NO_TOOLS,
  'microsoft-Phi-3.5-mini-instruct': NO_TOOLS,
}

describe.skipIf(templates === undefined)('real templates (need ../shared/tools/get-templates)', () => {
  const all = templates ?? new Map<string, string>()

  test('are all here', () => {
    expect(all.size).toBeGreaterThan(65)
    for (const name of Object.keys(REFUSES)) expect([...all.keys()]).toContain(name)
  })

  test.each([...all])('%s', (name, source) => {
    const refuses = REFUSES[name] ?? {}
    for (const [which, { messages, tools }] of Object.entries(CASES)) {
      const expected = refuses[which as Case]
      const run = (): string => render(source, messages, { tools })
      if (expected !== undefined) {
        expect(refusal(run)?.message, which).toMatch(expected)
        continue
      }
      const text = run()
      const words = JSON.stringify(messages).match(/(SYSTEM|USER|ANSWER|RESULT|PLACE)\d/g) ?? []
      for (const word of [...words, ...tools.map((tool) => tool.name)]) expect(text, which).toContain(word)
    }
    if (refuses.bare === undefined) {
      const text = render(source, CASES.loop.messages, { tools: CASES.loop.tools, toolFallback: 'hermes' })
      for (const word of ['USER1', 'look', 'PLACE1', 'RESULT1']) expect(text).toContain(word)
    }
  })
})
