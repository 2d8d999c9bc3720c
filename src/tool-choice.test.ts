// What may be called, held by the decoder: every form of calls against its own grammar, and the whole program with a toy
// model and, where it was pulled, the real one. Whatever is chosen, the prompt is the same, so the cache hits.

import { createHash } from 'node:crypto'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Constraint, ToolChoice, ToolDefinition } from './core/request.js'
import { createGrammars, GRAMMAR_LIMITS } from './engine/grammar.js'
import { callConstraint } from './prompt/call-constraint.js'
import type { ToolCallFormat } from './prompt/tool-calls/contract.js'
import * as toolCallFormats from './prompt/tool-calls/index.js'
import { awkwardVocabulary, takes, walk } from './testing/grammar-walk.js'
import { pulledSmolLm2 } from './testing/imported-model.js'
import { seeded } from './testing/random.js'
import { isBuilt, type Served, serve } from './testing/served.js'
import { sharesImports } from './testing/shared-imports.js'
import { writeToyModel } from './testing/toy-model.js'

const toolNamed = (name: string, mode = 'fast'): object => ({
  type: 'function',
  function: {
    name,
    description: `Does ${name}.`,
    parameters: {
      type: 'object',
      properties: { mode: { enum: [mode, 'slow'] }, deep: { type: 'boolean' } },
      required: ['mode'],
    },
  },
})
const names = ['browser_open', 'browser_close', 'shell']
const tools = names.map((name) => toolNamed(name))
const definitions: ToolDefinition[] = tools.map((tool, i) => ({ name: names[i]!, json: JSON.stringify(tool) }))

describe('every form of calls', () => {
  const vocabulary = awkwardVocabulary()
  const grammars = createGrammars(vocabulary, { ...GRAMMAR_LIMITS, compileMs: 60_000 })
  afterAll(() => grammars.close())

  const constraintOf = (format: ToolCallFormat, toolChoice: ToolChoice): Constraint => {
    const prompt = { kind: 'chat', messages: [], tools: definitions } as const
    const formats = { specials: [], callStructure: format.calls, callTrigger: format.trigger }
    return callConstraint({ request: { prompt, toolChoice }, formats, tail: '' })!
  }

  /** What a decoder writes that has to call. */
  async function callsOf(format: ToolCallFormat, choice: ToolChoice, seeds: number): Promise<string[]> {
    const grammar = await grammars.compile(constraintOf(format, choice))
    const walks = Array.from({ length: seeds }, (_, seed) => walk(grammar, vocabulary, seeded(seed)))
    return walks.flatMap(({ bytes, complete }) => (complete ? [bytes.toString()] : []))
  }

  const named = (format: ToolCallFormat, text: string) => {
    const parser = format.create({}, { tools: definitions })
    return [parser.push(text), parser.end()].flatMap(({ calls }) => calls).map(({ name }) => name)
  }

  test.each(Object.entries(toolCallFormats).filter(([name]) => name !== 'none'))(
    '%s',
    async (_, format) => {
      const browser = { allowed: ['browser_*'] }
      const required = await callsOf(format, { mode: 'required', ...browser }, 16)
      expect(required.length).toBeGreaterThan(2)
      for (const text of required) {
        const called = named(format, text)
        expect(called.length, text).toBeGreaterThan(0)
        for (const name of called) expect(name).toMatch(/^browser_/)
      }
      const auto = await grammars.compile(constraintOf(format, { mode: 'auto', ...browser }))
      const none = await grammars.compile(constraintOf(format, { mode: 'none' }))
      const single = await grammars.compile(constraintOf(format, { mode: 'auto', parallel: false }))
      const [opened = ''] = await callsOf(format, { mode: 'required', allowed: ['browser_open'], parallel: false }, 3)
      const [shell = ''] = await callsOf(format, { mode: 'required', allowed: ['shell'], parallel: false }, 3)
      expect([named(format, opened), named(format, shell)]).toEqual([['browser_open'], ['shell']])
      for (const grammar of [auto, none, single]) expect(takes(grammar, vocabulary, 'Hello <é> {"a": 1}')).toBe(true)
      expect([opened, `Well:\n${opened}`, shell].map((text) => takes(auto, vocabulary, text))).toEqual([
        true,
        true,
        false,
      ])
      expect([opened, shell].map((text) => takes(none, vocabulary, text))).toEqual([false, false])
      expect([shell, `${shell}\n${shell}`].map((text) => takes(single, vocabulary, text))).toEqual([true, false])
    },
    30_000,
  )
})

