// What models of each family write, and what is read from it: [text, content, calls as name and raw arguments].

import { describe, expect, test } from 'vitest'
import type { ToolCallFormat } from './contract.js'
import * as formats from './index.js'

const byName = new Map<string, ToolCallFormat>(Object.entries(formats))

const properties = {
  city: { type: 'string' },
  days: { type: 'integer' },
  share: { type: 'number' },
  metric: { type: 'boolean' },
  tags: { type: 'array' },
  unit: { enum: ['C', 'F', 1] },
  zone: { type: ['string', 'null'] },
  size: { anyOf: [{ type: 'integer' }, { $ref: '#/$defs/word' }] },
  loose: {},
}
const parameters = { type: 'object', properties, $defs: { word: { type: 'string' } } }
const tools = [
  { name: 'forecast', json: JSON.stringify({ type: 'function', function: { name: 'forecast', parameters } }) },
  { name: 'flat', json: JSON.stringify({ type: 'function', name: 'flat', parameters }) },
  { name: 'claude', json: JSON.stringify({ name: 'claude', input_schema: parameters }) },
]

type Golden = readonly [text: string, content: string, ...calls: (readonly [name: string, raw: string, id?: string])[]]

function read(format: ToolCallFormat, text: string) {
  const parser = format.create({}, { tools })
  const parts = [parser.push(text), parser.end()]
  const calls = parts.flatMap((part) => part.calls)
  return { content: parts.map((part) => part.content).join(''), calls }
}

