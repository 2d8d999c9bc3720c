// Templates mean here what they mean in Jinja2 as Transformers sets it up (trim_blocks, lstrip_blocks, json.dumps as tojson).
// The expected texts were made with Jinja2 3.1.6 under Python 3 from these very templates.

import { describe, expect, test } from 'vitest'
import { compileTemplate, parseJson, printJson, TemplateFault, type Value } from './index.js'
import { strftime } from './strftime.js'

const NAMES: readonly (readonly [string, Value])[] = [
  ['d', parseJson('{"b":1,"a":[1,2.5,null,true],"1":"x"}')],
  ['s', "  Hello, 'World'\n"],
  ['l', [3, 1, 2]],
  ['e', 'é😀x'],
  ['m', parseJson('[{"r":"user","n":2},{"r":"tool","n":1},{"r":"user","n":3}]')],
]

const render = (source: string, names = NAMES): string => compileTemplate(source)(names)

const FROM_PYTHON: readonly (readonly [string, string])[] = [
  ['{{ d }}', "{'b': 1, 'a': [1, 2.5, None, True], '1': 'x'}"],
  ['{{ d|tojson }}', '{"b": 1, "a": [1, 2.5, null, true], "1": "x"}'],
  ['{{ d|tojson(indent=2) }}', '{\n  "b": 1,\n  "a": [\n    1,\n    2.5,\n    null,\n    true\n  ],\n  "1": "x"\n}'],
  ["{{ d|tojson(sort_keys=true, separators=(',',':')) }}", '{"1":"x","a":[1,2.5,null,true],"b":1}'],
  ['{{ e|tojson(ensure_ascii=true) }}', '"\\u00e9\\ud83d\\ude00x"'],
  [
    "[{{ s.strip() }}][{{ s.lstrip(' H') }}][{{ s.rstrip('\\n') }}][{{ s|trim }}]",
    "[Hello, 'World'][ello, 'World'\n][  Hello, 'World'][Hello, 'World']",
  ],
  [
    '{{ e|length }} {{ e[1] }} {{ e[-1] }} {{ e[::-1] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::2] }}',
    '3 😀 x x😀é [1, 2] [3, 1] [3, 2]',
  ],
  [
    "{{ true }} {{ none }} {{ 1.0 }} {{ 7//2 }} {{ -7//2 }} {{ -7 % 3 }} {{ 7/2 }} {{ 2**3 }} {{ 1 == 1.0 }} {{ 'a' ~ 1 ~ none ~ true }}",
    'True None 1.0 3 -4 2 3.5 8 True a1NoneTrue',
  ],
  [
    "{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ '' if loop.last else ', ' }}{% endfor %}",
    '1/3:3, 2/3:1, 3/3:2',
  ],
  [
    '{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}{% for k, v in d.items() %}{{ k }}{% endfor %}{% for k in d %}{{ k }}{% endfor %}',
    '1=x;a=[1, 2.5, None, True];b=1;ba1ba1',
  ],
  [
    "{% set ns = namespace(n=0) %}{% for x in m if x.r == 'user' %}{% set ns.n = ns.n + x.n %}{% endfor %}{{ ns.n }}",
    '5',
  ],
  ['{% set y = 1 %}{% for x in l %}{% set y = x %}{% endfor %}{{ y }}', '1'],
  [
    '{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}',
    '3',
  ],
  [
    "{% macro f(a, b='B', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ f('x') }}{{ f('x', c=1) }}{{ f(b='y', a=2) }}",
    '<xBNone><xB1><2yNone>',
  ],
  [
    "{{ m|map(attribute='r')|join(',') }} {{ m|selectattr('r','equalto','user')|list|length }} {{ m|rejectattr('n','gt',1)|list }} {{ l|sort }} {{ l|sort(reverse=true) }} {{ m|sort(attribute='n')|map(attribute='n')|list }}",
    "user,tool,user 2 [{'r': 'tool', 'n': 1}] [1, 2, 3] [3, 2, 1] [1, 2, 3]",
  ],
  [
    "{{ missing|default('D') }} {{ ''|default('D') }} {{ ''|default('D', true) }} {{ missing is defined }} {{ d.b is number }} {{ d is mapping }} {{ 'x' is string }} {{ l is iterable }} {{ none is none }}",
    'D  D False True True True True True',
  ],
  [
    "{{ 'a b  c'.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'aXbX'.replace('X','-',1) }} {{ 'x'.join(['1','2']) }} {{ 'hello world'|title }} {{ 'hELLO'|capitalize }} {{ 'abc'.startswith(('x','a')) }} {{ '{}-{k}'.format(1, k=2) }}",
    "['a', 'b', 'c'] ['a', 'b', '', 'c'] ['a', 'b,c'] ['a,b', 'c'] a-bX 1x2 Hello World Hello True 1-2",
  ],
  ["{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ 'a\\nb'|indent(2, true) }}", 'a\n  b\n\n  c|  a\n  b'],
  ['{% filter upper %}abc{% endfilter %}{% set z %}in {{ 1 }}{% endset %}[{{ z }}]', 'ABC[in 1]'],
  [
    "{{ 'user' in m|map(attribute='r') }} {{ 2 in l }} {{ 'b' in d }} {{ 'x' not in 'abc' }} {{ not l }} {{ l and 'yes' or 'no' }} {{ missing and 1 }}",
    'True True True True False yes ',
  ],
  [
    "{{ d.get('zz') }} {{ d.get('zz', 5) }} {{ d['1'] }} {{ d.items is defined }} {{ d['items'] is defined }} {{ m[0].zz is defined }}",
    'None 5 x True True False',
  ],
  [
    "{{ '7'|int + 1 }} {{ 'x'|int }} {{ '1.5'|float }} {{ 3.7|int }} {{ 2.5|round }} {{ [1,5,2]|max }} {{ [1,5,2]|min }} {{ [1,2]|sum }} {{ 'abc'|first }}{{ 'abc'|last }} {{ [1,1,2]|unique|list }} {{ 'abc'|reverse }}",
    '8 0 1.5 3 2.0 5 1 3 ac [1, 2] cba',
  ],
  [
    "{%- macro wrap(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call wrap('b') %}body{% endcall %}",
    '<b>body</b>',
  ],
  [
    "{{ range(3)|list }} {{ range(1,7,2)|list }} {{ 'ß'|upper }} {{ 'a%sb%d' % ('x', 3) }} {{ 'x' * 3 }} {{ [1] + [2] }} {{ 1 if false }}|",
    '[0, 1, 2] [1, 3, 5] SS axb3 xxx [1, 2] |',
  ],
  ["{{- '  a' -}}   b", '  ab'],
  ['   {% if true %}  c  {% endif %}  ', '  c    '],
  ['d', 'd'],
  ['{% if true %}\n  x\n{% endif %}\n  {% for i in [1,2] %}\n  {{ i }}\n  {% endfor %}\nend\n', '  x\n  1\n  2\nend'],
  ['a  {%- if true -%}  b  {%- endif -%}  c', 'abc'],
  ['{# note #}\nx{#- y -#}  z', 'xz'],
]

