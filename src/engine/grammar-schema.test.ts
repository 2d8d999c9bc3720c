// JSON under a schema: what random walks under the masks give is valid for an independent validator, what valid texts
// there are is taken, and what cannot be enforced is refused by name.

import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
import { afterAll, describe, expect, test } from 'vitest'
import { awkwardVocabulary, takes, walk } from '../testing/grammar-walk.js'
import { type Random, seeded } from '../testing/random.js'
import { createGrammars, GRAMMAR_LIMITS } from './grammar.js'

const vocabulary = awkwardVocabulary()
const grammars = createGrammars(vocabulary, { ...GRAMMAR_LIMITS, compileMs: 60_000 })
afterAll(() => grammars.close())

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

async function compile(schema: unknown) {
  return grammars.compile({ kind: 'json-schema', schema: JSON.stringify(schema) })
}

/** Every walk that ends gives valid UTF-8, JSON in one layout, and a value that the schema allows. Returns the texts. */
async function walkAll(schema: object | boolean, random: Random, walks: number): Promise<string[]> {
  const grammar = await compile(schema)
  const validate = new Ajv2020({ strict: false, validateFormats: false }).compile(schema)
  const texts: string[] = []
  for (let i = 0; i < walks; i++) {
    const { bytes, complete } = walk(grammar, vocabulary, random)
    if (!complete) continue
    const text = utf8.decode(bytes)
    const value: unknown = JSON.parse(text)
    expect(validate(value), `${text} under ${JSON.stringify(schema)}: ${JSON.stringify(validate.errors)}`).toBe(true)
    texts.push(text)
  }
  return texts
}

const person = {
  type: 'object',
  properties: {
    name: { type: 'string' },
    age: { type: 'integer' },
    tags: { type: 'array', items: { type: 'string' } },
  },
  required: ['name', 'age'],
}

