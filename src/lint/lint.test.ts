// Lint on logs that are made to break in known places, in every form that logs come in.

import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { lintCommand } from './command.js'
import { jsonElements, lines } from './json-elements.js'
import { LINT_DEFAULTS, Lint, type LintReport } from './lint.js'
import { Past } from './past.js'
import { promptOf } from './prompt-text.js'

interface Message {
  readonly role: string
  readonly content: unknown
  readonly [more: string]: unknown
}

const words = (word: string, count = 200) => `${word} `.repeat(count)
const tool = (name: string, description = words(name)) => ({ type: 'function', function: { name, description } })

/** The requests of one conversation of `turns`; `edit` changes each as it is sent. */
function conversation(turns: number, edit: (body: Body, turn: number) => Body = (body) => body): Body[] {
  const messages: Message[] = [{ role: 'system', content: words('rule') }]
  return Array.from({ length: turns }, (_, turn) => {
    messages.push({ role: 'user', content: words(`question${turn}`) })
    const body = { model: 'm', tools: ['read', 'write', 'grep'].map((name) => tool(name)), messages: [...messages] }
    messages.push({ role: 'assistant', content: words(`answer${turn}`), reasoning_content: words(`thought${turn}`) })
    return edit(body, turn)
  })
}

interface Body {
  readonly model: string
  readonly tools: readonly unknown[]
  readonly messages: readonly Message[]
}

function linted(records: readonly unknown[]): LintReport {
  const lint = new Lint()
  for (const record of records) lint.add(record)
  return lint.report()
}

const edited = (body: Body, index: number, message: object): Body => ({
  ...body,
  messages: body.messages.map((each, i) => (i === index ? { ...each, ...message } : each)),
})