describe('as in Python', () => {
  test.each(FROM_PYTHON)('%s', (source, expected) => {
    expect(render(source)).toBe(expected)
  })
})

describe('faults have sentences', () => {
  test.each([
    ['{{ raise_exception("no " ~ 1) }}', 'no 1'],
    ['{{ nothing.more }}', "'nothing' is undefined"],
    ['{{ "a" + 1 }}', 'can only concatenate str (not "int") to str'],
    ['{{ "a" + nothing }}', "'nothing' is undefined"],
    ['{{ d.b() }}', "'dict' has no method 'b'"],
    ['{{ nothing() }}', "'nothing' is undefined"],
    ['{{ 1 | nonsense }}', "No filter named 'nonsense'."],
    ['{{ 1 is nonsense }}', "No test named 'nonsense'."],
    ['{% for x in 3 %}{% endfor %}', "'int' object is not iterable"],
    ['{% set d.x = 1 %}', 'cannot assign attribute on non-namespace object'],
    ['{% for a, b in [[1]] %}{% endfor %}', 'cannot unpack 1 values into 2 names'],
    ['{{ nothing | tojson }}', 'Object of type Undefined is not JSON serializable'],
    ['{{ 1 // 0 }}', 'division by zero'],
    ['{{ range(1000000) }}', 'range() of 1000000 is over 100000'],
    ['{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}', 'the template recurses too deep'],
  ])('%s', (source, sentence) => {
    expect(() => render(source)).toThrow(TemplateFault)
    expect(() => render(source)).toThrow(sentence)
  })

  test('what is no template is refused when it is compiled', () => {
    for (const source of ['{% if x %}', '{{ x', '{% nonsense %}', '{{ x | }}']) expect(() => render(source)).toThrow()
  })

  test('names of JavaScript objects are no names of a template', () => {
    const source =
      '{{ d.constructor is defined }}{{ "a".__proto__ is defined }}{{ d["toString"] is defined }}{{ constructor is defined }}'
    expect(render(source)).toBe('FalseFalseFalseFalse')
    expect(() => render('{{ 1 | constructor }}')).toThrow("No filter named 'constructor'.")
    expect(() => render('{{ 1 is toString }}')).toThrow("No test named 'toString'.")
  })
})

describe("a client's JSON", () => {
  test('keeps the order of keys and the spelling of numbers', () => {
    const text = '{"b": 1.0, "10": 1e5, "2": -0.50, "a": [12345678901234567890, 3], "__proto__": {"x": 1E-2}}'
    expect(printJson(parseJson(text))).toBe(text)
    expect(render('{{ v | tojson }} {{ v.b }} {{ v.b + 1 }} {{ v.b is number }}', [['v', parseJson(text)]])).toBe(
      `${text} 1.0 2.0 True`,
    )
  })

  test('is read with any white space and escapes, the last of two equal keys wins in the place of the first', () => {
    expect(printJson(parseJson(' {"a" :[ ] ,"b":\n{ },"c":"\\u00e9\\"\\\\","a":true} '))).toBe(
      '{"a": true, "b": {}, "c": "é\\"\\\\"}',
    )
  })

  test('is refused when it is none, or too deep', () => {
    for (const text of ['', '{', '[1,]', "{'a':1}", 'nul']) expect(() => parseJson(text)).toThrow(SyntaxError)
    expect(() => parseJson('['.repeat(100_000) + ']'.repeat(100_000))).toThrow(SyntaxError)
    expect(printJson(parseJson('['.repeat(200) + ']'.repeat(200)))).toHaveLength(400)
  })
})

test('strftime', () => {
  const date = new Date(2025, 2, 9, 14, 5, 6)
  expect(strftime(date, '%d %b %Y|%A, %B %-d|%Y-%m-%d %H:%M:%S|%I %p|%j|%y|%%|%Q')).toBe(
    '09 Mar 2025|Sunday, March 9|2025-03-09 14:05:06|02 PM|068|25|%|%Q',
  )
})