/** Schemas that are enforced, each with texts that must be taken and texts that must not. */
const enforced: Record<string, { schema: object | boolean; yes: string[]; no: string[] }> = {
  anything: {
    schema: {},
    yes: ['null', '[1, {"a": "b"}]', '-1.5e3', '"\\u00e9 é"'],
    no: ['[1,2]', '01', '"\\ud800"', ' 1'],
  },
  'true is anything': { schema: true, yes: ['0', '{}'], no: ['nul'] },
  'an open object': { schema: { type: 'object' }, yes: ['{}', '{"a": [1, 2]}'], no: ['[]', '{ }'] },
  'an object': {
    schema: person,
    yes: ['{"name": "é", "age": 3}', '{"name": "", "age": 0, "tags": []}'],
    no: ['{}', '{"age": 3}', '{"name": "a", "age": 1.5}', '{"name": "a", "age": 1, "x": 1}'],
  },
  'optional properties': {
    schema: { type: 'object', properties: { a: { const: 1 }, b: { const: 2 }, c: { const: 3 } } },
    yes: ['{}', '{"a": 1}', '{"b": 2, "c": 3}', '{"a": 1, "c": 3}'],
    no: ['{"c": 3, "a": 1}', '{, "b": 2}'],
  },
  'extra properties': {
    schema: {
      type: 'object',
      properties: { a: { type: 'integer' }, abc: { type: 'null' } },
      additionalProperties: { type: 'boolean' },
    },
    yes: ['{"a": 1, "b": true}', '{"ab": true}', '{"": true, "abcd": false}'],
    no: ['{"a": true}', '{"b": 1}', '{"abc": true}'],
  },
  'required but unnamed': {
    schema: { type: 'object', properties: { a: { type: 'integer' } }, required: ['z'] },
    yes: ['{"z": [1]}', '{"a": 1, "z": 0}'],
    no: ['{"a": 1}'],
  },
  'keys that need escapes': {
    schema: {
      type: 'object',
      properties: { 'a"b\\c\né😀': { type: 'integer' }, __proto__x: { const: 1 } },
      required: ['a"b\\c\né😀'],
    },
    yes: ['{"a\\"b\\\\c\\né😀": 5}'],
    no: ['{}'],
  },
  'a map': {
    schema: { type: 'object', additionalProperties: { type: 'integer' }, minProperties: 1, maxProperties: 2 },
    yes: ['{"x": 1}', '{"x": 1, "y": 2}'],
    no: ['{}', '{"x": 1, "y": 2, "z": 3}', '{"x": "1"}'],
  },
  'keys by pattern': {
    schema: { type: 'object', patternProperties: { '^x[a-z]$': { type: 'integer' } }, additionalProperties: false },
    yes: ['{}', '{"xa": 1}'],
    no: ['{"ya": 1}', '{"xab": 1}'],
  },
  'keys by name': {
    schema: { type: 'object', propertyNames: { enum: ['a', 'b'] }, additionalProperties: { type: 'null' } },
    yes: ['{"a": null}'],
    no: ['{"c": null}'],
  },
  'no properties': { schema: { type: 'object', additionalProperties: false }, yes: ['{}'], no: ['{"a": 1}'] },
  array: {
    schema: { type: 'array', items: { type: 'integer' }, minItems: 1, maxItems: 3 },
    yes: ['[1]', '[1, 2, 3]'],
    no: ['[]', '[1, 2, 3, 4]'],
  },
  tuple: {
    schema: { type: 'array', prefixItems: [{ type: 'integer' }, { type: 'string' }], items: false, minItems: 1 },
    yes: ['[1]', '[1, "a"]'],
    no: ['[]', '["a"]', '[1, "a", 2]'],
  },
  'tuple and more': {
    schema: { type: 'array', prefixItems: [{ type: 'integer' }], items: { type: 'boolean' }, minItems: 2, maxItems: 3 },
    yes: ['[1, true]', '[1, true, false]'],
    no: ['[1]', '[1, 2]'],
  },
  enum: {
    schema: { enum: ['a', 1, null, { b: [2, 'x'] }, 'é"\\'] },
    yes: ['"a"', '{"b": [2, "x"]}', '"é\\"\\\\"'],
    no: ['"b"', '2'],
  },
  'enum of a type': {
    schema: { type: 'string', enum: ['a', 1, 'long'], maxLength: 2 },
    yes: ['"a"'],
    no: ['1', '"long"'],
  },
  const: { schema: { const: { a: [1, 'x"y\n'] } }, yes: ['{"a": [1, "x\\"y\\n"]}'], no: ['{}'] },
  types: { schema: { type: ['string', 'null', 'integer', 'number'] }, yes: ['null', '1.5', '"x"'], no: ['true'] },
  'an integer between': {
    schema: { type: 'integer', minimum: -3, exclusiveMaximum: 117 },
    yes: ['-3', '0', '116'],
    no: ['-4', '117', '1.0', '-0'],
  },
  'a number between': {
    schema: { type: 'number', exclusiveMinimum: 0, maximum: 1.25 },
    yes: ['0.001', '1', '1.25', '0.99'],
    no: ['0', '0.00', '1.26', '1e-3', '-1'],
  },
  'steps of one': { schema: { type: 'number', multipleOf: 1 }, yes: ['7'], no: ['7.5'] },
  'a short string': {
    schema: { type: 'string', minLength: 2, maxLength: 4 },
    yes: ['"ab"', '"\\n\\u00e9"', '"😀世éa"'],
    no: ['""', '"a"', '"abcde"', '"\\ud83d\\ude00"'],
  },
  'a long string': {
    schema: { type: 'string', minLength: 40 },
    yes: [`"${'é'.repeat(40)}"`, `"${'a'.repeat(99)}"`],
    no: [`"${'é'.repeat(39)}"`],
  },
  'not empty': { schema: { type: 'string', minLength: 1 }, yes: ['"a"', '"\\""'], no: ['""'] },
  'a pattern': { schema: { type: 'string', pattern: '^[a-c]{2}\\d$' }, yes: ['"ab1"'], no: ['"ab"', '"abc1"'] },
  'a pattern anywhere': { schema: { type: 'string', pattern: 'b+' }, yes: ['"abbc"', '"b"', '"\\"b"'], no: ['"ac"'] },
  'a pattern of what JSON escapes': {
    schema: { type: 'string', pattern: '^["\\\\\\n]{2}.$' },
    yes: ['"\\"\\\\x"', '"\\n\\n\\""'],
    no: ['"ab"'],
  },
  'a pattern that implies its length': {
    schema: { type: 'string', pattern: '^[a-z]{2,3}$', maxLength: 5, minLength: 1 },
    yes: ['"abc"'],
    no: ['"abcd"'],
  },
  anyOf: {
    schema: {
      anyOf: [{ type: 'integer' }, { type: 'object', properties: { k: { const: 1 } }, required: ['k'] }, false],
    },
    yes: ['5', '{"k": 1}'],
    no: ['"5"', '{}'],
  },
  'anyOf beside others': {
    schema: {
      type: 'object',
      properties: { a: { type: 'integer' }, b: { type: 'null' } },
      anyOf: [{ required: ['a'] }, { required: ['b'] }],
    },
    yes: ['{"a": 1}', '{"b": null}', '{"a": 1, "b": null}'],
    no: ['{}'],
  },
  'oneOf of different kinds': {
    schema: {
      oneOf: [
        { type: 'object', properties: { t: { const: 'a' }, x: { type: 'integer' } }, required: ['t', 'x'] },
        { type: 'object', properties: { t: { const: 'b' } }, required: ['t'] },
      ],
    },
    yes: ['{"t": "a", "x": 1}', '{"t": "b"}'],
    no: ['{"t": "a"}'],
  },
  allOf: {
    schema: {
      allOf: [
        { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] },
        { type: 'object', properties: { a: { minimum: 5 }, b: { type: 'null' } }, required: ['b'] },
      ],
    },
    yes: ['{"a": 5, "b": null}'],
    no: ['{"a": 4, "b": null}', '{"a": 5}'],
  },
  'allOf with a closed part': {
    schema: {
      type: 'object',
      allOf: [{ properties: { a: { type: 'null' } }, additionalProperties: false }, { properties: { a: {}, b: {} } }],
    },
    yes: ['{}', '{"a": null}'],
    no: ['{"b": 1}'],
  },
  'allOf, unevaluated': {
    schema: { type: 'object', allOf: [{ properties: { a: { type: 'null' } } }], unevaluatedProperties: false },
    yes: ['{"a": null}', '{}'],
    no: ['{"b": 1}'],
  },
  $ref: {
    schema: {
      $defs: { 'x/y z': { type: 'integer' } },
      type: 'object',
      properties: { q: { $ref: '#/$defs/x~1y%20z' } },
      required: ['q'],
    },
    yes: ['{"q": 3}'],
    no: ['{"q": "3"}'],
  },
  '$ref beside others': {
    schema: { definitions: { x: { type: 'integer' } }, $ref: '#/definitions/x', minimum: 5 },
    yes: ['5'],
    no: ['4'],
  },
  'a tree': {
    schema: {
      $defs: {
        n: {
          type: 'object',
          properties: { v: { type: 'integer' }, l: { anyOf: [{ $ref: '#/$defs/n' }, { type: 'null' }] } },
          required: ['v', 'l'],
        },
      },
      $ref: '#/$defs/n',
    },
    yes: ['{"v": 1, "l": {"v": 2, "l": null}}'],
    no: ['{"v": 1}', '{"v": 1, "l": {"v": 2}}'],
  },
  'a part that nothing satisfies': {
    schema: {
      $defs: { no: { allOf: [{ type: 'string' }, { type: 'null' }] } },
      type: 'object',
      properties: { a: { $ref: '#/$defs/no' }, b: { type: 'array', items: { $ref: '#/$defs/no' } } },
    },
    yes: ['{}', '{"b": []}'],
    no: ['{"a": null}', '{"b": [null]}'],
  },
  'no type but a keyword': {
    schema: { properties: { a: { type: 'integer' } }, required: ['a'] },
    yes: ['{"a": 0}'],
    no: ['{}'],
  },
  annotations: {
    schema: { type: 'boolean', title: 'x', description: 'y', default: true, examples: [1], 'x-own': {} },
    yes: ['true'],
    no: ['1'],
  },
}

