// The scan against JSON.parse, and the memo against a scan without it: what is found is the same, however the body came.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { edited } from './body-edit.js'
import { BodyMemo } from './body-memo.js'
import { BodyScan, ROLES } from './body-scan.js'
import { lightBody } from './light-body.js'
import { segmentsOf } from './route-query.js'

function scanOf(text: string, memo?: BodyMemo): BodyScan {
  const scan = new BodyScan(Buffer.from(text), memo)
  memo?.keep(scan)
  return scan
}

const SPACES = ['', ' ', '\n', '\t ', '\r\n']

/** JSON text of `value` with space of any kind between its tokens. */
function spaced(value: unknown, pick: () => string): string {
  if (Array.isArray(value))
    return `[${pick()}${value.map((each) => spaced(each, pick)).join(`${pick()},${pick()}`)}${pick()}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const members = Object.entries(value).map(
    ([key, each]) => `${JSON.stringify(key)}${pick()}:${pick()}${spaced(each, pick)}`,
  )
  return `{${pick()}${members.join(`${pick()},${pick()}`)}${pick()}}`
}

describe('members', () => {
  test('are those that JSON.parse finds, in any spacing', () => {
    const objects = fc.dictionary(fc.string(), fc.jsonValue())
    const picks = fc.infiniteStream(fc.constantFrom(...SPACES))
    fc.assert(
      fc.property(objects, picks, (object, spaces) => {
        const text = spaced(object, () => spaces.next().value)
        const scan = scanOf(text)
        const parsed = JSON.parse(text)
        expect(new Set(scan.members.map(({ key }) => key))).toEqual(new Set(Object.keys(parsed)))
        for (const key of Object.keys(parsed)) expect(JSON.parse(scan.raw(key) as string)).toEqual(parsed[key])
        expect(text[Buffer.from(text).subarray(0, scan.close).toString().length]).toBe('}')
      }),
      { numRuns: 500 },
    )
  })

  test('of the same name: the last counts, escapes in keys too', () => {
    const scan = scanOf('{"model":"a","\\u006dodel":"b"}')
    expect(scan.raw('model')).toBe('"b"')
    expect(edited(scan, [{ key: 'model', json: '"c"' }]).toString()).toBe('{"model":"c","\\u006dodel":"c"}')
  })

  test.each([
    '',
    '[]',
    '{',
    '{"a"}',
    '{"a":}',
    '{"a":1,}',
    '{"a":1 "b":2}',
    '{"a":"b}',
    '{"a":[1,2}',
    '{"messages":[{"role":"user"}',
    '{"messages":[{"role":"user"} {"role":"user"}]}',
    '{"messages":[1,]}',
    '{} x',
    '{"a":"\\"}',
    'null',
  ])('are refused where the brackets are wrong: %s', (text) => {
    if (text === '{"a":[1,2}') expect(() => scanOf(text)).toThrow(/JSON/)
    else expect(() => scanOf(text)).toThrow(expect.objectContaining({ code: 'invalid_json' }))
  })

  test('garbage never loops or crashes otherwise', () => {
    const pieces = fc.constantFrom('{', '}', '[', ']', '"', '\\', ',', ':', ' ', 'a', '1', '"messages"', '"role"', 'é')
    fc.assert(
      fc.property(fc.array(pieces, { maxLength: 40 }), (parts) => {
        const memo = new BodyMemo(1 << 20)
        try {
          lightBody(scanOf(`{"messages":[${parts.join('')}`, memo))
        } catch (error) {
          expect(error).toMatchObject({ code: 'invalid_json' })
        }
      }),
      { numRuns: 3000 },
    )
  })
})

describe('messages', () => {
  test('their ranges and roles, wherever the role stands', () => {
    const messages = [
      { role: 'system', content: 'a "quoted" \\ text' },
      { content: '{"role":"assistant"}', role: 'user' },
      { role: 'assistant', tool_calls: [{ function: { arguments: '{"role":"tool"}' } }] },
      { role: 'tool', content: ']}' },
      { type: 'function_call_output', output: 'x' },
    ]
    const scan = scanOf(JSON.stringify({ tools: [], messages, stream: true }))
    const { starts, ends, roles } = scan.elements
    expect(starts.map((start, i) => JSON.parse(scan.bytes.toString('utf8', start, ends[i])))).toEqual(messages)
    expect(roles.map((role) => ROLES[role])).toEqual(['system', 'user', 'assistant', 'tool', 'other'])
  })
})

/** A conversation that grows as an agent's does, with its tools in front of or behind the messages. */
function turns(count: number, { toolsFirst = true, seed = 'x' } = {}): string[] {
  const tools = [{ type: 'function', function: { name: 'run', description: 'd'.repeat(700) } }]
  const messages: object[] = [
    { role: 'system', content: `You help. ${'s'.repeat(1500)}` },
    { role: 'user', content: `task ${seed}` },
  ]
  return Array.from({ length: count }, (_, turn) => {
    if (turn > 0) {
      messages.push(
        { role: 'assistant', content: `step ${turn} "q"` },
        { role: 'tool', content: `${turn}`.repeat(300) },
      )
    }
    const head = { model: 'm', stream: true }
    return JSON.stringify(toolsFirst ? { ...head, tools, messages } : { ...head, messages, tools, max_tokens: 5 })
  })
}

describe('the memo', () => {
  const same = (text: string, memo: BodyMemo) => {
    const [fresh, known] = [scanOf(text), scanOf(text, memo)]
    expect(known.members).toEqual(fresh.members)
    expect(known.elements).toEqual(fresh.elements)
    expect(known.close).toBe(fresh.close)
    expect(segmentsOf(known, 0.25)).toEqual(segmentsOf(fresh, 0.25))
    return known
  }

  test.each([true, false])('a growing conversation is read only where it is new (tools first: %s)', (toolsFirst) => {
    const memo = new BodyMemo(1 << 20)
    const known = turns(8, { toolsFirst }).map((text) => same(text, memo).known)
    expect(known).toEqual([0, 2, 4, 6, 8, 10, 12, 14])
    // One body a conversation is kept, the last one.
    expect(memo.bytes).toBeLessThan(8000)
  })

  test.each([
    ['another list', ',"input":[{"role":"user","content":"other"}]}'],
    ['the same again', ',"messages":[{"role":"user","content":"other"},{"role":"user","content":"more"}]}'],
  ])('of %s behind the known one nothing is known', (_, behind) => {
    const memo = new BodyMemo(1 << 20)
    const all = turns(8, { toolsFirst: true })
    for (const text of all) same(text, memo)
    const { known, knownBytes } = same(`${(all.at(-1) as string).slice(0, -1)}${behind}`, memo)
    expect([known, knownBytes]).toEqual([0, 0])
  })

  test('conversations with one head share it, and are not mixed up', () => {
    const memo = new BodyMemo(1 << 20)
    const [a, b] = [turns(5, { seed: 'a' }), turns(5, { seed: 'b' })]
    for (let i = 0; i < 5; i++) {
      same(a[i] as string, memo)
      const known = same(b[i] as string, memo).known
      if (i > 0) expect(known).toBe(2 * i)
    }
  })

  test('a message that was changed behind is seen; what stands in front of it is known', () => {
    const memo = new BodyMemo(1 << 20)
    const [first, second] = [turns(6)[5] as string, (turns(6)[5] as string).replace('step 5', 'STEP 5')]
    same(first, memo)
    expect(same(second, memo).known).toBe(10)
  })

  test('any edit anywhere gives what a scan without it gives', () => {
    const memo = new BodyMemo(1 << 20)
    const text = turns(6)[5] as string
    same(text, memo)
    fc.assert(
      fc.property(fc.nat(text.length - 1), fc.constantFrom('a', '"', '}', ']', ',', ' ', '\\'), (at, char) => {
        const changed = text.slice(0, at) + char + text.slice(at + 1)
        const outcome = (with_: BodyMemo | undefined) => {
          try {
            const { members, elements, close } = scanOf(changed, with_)
            return { members, elements, close }
          } catch (error) {
            return (error as Error).message.replace(/\d+/g, 'n')
          }
        }
        expect(outcome(memo)).toEqual(outcome(undefined))
      }),
      { numRuns: 1000 },
    )
  })

  test('its bytes are bounded', () => {
    const memo = new BodyMemo(20_000)
    for (let i = 0; i < 50; i++) scanOf(turns(3, { seed: `s${i}` })[2] as string, memo)
    expect(memo.bytes).toBeLessThanOrEqual(20_000)
    expect(memo.bytes).toBeGreaterThan(10_000)
  })
})

describe('segments', () => {
  test('chain over tools, system and messages; the head is counted', () => {
    const [first, second] = turns(3).slice(1)
    const [a, b] = [segmentsOf(scanOf(first as string), 0.25), segmentsOf(scanOf(second as string), 0.25)]
    expect(a.head).toBe(2)
    expect(b.hashes.slice(0, a.hashes.length)).toEqual(a.hashes)
    expect(b.tokens.slice(0, a.tokens.length)).toEqual(a.tokens)
    const other = segmentsOf(scanOf((first as string).replace('You help', 'You hope')), 0.25)
    expect(other.hashes[0]).toBe(a.hashes[0])
    expect(other.hashes[1]).not.toBe(a.hashes[1])
    expect(other.hashes.at(-1)).not.toBe(a.hashes.at(-1))
  })

  test('marks of where a cache ends are no part of them', () => {
    const plain = { messages: [{ role: 'user', content: [{ type: 'text', text: 'hello' }] }] }
    const marked = {
      messages: [
        { role: 'user', content: [{ type: 'text', text: 'hello', cache_control: { type: 'ephemeral', ttl: '1h' } }] },
      ],
    }
    const hashes = (value: object) => segmentsOf(scanOf(JSON.stringify(value)), 0.25).hashes
    expect(hashes(marked)).toEqual(hashes(plain))
  })

  test('of a plain prompt are pieces of it', () => {
    const prompt = 'word '.repeat(1000)
    const [a, b] = [scanOf(JSON.stringify({ prompt })), scanOf(JSON.stringify({ prompt: `${prompt}more` }))]
    const [x, y] = [segmentsOf(a, 0.25).hashes, segmentsOf(b, 0.25).hashes]
    expect(x).toHaveLength(5)
    expect(y.slice(0, 4)).toEqual(x.slice(0, 4))
    expect(y[4]).not.toBe(x[4])
  })
})

describe('edits', () => {
  test('leave every other byte alone', () => {
    const text = '{ "model": "a",\n "temperature": 1.50, "tools": [ {"x": 1e3} ], "messages": [ {"role":"user"} ] }'
    const scan = scanOf(text)
    const settings = [
      { key: 'model', json: '"b"' },
      { key: 'cache_salt', json: '"s"' },
    ]
    expect(edited(scan, settings, '{"role":"assistant"}').toString()).toBe(
      '{ "model": "b",\n "temperature": 1.50, "tools": [ {"x": 1e3} ], "messages": [ {"role":"user"},{"role":"assistant"} ] ,"cache_salt":"s"}',
    )
    expect(edited(scan, [])).toBe(scan.bytes)
    expect(edited(scanOf('{}'), [{ key: 'a', json: '1' }]).toString()).toBe('{"a":1}')
  })
})