describe('lint', () => {
  test('an append-only conversation breaks nothing, and hits all but what is new', () => {
    const bodies = conversation(6)
    const report = linted(bodies)
    const sizes = bodies.map((body) => Math.floor((promptOf(body)?.bytes ?? 0) / 4))
    const reusable = sizes.slice(0, -1).reduce((sum, size) => sum + size, 0)
    const all = sizes.reduce((sum, size) => sum + size, 0)
    expect(report.causes).toEqual([])
    expect(report.promptTokens).toBe(all)
    expect(report.hitRate16).toBeLessThanOrEqual(reusable / all)
    expect(report.hitRate16).toBeGreaterThan(reusable / all - (6 * 16) / all)
    expect(report.hitRate64).toBeGreaterThan(reusable / all - (6 * 64) / all)
    expect(report.hitRate64).toBeLessThanOrEqual(report.hitRate16)
  })

  test.each<[string, (body: Body, turn: number) => Body, object]>([
    [
      'a clock in the system prompt',
      (body, turn) => edited(body, 0, { content: `Rules. It is 12:0${turn} now. ${words('rule')}` }),
      { reason: 'system_changed', what: 'the system prompt', byte: 'Rules. It is 12:0'.length, isNumber: true },
    ],
    [
      'a tool that is edited',
      (body, turn) => ({ ...body, tools: [tool('read'), tool('write', words('write') + turn), tool('grep')] }),
      { reason: 'tools_changed', what: 'tools: write edited' },
    ],
    [
      'a tool that comes and goes',
      (body, turn) => ({ ...body, tools: turn % 2 === 0 ? body.tools : body.tools.slice(0, 2) }),
      { reason: 'tools_changed', what: 'tools: grep removed' },
    ],
    [
      'an old message that is edited',
      (body, turn) => (turn === 3 ? edited(body, 2, { content: `answer0 ${words('changed')}` }) : body),
      { reason: 'messages_changed', what: 'message 2 (assistant)', byte: 'answer0 '.length },
    ],
    [
      'reasoning that is left out',
      (body, turn) => (turn === 4 ? edited(body, 2, { reasoning_content: undefined }) : body),
      { reason: 'reasoning_dropped', what: 'reasoning of assistant messages' },
    ],
    [
      'white space',
      (body, turn) => (turn === 3 ? edited(body, 1, { content: words('question0').trim() }) : body),
      { reason: 'messages_changed', isBlank: true, mend: expect.stringContaining('byte for byte') },
    ],
    [
      'another model',
      (body, turn) => (turn === 3 ? { ...body, model: 'other' } : body),
      { reason: 'model_changed', what: 'the model: other' },
    ],
  ])('names %s', (_, edit, cause) => {
    // The first message may change too: the conversation has a name.
    const bodies = conversation(5, edit).map((body) => ({ ...body, prompt_cache_key: 'c' }))
    const report = linted(bodies)
    expect(report.causes[0]).toMatchObject(cause)
    expect(report.causes[0]?.lostTokens).toBeGreaterThan(100)
    expect(report.hitRateMended).toBeGreaterThan(report.hitRate64)
    expect(report.causes.reduce((sum, { lostTokens }) => sum + lostTokens, 0)).toBe(report.lostTokens)
  })

  test('the dearest comes first', () => {
    const clock = conversation(5, (body, turn) => edited(body, 0, { content: `${turn} ${words('rule')}` }))
    const edit = conversation(5, (body, turn) => (turn === 4 ? edited(body, 7, { content: 'x' }) : body))
    const report = linted([...clock.map((body) => ({ ...body, prompt_cache_key: 'a' })), ...edit])
    expect(report.causes.map(({ reason }) => reason)).toEqual(['system_changed', 'messages_changed'])
  })

  test('cache markers move without breaking anything; Anthropic bodies, batches, headers', () => {
    const text = (content: string, more = {}) => ({ type: 'text', text: content, ...more })
    const mark = { cache_control: { type: 'ephemeral' } }
    const body = (count: number) => ({
      model: 'm',
      system: [text(words('rule'), mark)],
      tools: [{ name: 'read', input_schema: {}, ...(count === 1 ? mark : {}) }],
      messages: Array.from({ length: count }, (_, i) => ({
        role: i % 2 === 0 ? 'user' : 'assistant',
        content: [text(words(`m${i}`), i === count - 1 ? mark : {})],
      })),
    })
    const report = linted([
      body(1),
      { custom_id: 'x', params: body(3) },
      { method: 'POST', body: JSON.stringify(body(5)) },
      { request: { headers: { 'X-Refrain-Session': 's' }, body: body(7) } },
    ])
    expect([report.requests, report.skipped, report.causes]).toEqual([4, 0, []])
    expect(report.hitRate16).toBeGreaterThan(0.5)
  })

  test('two conversations that begin alike are not one that broke', () => {
    const other = conversation(3, (body) =>
      body.messages.length > 2 ? edited(body, 2, { content: 'elsewise' }) : body,
    )
    expect(linted([...conversation(5), ...other]).causes).toEqual([])
  })

  test('tokens are counted where somebody counts them, of new text only', () => {
    let counted = 0
    const counter = {
      name: 'words',
      count(text: string) {
        counted += text.length
        return text.split(' ').length
      },
    }
    const lint = new Lint({ ...LINT_DEFAULTS, counter })
    const bodies = conversation(6)
    for (const body of bodies) lint.add(body)
    const report = lint.report()
    expect(report).toMatchObject({ tokensAreEstimated: false, tokenizer: 'words', causes: [] })
    // Tools, rule, and of each turn a question, an answer and a thought of 201 words; 4 for each frame.
    const tools = bodies[0]?.tools.map((each) => JSON.stringify(each).split(' ').length + 4) ?? []
    const head = tools.reduce((all, each) => all + each, 0) + 205
    const turns = [0, 1, 2, 3, 4, 5].map((turn) => head + 205 + turn * (205 + 406))
    expect(report.promptTokens).toBe(turns.reduce((all, each) => all + each, 0))
    const reused = turns.slice(0, -1).reduce((all, each) => all + each - (each % 16), 0)
    expect(report.hitRate16).toBeCloseTo(reused / report.promptTokens, 10)
    const last = JSON.stringify(bodies.at(-1)).length
    expect(counted).toBeLessThan(1.1 * last)
  })

  test('where a text parts is counted too', () => {
    const counter = { name: 'words', count: (text: string) => text.split(' ').length }
    const lint = new Lint({ ...LINT_DEFAULTS, counter })
    const edit = (body: Body, turn: number) =>
      turn === 3 ? edited(body, 2, { content: `answer0 ${words('x')}` }) : body
    for (const body of conversation(4, edit)) lint.add(body)
    const [cause] = lint.report().causes
    // From the first answer on, in the third turn's prompt, but for its thought and one word of its text.
    const [answer, question] = [406, 205]
    expect(cause).toMatchObject({
      what: 'message 2 (assistant)',
      lostTokens: answer + question + answer + question - 202,
    })
  })

  test('what is kept of the past is bounded', () => {
    const past = new Past(20_000)
    const first = promptOf({ messages: [{ role: 'user', content: words('first', 500) }] })!
    past.add(first)
    for (let i = 0; i < 20; i++) past.add(promptOf({ messages: [{ role: 'user', content: words(`w${i}`, 500) }] })!)
    expect(past.add(first)).toMatchObject({ before: undefined, shared: { bytes: 0 } })
    expect(past.add(first).before).toBe(first)
  })
})