describe('a schema', () => {
  for (const [name, { schema, yes, no }] of Object.entries(enforced)) {
    test(`${name}`, async () => {
      const grammar = await compile(schema)
      for (const text of yes) expect(takes(grammar, vocabulary, text), text).toBe(true)
      for (const text of no) expect(takes(grammar, vocabulary, text), text).toBe(false)
      const texts = await walkAll(schema, seeded(3), 15)
      expect(texts.length).toBeGreaterThan(0)
    })
  }
})

test('formats give what their checkers accept', async () => {
  const checks: Record<string, (text: string) => boolean> = {
    date: (text) => new Date(`${text}T00:00:00Z`).toISOString().startsWith(text),
    'date-time': (text) =>
      /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/.test(text) && !Number.isNaN(Date.parse(text)),
    time: (text) => !Number.isNaN(Date.parse(`2020-01-01T${text}`)),
    uuid: (text) => /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i.test(text),
    ipv4: (text) => text.split('.').every((part) => String(Number(part)) === part && Number(part) < 256),
    ipv6: (text) => URL.canParse(`http://[${text}]/`),
    hostname: (text) => /^[a-z\d]([a-z\d-]*[a-z\d])?(\.[a-z\d]([a-z\d-]*[a-z\d])?)*$/i.test(text),
    email: (text) => /^[^@\s"]+@[^@\s"]+\.[^@\s"]+$/.test(text),
    uri: (text) => /^[a-z][a-z\d+-]*:\/\/[\w.-]+[\w./~?=&-]*$/i.test(text),
    duration: (text) => /^P(?!$)(\d+W|(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)$/.test(text),
    'of-our-own': () => true,
  }
  for (const [format, check] of Object.entries(checks)) {
    const texts = await walkAll({ type: 'string', format }, seeded(5), 10)
    expect(texts.length, format).toBeGreaterThan(0)
    for (const text of texts) expect(check(JSON.parse(text)), `${format}: ${text}`).toBe(true)
  }
})

test('json_object: any object and nothing else', async () => {
  const grammar = await grammars.compile({ kind: 'json' })
  for (const text of ['{}', '{"a": {"b": [1, "x", null]}}']) expect(takes(grammar, vocabulary, text), text).toBe(true)
  for (const text of ['[]', '1', '', '{"a"}', '{\n}', '{"a":  1}'])
    expect(takes(grammar, vocabulary, text), text).toBe(false)
  for (let seed = 0; seed < 20; seed++) {
    const { bytes, complete } = walk(grammar, vocabulary, seeded(seed))
    if (complete) expect(typeof JSON.parse(utf8.decode(bytes))).toBe('object')
  }
})

describe('what cannot be enforced is refused by name', () => {
  const refused: [string, unknown][] = [
    ["'not' cannot", { type: 'integer', not: { const: 1 } }],
    ["'if' cannot", { type: 'object', properties: { a: { if: {} } } }],
    ["'uniqueItems' cannot", { type: 'array', uniqueItems: true }],
    ["'contains' cannot", { type: 'array', contains: { const: 7 } }],
    ["'multipleOf' cannot", { type: 'integer', multipleOf: 5 }],
    ["'dependentRequired' cannot", { type: 'object', dependentRequired: { a: ['b'] } }],
    ["'propertyNames' beside named", { properties: { a: {} }, propertyNames: { pattern: 'a' } }],
    ["'minProperties' or 'maxProperties' beside", { properties: { a: {} }, minProperties: 1 }],
    ["'minProperties' above 1", { type: 'object', minProperties: 2 }],
    ["'pattern' with lengths", { type: 'string', pattern: '^a+$', maxLength: 3 }],
    ["'pattern' beside enum", { enum: ['a'], pattern: 'a' }],
    ["'pattern' is restricted in two ways", { allOf: [{ pattern: 'a' }, { pattern: 'b' }] }],
    ['looking ahead', { type: 'string', pattern: '(?=x)' }],
    ["'foo' is not a type", { type: 'foo' }],
    ["'$ref' names #/nope", { $ref: '#/nope' }],
    ["'$ref' must begin with #/", { $ref: 'http://example.com/x' }],
    ['no value satisfies', { type: 'integer', minimum: 5, maximum: 2 }],
    ['no value satisfies', false],
    ['no value satisfies', { enum: [] }],
    ['no text satisfies', { $ref: '#' }],
    ['no text satisfies', { $defs: { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } }, $ref: '#/$defs/a' }],
    ['nested deeper', { $defs: { a: { allOf: [{ $ref: '#/$defs/a' }, { type: 'null' }] } }, $ref: '#/$defs/a' }],
    ["'minItems' has a wrong value", { minItems: -1 }],
    ["'enum' has a wrong value", { allOf: [{ enum: 1 }, { enum: 2 }] }],
    ["'exclusiveMinimum' has a wrong value", { minimum: 1, exclusiveMinimum: true }],
    ['neither an object nor a boolean', { properties: { a: 5 } }],
    ['neither an object nor a boolean', [1]],
  ]
  test.each(refused)('%s', async (sentence, schema) => {
    await expect(compile(schema)).rejects.toMatchObject({ code: 'invalid_grammar', param: 'response_format' })
    await expect(compile(schema)).rejects.toThrow(sentence)
  })

  test('the place is named', async () => {
    const schema = { properties: { 'a/b': { items: { uniqueItems: true } } } }
    await expect(compile(schema)).rejects.toThrow("schema at #/properties/a~1b/items: 'uniqueItems'")
  })
})

describe('hostile schemas end in an error', () => {
  const hostile: Record<string, () => string> = {
    'not JSON': () => '{"type": "strin',
    'too long': () => JSON.stringify({ const: 'x'.repeat(300_000) }),
    'deep JSON': () => `{"const": ${'['.repeat(5000)}${']'.repeat(5000)}}`,
    'deep schemas': () => JSON.stringify(Array.from({ length: 70 }).reduce<object>((items) => ({ items }), {})),
    'unions of unions': () => {
      const many = (n: number) => Array.from({ length: n }, (_, i) => ({ properties: { [`p${i}`]: {} } }))
      return JSON.stringify({ allOf: [{ anyOf: many(500) }, { anyOf: many(500) }, { anyOf: many(500) }] })
    },
    'doubling references': () => {
      const $defs = Object.fromEntries(
        Array.from({ length: 40 }, (_, i) => {
          const next = { $ref: `#/$defs/d${i + 1}`, title: 'x', minItems: 0 }
          return [`d${i}`, { type: 'array', prefixItems: [next, next] }]
        }),
      )
      return JSON.stringify({ $defs: { ...$defs, d40: {} }, $ref: '#/$defs/d0', minItems: 0 })
    },
    'too many lengths': () =>
      JSON.stringify({ prefixItems: Array.from({ length: 80 }, (_, i) => ({ type: 'string', maxLength: i })) }),
  }
  for (const [name, text] of Object.entries(hostile)) {
    test(name, async () => {
      const started = performance.now()
      await expect(grammars.compile({ kind: 'json-schema', schema: text() })).rejects.toMatchObject({
        code: 'invalid_grammar',
      })
      expect(performance.now() - started).toBeLessThan(5000)
    })
  }
})

test('schemas at random: every walk is valid', async () => {
  const count = (max: number) => fc.option(fc.nat(max), { nil: undefined })
  const { schema } = fc.letrec<{ schema: object }>((tie) => ({
    schema: fc.oneof(
      { depthSize: 'small', withCrossShrink: true },
      fc.constantFrom<object>({}, { type: 'null' }, { type: 'boolean' }, { type: ['string', 'integer'] }),
      fc.record({
        type: fc.constant('string'),
        minLength: count(3),
        maxLength: fc.option(fc.integer({ min: 3, max: 9 }), { nil: undefined }),
      }),
      fc.record({
        type: fc.constantFrom('integer', 'number'),
        minimum: fc.option(fc.integer({ min: -50, max: 0 }), { nil: undefined }),
        exclusiveMaximum: fc.option(
          fc.integer({ min: 1, max: 99 }).map((n) => n / 4),
          { nil: undefined },
        ),
      }),
      fc.record({ enum: fc.array(fc.jsonValue(), { minLength: 1, maxLength: 3 }) }),
      fc.record({
        type: fc.constant('array'),
        items: tie('schema'),
        minItems: count(2),
        maxItems: fc.option(fc.integer({ min: 2, max: 4 }), { nil: undefined }),
      }),
      fc.record({
        type: fc.constant('array'),
        prefixItems: fc.array(tie('schema'), { minLength: 1, maxLength: 3 }),
        items: fc.constantFrom(false, { type: 'null' }),
        minItems: count(1),
      }),
      fc.record({ anyOf: fc.array(tie('schema'), { minLength: 1, maxLength: 3 }) }),
      fc.record({
        type: fc.constant('object'),
        properties: fc.dictionary(fc.constantFrom('a', 'ab', 'b', 'é', '"', ''), tie('schema'), { maxKeys: 3 }),
        required: fc.uniqueArray(fc.constantFrom('a', 'ab', 'c'), { maxLength: 2 }),
        additionalProperties: fc.option(fc.oneof(fc.boolean(), tie('schema')), { nil: undefined }),
      }),
      fc.record({
        allOf: fc.array(
          fc.record({ properties: fc.dictionary(fc.constantFrom('a', 'b'), tie('schema'), { maxKeys: 2 }) }),
          { minLength: 1, maxLength: 2 },
        ),
        type: fc.constant('object'),
      }),
    ),
  }))
  await fc.assert(
    fc.asyncProperty(schema, fc.nat(), async (one, seed) => {
      const plain = JSON.parse(JSON.stringify(one)) as object
      try {
        await walkAll(plain, seeded(seed), 6)
      } catch (error) {
        // Parts are put together blindly; what contradicts itself must say so.
        if (!/no value satisfies|cannot be enforced/.test(String(error))) throw error
      }
    }),
    { numRuns: 80, seed: 11 },
  )
})