const GOLDENS: Readonly<Record<string, readonly Golden[]>> = {
  'qwen3-coder': [
    [
      'I look.\n\n<tool_call>\n<function=forecast>\n<parameter=city>\nSão\n\nPaulo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>',
      'I look.',
      ['forecast', '{"city": "São\\n\\nPaulo", "days": 3}'],
    ],
    [
      '<tool_call>\n<function=forecast>\n</function>\n</tool_call>\n<tool_call>\n<function=forecast>\n<parameter=tags>\n["</parameter>", 1.0]\n</parameter>\n</function>\n</tool_call>',
      '',
      ['forecast', '{}'],
      ['forecast', '{"tags": ["</parameter>", 1.0]}'],
    ],
    // On one line, and without the function's end.
    ['<tool_call><function=forecast><parameter=city>5</parameter></tool_call>', '', ['forecast', '{"city": "5"}']],
    // Types: as Python prints them, of several kinds, listed, unknown, and what fits none.
    [
      types([
        ['metric', 'True'],
        ['share', '1e3'],
        ['days', '3.0'],
        ['zone', 'None'],
        ['unit', 'C'],
        ['unit', '1'],
        ['size', '12'],
        ['size', 'large'],
        ['loose', '{"a": 1.50}'],
        ['loose', 'None'],
        ['other', 'true'],
        ['tags', `['it\\'s', "a", None, {'b': False}]`],
        ['loose', "['a']"],
        ['size', "['a']"],
        ['days', 'three'],
        ['city', 'true'],
        ['__proto__', 'x'],
      ]),
      '',
      [
        'forecast',
        '{"metric": true, "share": 1e3, "days": 3.0, "zone": null, "unit": "C", "unit": 1, "size": 12, "size": "large", ' +
          '"loose": {"a": 1.50}, "loose": "None", "other": true, "tags": ["it\'s", "a", null, {"b": false}], "loose": "[\'a\']", "size": "[\'a\']", "days": "three", "city": "true", "__proto__": "x"}',
      ],
    ],
    // A tag in a string's text, which only that value's own end closes.
    [
      '<tool_call>\n<function=flat>\n<parameter=city>\n</tool_call></function>\n</parameter>\n</function>\n</tool_call>',
      '',
      ['flat', '{"city": "</tool_call></function>"}'],
    ],
    [
      '<tool_call>\n<function=claude>\n<parameter=days>\n7\n</parameter>\n</function>\n</tool_call>',
      '',
      ['claude', '{"days": 7}'],
    ],
    // The tag is only spoken of.
    ['Write <tool_call> and then <function=NAME>.', 'Write <tool_call> and then <function=NAME>.'],
    [
      '<tool_call>\n<function=forecast>\nwords\n</function>\n</tool_call>!',
      '<tool_call>\n<function=forecast>\nwords\n</function>\n</tool_call>!',
    ],
  ],
  seed: [
    [
      '\n<seed:tool_call>\n<function=forecast>\n<parameter=city>Oslo</parameter>\n<parameter=days>2</parameter>\n</function>\n</seed:tool_call>',
      '',
      ['forecast', '{"city": "Oslo", "days": 2}'],
    ],
  ],
  glm: [
    [
      'So:\n<tool_call>forecast\n<arg_key>city</arg_key>\n<arg_value>Oslo\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>',
      'So:',
      ['forecast', '{"city": "Oslo\\n", "days": 2}'],
    ],
    [
      '<tool_call>forecast<arg_key>tags</arg_key><arg_value>["</arg_value>"]</arg_value></tool_call><tool_call>forecast</tool_call>',
      '',
      ['forecast', '{"tags": ["</arg_value>"]}'],
      ['forecast', '{}'],
    ],
    ['<tool_call>two words</tool_call>', '<tool_call>two words</tool_call>'],
    ['<tool_call>forecast', '<tool_call>forecast'],
  ],
  'llama3-json': [
    ['{"name": "forecast", "parameters": {"city": "Oslo", "x": 1.0}}', '', ['forecast', '{"city": "Oslo", "x": 1.0}']],
    [
      '<|python_tag|>{"type": "function", "name": "a", "parameters": {}}; {"name": "b", "arguments": {"s": "};{"}}\n',
      '',
      ['a', '{}'],
      ['b', '{"s": "};{"}'],
    ],
    // JSON that is no call, with and without the right keys.
    ['{"answer": 42}', '{"answer": 42}'],
    ['{"name": "Ann", "age": 42}', '{"name": "Ann", "age": 42}'],
    ['<|python_tag|>print(1)', '<|python_tag|>print(1)'],
    // In the middle of an answer only what there is may be called.
    ['Sure: {"name": "forecast", "parameters": {}}', 'Sure: ', ['forecast', '{}']],
    ['Sure: {"name": "absent", "parameters": {}}', 'Sure: {"name": "absent", "parameters": {}}'],
    ['{"name": "a", "parameters": {}} and more', ' and more', ['a', '{}']],
  ],
  mistral: [
    ['[TOOL_CALLS]forecast[ARGS]{"city": "Oslo"}', '', ['forecast', '{"city": "Oslo"}']],
    [
      'Yes.[TOOL_CALLS]a[CALL_ID]abcDEF123[ARGS]{"x": "]}"}[TOOL_CALLS]b{"y": [1]}',
      'Yes.',
      ['a', '{"x": "]}"}', 'abcDEF123'],
      ['b', '{"y": [1]}'],
    ],
    [
      '[TOOL_CALLS] [{"name": "a", "arguments": {"b":1.0}, "id": "D681PevKs"}, {"arguments": {}, "name": "c"}]',
      '',
      ['a', '{"b":1.0}', 'D681PevKs'],
      ['c', '{}'],
    ],
    ['[TOOL_CALLS] is a token', '[TOOL_CALLS] is a token'],
    ['[TOOL_CALLS][{"name": "a"}, 5]', '[TOOL_CALLS][{"name": "a"}, 5]'],
  ],
  'deepseek-v3': [
    [
      'Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>forecast\n```json\n{"city": "Oslo",\n "n": 1.0}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>b\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      'Hm.',
      ['forecast', '{"city": "Oslo",\n "n": 1.0}'],
      ['b', '{}'],
    ],
    // V3.1's form; the section's tags may be forgotten.
    [
      '<｜tool▁call▁begin｜>forecast<｜tool▁sep｜>{"s": "<｜tool▁call▁end｜>"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      '',
      ['forecast', '{"s": "<｜tool▁call▁end｜>"}'],
    ],
    [
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>[1]<｜tool▁call▁end｜><｜tool▁calls▁end｜>.',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>[1]<｜tool▁call▁end｜><｜tool▁calls▁end｜>.',
    ],
  ],
  'deepseek-v4': [
    [
      'I see.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="forecast">\n<｜DSML｜parameter name="city" string="true">5 </｜DSML｜parameter>\n<｜DSML｜parameter name="tags" string="false">["</｜DSML｜parameter>", 2.0]</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="b">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
      'I see.',
      ['forecast', '{"city": "5 ", "tags": ["</｜DSML｜parameter>", 2.0]}'],
      ['b', '{}'],
    ],
    // V3.2's name of the block; an attribute that is absent or wrong leaves it to the definition.
    [
      '<｜DSML｜function_calls>\n<｜DSML｜invoke name="forecast">\n<｜DSML｜parameter name="city">5</｜DSML｜parameter>\n<｜DSML｜parameter name="metric" string="false">True</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
      '',
      ['forecast', '{"city": "5", "metric": true}'],
    ],
    ['<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>', '<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>'],
  ],
  kimi: [
    [
      'Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.forecast:12<|tool_call_argument_begin|>{"s": "<|tool_call_end|>"}<|tool_call_end|><|tool_call_begin|>functions.b:13<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
      'Ok',
      ['forecast', '{"s": "<|tool_call_end|>"}', 'functions.forecast:12'],
      ['b', '{}', 'functions.b:13'],
    ],
    // Ids without a count, and the same one twice, are made as the template makes them.
    [
      '<|tool_calls_section_begin|><|tool_call_begin|>functions.a<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
      '',
      ['a', '{}', 'functions.a:0'],
      ['a', '{}', 'functions.a:1'],
    ],
    // One that is no call leaves the others.
    [
      '<|tool_calls_section_begin|><|tool_call_begin|>oops<|tool_call_end|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
      '<|tool_calls_section_begin|><|tool_call_begin|>oops<|tool_call_end|>',
      ['a', '{}', 'functions.a:0'],
    ],
  ],
  harmony: [
    [
      '<|channel|>commentary to=functions.forecast <|constrain|>json<|message|>{"city":"Oslo"}<|call|>',
      '',
      ['forecast', '{"city":"Oslo"}'],
    ],
    // The end of the turn does not show up in the text.
    [
      '<|channel|>commentary to=functions.a<|message|>{"s": "<|call|>"}<|call|><|start|>assistant<|channel|>commentary to=functions.b json<|message|>{}',
      '',
      ['a', '{"s": "<|call|>"}'],
      ['b', '{}'],
    ],
    [
      '<|channel|>commentary to=functions.a<|message|>oops<|call|>',
      '<|channel|>commentary to=functions.a<|message|>oops<|call|>',
    ],
  ],
}