describe('records', () => {
  const inPieces = async function* (text: string, size: number) {
    const bytes = Buffer.from(text)
    for (let i = 0; i < bytes.length; i += size) yield bytes.subarray(i, i + size)
  }
  const all = async (from: AsyncIterable<Buffer>) => {
    const found: string[] = []
    for await (const each of from) found.push(each.toString('utf8'))
    return found
  }

  test('any list in any pieces: the elements that JSON.parse finds', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.jsonValue(), { maxLength: 6 }),
        fc.integer({ min: 1, max: 40 }),
        async (list, size) => {
          const text = JSON.stringify({ log: { pages: 'a "quoted \\" one', entries: list } }, undefined, size % 3)
          const found = await all(jsonElements(inPieces(text, size), { key: '"entries"', mostBytes: 1e6 }))
          expect(found.map((each) => JSON.parse(each))).toEqual(JSON.parse(JSON.stringify(list)))
        },
      ),
    )
  })

  test('any lines in any pieces', async () => {
    const line = fc.string({ minLength: 2, unit: fc.constantFrom('a', 'é', '{', '"') })
    await fc.assert(
      fc.asyncProperty(fc.array(line), fc.integer({ min: 1, max: 9 }), async (list, size) => {
        expect(await all(lines(inPieces(list.join('\n'), size), 1e6))).toEqual(list)
      }),
    )
  })

  test('too long a record is refused', async () => {
    await expect(all(lines(inPieces('x'.repeat(100), 10), 50))).rejects.toThrow(/longer than 50 bytes/)
    const list = jsonElements(inPieces(`["${'x'.repeat(100)}"]`, 10), { key: undefined, mostBytes: 50 })
    await expect(all(list)).rejects.toThrow(/longer than 50 bytes/)
  })
})

describe('refrain lint', () => {
  let folder: string
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'refrain-lint-'))
  })
  afterAll(() => rm(folder, { recursive: true }))
  const file = async (name: string, text: string) => {
    await writeFile(join(folder, name), text)
    return join(folder, name)
  }
  const clock = conversation(5, (body, turn) => edited(body, 0, { content: `12:0${turn} ${words('rule')}` }))

  test('JSON lines, a JSON list and a HAR file say the same', async () => {
    const entry = (body: unknown) => ({ request: { headers: [], postData: { text: JSON.stringify(body) } } })
    const har = { log: { version: '1.2', pages: [], entries: [...clock.map(entry), { request: { method: 'GET' } }] } }
    const paths = await Promise.all([
      file('a.jsonl', `${clock.map((body) => JSON.stringify(body)).join('\n')}\nno json\n`),
      file('a.json', JSON.stringify([...clock, {}], undefined, 1)),
      file('a.har', JSON.stringify(har)),
    ])
    const reports = await Promise.all(paths.map((path) => lintCommand(path, { json: true })))
    expect(JSON.parse(reports[0]!)).toMatchObject({ requests: 5, skipped: 1, causes: [{ reason: 'system_changed' }] })
    expect(reports[1]).toBe(reports[0])
    expect(reports[2]).toBe(reports[0])
  })

  test('the text names cause, cost and mend, and that tokens are estimated', async () => {
    const path = await file('t.jsonl', clock.map((body) => JSON.stringify(body)).join('\n'))
    const text = await lintCommand(path, {})
    expect(text).toContain('(estimated from bytes)')
    expect(text).toMatch(
      /1\. the system prompt: system_changed, a clock or a counter\n {3}about [\d,]+ tokens lost in 4 requests/,
    )
    expect(text).toContain('mend: take the clock or counter out')
  })

  test.each([
    ['empty.jsonl', '{"a":1}\n{"b":2}\n', {}, /none of 2 records is a request/],
    ['trace.json', '{"block_size":64,"requests":[{"hash_ids":[1]}]}', {}, /refrain bench simulate/],
    ['ok.jsonl', '{"messages":[{"role":"user","content":"x"}]}', { bytesPerToken: '-1' }, /--bytes-per-token: '-1'/],
  ])('refuses %s', async (name, text, flags, complaint) => {
    await expect(lintCommand(await file(name, text), flags)).rejects.toThrow(complaint)
  })

  const tau = fileURLToPath(new URL('../../../shared/data/tau-airline/sessions_40.jsonl', import.meta.url))
  test.skipIf(!existsSync(tau))(
    'real sessions, append only: nothing breaks and nine tenths are there (needs ../shared)',
    () => {
      const lint = new Lint(LINT_DEFAULTS)
      for (const line of readFileSync(tau, 'utf8').trim().split('\n')) {
        const { id, trial, messages } = JSON.parse(line) as { id: number; trial: number; messages: Message[] }
        for (const [i, { role }] of messages.entries()) {
          if (role === 'assistant') lint.add({ messages: messages.slice(0, i), session_id: `${id}-${trial}` })
        }
      }
      const { causes, hitRate64 } = lint.report()
      expect(causes).toEqual([])
      expect(hitRate64).toBeGreaterThan(0.9)
    },
  )
})