interface WireMessage {
  readonly content: string | null
  readonly tool_calls?: readonly { readonly function: { readonly name: string; readonly arguments: string } }[]
}

interface Answer {
  readonly status: number
  readonly cached: number
  readonly promptTokens: number
  readonly finish: string | undefined
  readonly content: string | null
  readonly calls: readonly { readonly name: string; readonly arguments: string }[]
  readonly error: { readonly message: string; readonly param: string } | undefined
}

async function chat(served: Served, body: object): Promise<Answer> {
  const response = await fetch(`${served.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ temperature: 0, max_tokens: 200, ...body }),
  })
  const { choices, usage, error } = (await response.json()) as {
    choices?: { message: WireMessage; finish_reason: string }[]
    usage?: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } }
    error?: { message: string; param: string }
  }
  const [choice] = choices ?? []
  return {
    status: response.status,
    cached: usage?.prompt_tokens_details.cached_tokens ?? 0,
    promptTokens: usage?.prompt_tokens ?? 0,
    finish: choice?.finish_reason,
    content: choice?.message.content ?? null,
    calls: choice?.message.tool_calls?.map((call) => call.function) ?? [],
    error,
  }
}

let folder: string
const running: Served[] = []

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-choice-'))
})

afterEach(async () => {
  for (const served of running.splice(0)) await served.end('SIGKILL')
  await rm(folder, { recursive: true, force: true })
})

async function start(model: string): Promise<Served> {
  const file = join(folder, 'config.yaml')
  await writeFile(file, 'cache:\n  restore: always\n')
  const served = await serve(['--config', file, '--data-dir', join(folder, 'data'), '--model', model])
  running.push(served)
  return served
}

/** A toy with a card: its template knows no tools, so they are shown and called in the Hermes form. */
async function toy(reasoning = 'none'): Promise<string> {
  const data = join(folder, 'data')
  await mkdir(join(data, 'cards'), { recursive: true })
  const path = join(data, 'toy.gguf')
  await writeToyModel(path, { architecture: 'llama', quantization: 'Q4_1' })
  const bytes = await readFile(path)
  const card = {
    name: 'toy',
    description: 'a toy',
    license: 'none',
    sources: [{ kind: 'file', path: 'toy.gguf' }],
    sha256: createHash('sha256').update(bytes).digest('hex'),
    bytes: bytes.length,
    contextLength: 4096,
    toolFallback: 'hermes',
    formats: { toolCalls: 'hermes', reasoning },
  }
  await writeFile(join(data, 'cards', 'toy.yaml'), JSON.stringify(card))
  return 'toy'
}

const messages = [{ role: 'user', content: 'Open the page, then close it.' }]
const named = (name: string) => ({ type: 'function', function: { name } })
const allowed = (mode: string, ...list: string[]) => ({
  type: 'allowed_tools',
  allowed_tools: { mode, tools: list.map(named) },
})

const CHOICES: readonly { readonly body: object; readonly may: RegExp }[] = [
  { body: { tool_choice: 'required' }, may: /./ },
  { body: { tool_choice: named('shell') }, may: /^shell$/ },
  { body: { tool_choice: allowed('required', 'browser_*') }, may: /^browser_/ },
  { body: { tool_choice: 'required', refrain: { allowed_tools: ['browser_c*'] } }, may: /^browser_close$/ },
]

/** Every choice gives what it says, on one prompt. */
async function holdsChoices(served: Served, choices: typeof CHOICES): Promise<void> {
  const ask = (more: object) => chat(served, { messages, tools, parallel_tool_calls: false, ...more })
  const free = await ask({ max_tokens: 1 })
  for (const { body, may } of choices) {
    const answer = await ask(body)
    expect(answer, JSON.stringify(answer)).toMatchObject({ status: 200, finish: 'tool_calls', content: null })
    expect(answer.calls).toHaveLength(1)
    for (const call of answer.calls) {
      expect(call.name).toMatch(may)
      expect(JSON.parse(call.arguments).mode).toMatch(/^(fast|slow)$/)
    }
    // The prompt is the same to the last token, and all but that one is found in the cache.
    expect(answer.promptTokens).toBe(free.promptTokens)
    expect(answer.cached).toBeGreaterThanOrEqual(free.promptTokens - 65)
  }
  const none = await ask({ tool_choice: 'none', max_tokens: 24 })
  expect(none.calls).toEqual([])
  expect(none.promptTokens).toBe(free.promptTokens)
}

describe.skipIf(!isBuilt)('the program with a toy model (needs npm run build)', () => {
  test('calls what it must and nothing else, on one prompt', async () => {
    const served = await start(await toy())
    await holdsChoices(served, CHOICES)
    const ask = (more: object) => chat(served, { messages, tools, ...more })
    const many = await ask({ tool_choice: allowed('required', 'browser_*'), temperature: 1, seed: 7, max_tokens: 150 })
    expect(many.calls.length).toBeGreaterThan(0)
    for (const { name } of many.calls) expect(name).toMatch(/^browser_/)
    expect(await ask({ tool_choice: named('rm') })).toMatchObject({
      status: 400,
      error: { param: 'tool_choice.function.name' },
    })
    expect(await ask({ refrain: { allowed_tools: ['desktop_*'] } })).toMatchObject({
      status: 400,
      error: { param: 'refrain.allowed_tools' },
    })
    // An answer form beside tools: one or the other.
    const format = { type: 'json_schema', json_schema: { name: 'a', schema: { enum: ['yes', 'no'] } } }
    const either = await ask({ response_format: format, parallel_tool_calls: false })
    expect(either.calls.length > 0 || ['"yes"', '"no"'].includes(either.content ?? '')).toBe(true)
    const strict = toolNamed('strict') as { function: object }
    const odd = { type: 'object', properties: { a: { type: 'string', pattern: '(?=x)' } } }
    const refused = await chat(served, {
      messages,
      tools: [{ ...strict, function: { ...strict.function, strict: true, parameters: odd } }],
    })
    expect(refused).toMatchObject({
      status: 400,
      error: { param: 'tools', message: expect.stringContaining('looking ahead') },
    })
  }, 60_000)

  test('reasons first where its prompt leaves that open, and then keeps to the form', async () => {
    const served = await start(await toy('think-implied'))
    const format = { type: 'json_schema', json_schema: { name: 'a', schema: { enum: ['yes', 'no'] } } }
    // The toy does not end its reasoning by itself.
    const endless = await chat(served, { messages, response_format: format, max_tokens: 12 })
    expect(endless).toMatchObject({ finish: 'length', content: '' })
    const done = await chat(served, {
      messages: [...messages, { role: 'assistant', content: '</think>' }],
      continue_final_message: true,
      response_format: format,
    })
    expect(done).toMatchObject({ finish: 'stop', content: expect.stringMatching(/^"(yes|no)"$/) })
  }, 60_000)
})

const weights = pulledSmolLm2()

describe.skipIf(!isBuilt || weights === undefined)('the program with SmolLM2 (needs its weights pulled)', () => {
  test('calls what it must and nothing else, on one prompt', async () => {
    await sharesImports(join(folder, 'data'))
    await holdsChoices(await start('smollm2-135m-instruct'), CHOICES.slice(1, 3))
  }, 120_000)
})