describe.each(Object.entries(GOLDENS))('%s', (name, goldens) => {
  const format = byName.get(name)!

  const cases = goldens.map(([text, content, ...expected]) => ({ text, content, expected }))
  test.each(cases)('$text', ({ text, content, expected }) => {
    const got = read(format, text)
    expect(got.content).toBe(content)
    expect(got.calls.map((call) => [call.name, call.argumentsDelta])).toEqual(
      expected.map(([called, raw]) => [called, raw]),
    )
    for (const [i, [, , id]] of expected.entries()) if (id !== undefined) expect(got.calls[i]!.id).toBe(id)
  })
})

test.each([
  ['mistral', '[TOOL_CALLS]a[ARGS]{}', /^[A-Za-z0-9]{9}$/],
  ['kimi', '<|tool_call_begin|>functions.a:4<|tool_call_argument_begin|>{}<|tool_call_end|>', /^functions\.a:4$/],
  ['glm', '<tool_call>a</tool_call>', /^call_[0-9a-f]{24}$/],
])("ids are in the family's own form: %s", (name, text, pattern) => {
  expect(read(byName.get(name)!, text).calls[0]?.id).toMatch(pattern)
})

function types(pairs: readonly (readonly [string, string])[]): string {
  const lines = pairs.map(([key, value]) => `<parameter=${key}>\n${value}\n</parameter>\n`)
  return `<tool_call>\n<function=forecast>\n${lines.join('')}</function>\n</tool_call>`
}
