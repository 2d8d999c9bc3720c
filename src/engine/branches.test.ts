// Branches in the engine, with a runner whose every token is a hash of the KV rows that it sees: a branch that saw a wrong
// row, or left one behind, would answer otherwise. Each is held against the same suffix as a request of its own.

import { afterEach, describe, expect, test } from 'vitest'
import type { BranchAnswer, BranchPlan } from '../core/quick.js'
import type { GenerateRequest, Job } from '../core/request.js'
import { choiceTrie } from '../quick/choice-trie.js'
import {
  ask,
  type EngineHouse,
  type HouseOptions,
  jobOf,
  LAYOUT,
  openHouse,
  promptOf,
} from '../testing/engine-house.js'
import { createPlainTokenizer } from '../testing/plain-tokenizer.js'
import { slotBytes } from './slot.js'

const houses: EngineHouse[] = []
afterEach(async () => {
  for (const opened of houses.splice(0)) await opened.close()
})

type Run = [kind: string, tokens: number]

async function house(options: HouseOptions = {}): Promise<EngineHouse & { runs: Run[] }> {
  const runs: Run[] = []
  const opened = await openHouse({ ...options, onRun: (kind, tokens) => runs.push([kind, tokens]) })
  houses.push(opened)
  return { ...opened, runs }
}

const text = (shares: number | 'reply', suffix: number[], maxTokens = 6): BranchPlan => ({
  shares,
  suffix: Int32Array.from(suffix),
  form: { kind: 'text', maxTokens, stop: [], ignoreEos: true },
  path: 'tasks[0]',
})

const choice = (shares: number | 'reply', suffix: number[], choices: number[][]): BranchPlan => ({
  shares,
  suffix: Int32Array.from(suffix),
  form: { kind: 'choice', trie: choiceTrie(choices.map((ids) => Int32Array.from(ids))) },
  path: 'tasks[0]',
})

/** Nothing but branches. */
const quick = (tokens: number[], branches: BranchPlan[], more: Partial<GenerateRequest> = {}): Job => ({
  ...jobOf(tokens, { maxTokens: 0, priority: 'auxiliary', ...more }),
  transient: true,
  branches,
})

const { decode } = createPlainTokenizer(400)

async function answersOf(at: EngineHouse, job: Job): Promise<readonly BranchAnswer[]> {
  const { events } = await ask(at, job)
  const told = events.filter((event) => event.type === 'quick')
  expect(told.length).toBe(1)
  expect(events.indexOf(told[0]!)).toBe(events.length - 2)
  return told[0]!.answers
}

/** What the same suffix answers as a request of its own, without any cache. */
async function alone(tokens: number[], maxTokens = 6): Promise<string> {
  const baseline = await house({ cached: false })
  return decode((await ask(baseline, jobOf(tokens, { maxTokens }))).ids[0]!)
}

const textOf = (answer: BranchAnswer | undefined) => (answer?.kind === 'text' ? answer.text : answer)

describe('quick branches', () => {
  const prefix = promptOf(1, 300)
  const suffixes = [promptOf(2, 12), promptOf(3, 5), promptOf(4, 1), promptOf(5, 90)]

  test('answer as the same suffixes do as requests of their own, cold and warm', async () => {
    const on = await house()
    const expected = await Promise.all(suffixes.map((suffix) => alone([...prefix, ...suffix])))
    const plans = suffixes.map((suffix) => text(300, suffix))
    expect((await answersOf(on, quick(prefix, plans))).map(textOf)).toEqual(expected)
    await ask(on, jobOf(prefix))
    expect((await answersOf(on, quick(prefix, plans))).map(textOf)).toEqual(expected)
  })

  test('on a warm prefix compute suffixes and answers, nothing of the prefix, all in one run and a run a token', async () => {
    const on = await house()
    await ask(on, jobOf(prefix, { maxTokens: 1 }))
    on.runs.length = 0
    const { finish } = await ask(on, quick(prefix, [text(300, suffixes[0]!, 4), text(300, suffixes[1]!, 2)]))
    expect(on.runs).toEqual([
      ['tree', 17],
      ['tree', 2],
      ['tree', 1],
      ['tree', 1],
    ])
    expect(finish.cache).toEqual({ working: 300, memory: 0, disk: 0, computed: 0 })
  })

  test('beside an answer on a warm prefix move no rows before its first token', async () => {
    const held: [kind: string, bytes: number][] = []
    const on = await openHouse({ onRun: (kind) => held.push([kind, on.workingSet.status().usedBytes]) })
    houses.push(on)
    // 550 tokens and one more stand in a slot of 640, which has no room for 90 branch rows beside 20 tokens of answer.
    const long = promptOf(6, 550)
    await ask(on, jobOf(long, { maxTokens: 1 }))
    held.length = 0
    const job = { ...jobOf([...long, 7], { maxTokens: 20 }), branches: [text(551, suffixes[3]!)] }
    const { events } = await ask(on, job)
    expect(events.some(({ type }) => type === 'quick')).toBe(true)
    const [first] = held
    expect(first).toEqual(['prefill', slotBytes(LAYOUT, 640)])
    expect(held.find(([kind]) => kind === 'tree')?.[1]).toBeGreaterThan(slotBytes(LAYOUT, 640))
  })

  test('from blocks of the cache compute one partial block beside them', async () => {
    const on = await house()
    await ask(on, jobOf(prefix, { maxTokens: 1 }))
    on.workingSet.clear()
    on.runs.length = 0
    const { finish } = await ask(on, quick(prefix, [choice(300, suffixes[0]!, [[1], [2]])]))
    expect(on.runs).toEqual([['tree', 300 - 256 + 12]])
    expect(finish.cache).toEqual({ working: 0, memory: 256, disk: 0, computed: 44 })
  })

  test('leave nothing behind: the next turn finds what was there, and answers as without them', async () => {
    const on = await house()
    await ask(on, jobOf(prefix, { maxTokens: 1 }))
    on.workingSet.clear()
    await ask(on, quick(prefix, [text(300, suffixes[0]!)]))
    const turn = [...prefix, ...promptOf(9, 30)]
    const next = await ask(on, jobOf(turn))
    // Of the last block, the rows that ran beside branches are computed again.
    expect(next.start.cache).toEqual({ working: 256, memory: 0, disk: 0, computed: 74 })
    expect(decode(next.ids[0]!)).toBe(await alone(turn, 8))
  })

  test('score choices by the tokens they are made of', async () => {
    const on = await house()
    const choices = [[7], [8, 9], [8, 10, 11], [8, 10, 12]]
    const [answer] = await answersOf(on, quick(prefix, [choice(300, suffixes[0]!, choices)]))
    if (answer?.kind !== 'choice') throw new Error('no choice')
    const expected = await Promise.all(choices.map((ids) => logprobOf(on, [...prefix, ...suffixes[0]!], ids)))
    for (const [i, logprob] of answer.logprobs.entries()) expect(logprob).toBeCloseTo(expected[i]!, 4)
    expect(answer.suffixTokens).toBe(12)
  })

  test('of single-token choices take one run, however many there are', async () => {
    const on = await house()
    await ask(on, jobOf(prefix, { maxTokens: 1 }))
    on.runs.length = 0
    const plans = Array.from({ length: 12 }, (_, i) => choice(300, promptOf(20 + i, 14), [[1], [2], [3]]))
    const answers = await answersOf(on, quick(prefix, plans))
    expect(on.runs).toEqual([['tree', 12 * 14]])
    expect(answers.every(({ kind, answerTokens }) => kind === 'choice' && answerTokens === 1)).toBe(true)
  })

  test('that need more rows than there are take turns', async () => {
    const on = await house()
    const plans = Array.from({ length: 40 }, (_, i) => text(300, promptOf(50 + i, 60), 5))
    const answers = await answersOf(on, quick(prefix, plans))
    for (const i of [0, 17, 39]) expect(textOf(answers[i])).toBe(await alone([...prefix, ...promptOf(50 + i, 60)], 5))
  })

  test('one that fails leaves the others whole', async () => {
    const on = await house()
    const failing: BranchPlan = {
      ...text(300, suffixes[0]!),
      form: { kind: 'text', maxTokens: 4, stop: [], ignoreEos: true, constraint: { kind: 'json' } },
    }
    const answers = await answersOf(on, quick(prefix, [failing, text(300, suffixes[1]!)]))
    expect(answers[0]).toMatchObject({ kind: 'fault', fault: { code: 'unsupported_parameter' } })
    expect(textOf(answers[1])).toBe(await alone([...prefix, ...suffixes[1]!]))
  })

  test('near the end of the window have the room that is left', async () => {
    const on = await house()
    const long = promptOf(1, 4000)
    const answers = await answersOf(on, quick(long, [text(4000, suffixes[0]!), text(4000, promptOf(3, 91))]))
    expect(textOf(answers[0])).toBe(await alone([...long, ...suffixes[0]!]))
    expect(textOf(answers[1])).toBe(await alone([...long, ...promptOf(3, 91)], 6))
  })

  test('are refused where their graph is not there', async () => {
    const on = await house({ trees: false })
    const asked = ask(on, quick(prefix, [text(300, suffixes[0]!)]))
    await expect(asked).rejects.toMatchObject({ code: 'unsupported_parameter', param: 'quick' })
  })

  test('are cancelled with their request', async () => {
    const on = await house({ runMs: 5 })
    const stop = new AbortController()
    const asked = ask(on, quick(prefix, [text(300, suffixes[0]!, 200)]), stop.signal)
    setTimeout(() => stop.abort(new Error('gone')), 40)
    await expect(asked).rejects.toThrow('gone')
    expect(on.workingSet.status().usedSlots).toBe(0)
  })
})

/** The logarithm of the probability of `ids` behind `tokens`, from logprobs that requests of their own report. */
async function logprobOf(at: EngineHouse, tokens: number[], ids: number[]): Promise<number> {
  let sum = 0
  for (const [i, id] of ids.entries()) {
    const job = jobOf([...tokens, ...ids.slice(0, i)], { maxTokens: 1, logprobs: 0, sampling: forced(id) })
    const { events } = await ask(at, job)
    const token = events.find((event) => event.type === 'token')
    sum += token?.logprobs?.[0]?.logprob ?? Number.NaN
  }
  return sum
}

const forced = (id: number) => ({ ...jobOf([1]).request.sampling, logitBias: { [id]: 100 } })

describe('branches beside an answer', () => {
  const head = promptOf(1, 700)
  const prompt = [...head, 5, 6, 7]
  const plans = [text(700, promptOf(2, 12)), choice(700, promptOf(3, 9), [[1], [2, 3]]), text(702, [9])]
  const beside = (tokens: number[], branches: BranchPlan[], more: Partial<GenerateRequest> = {}): Job => ({
    ...jobOf(tokens, more),
    branches,
  })

  const check = async (answers: readonly BranchAnswer[]) => {
    expect(textOf(answers[0])).toBe(await alone([...head, ...promptOf(2, 12)]))
    expect(textOf(answers[2])).toBe(await alone([...head, 5, 6, 9]))
    expect(answers[1]?.kind).toBe('choice')
  }

  test('ride along with the end of a cold prompt, in one pass', async () => {
    const on = await house()
    const { ids, events } = await ask(on, beside(prompt, plans))
    expect(decode(ids[0]!)).toBe(await alone(prompt, 8))
    expect(on.runs.slice(0, 3)).toEqual([
      ['prefill', 512],
      ['prefill', 188],
      ['tree', 3 + 12 + 9 + 1 + 1],
    ])
    const told = events.find((event) => event.type === 'quick')
    await check(told?.answers ?? [])
    expect(events.findIndex((event) => event.type === 'token')).toBeLessThan(events.indexOf(told!))
  })

  test('run in the step after the first token of a warm one', async () => {
    const on = await house()
    await ask(on, jobOf(head, { maxTokens: 1 }))
    on.runs.length = 0
    const { ids, events } = await ask(on, beside(prompt, plans))
    expect(on.runs.slice(0, 3)).toEqual([
      ['prefill', 3],
      ['tree', 23],
      ['decode', 1],
    ])
    expect(decode(ids[0]!)).toBe(await alone(prompt, 8))
    await check(events.find((event) => event.type === 'quick')?.answers ?? [])
  })

  test('follow the answer where they are asked behind it', async () => {
    const on = await house()
    const { ids, events } = await ask(
      on,
      beside(prompt, [text('reply', promptOf(2, 12)), text('reply', [4, 3])], { n: 2 }),
    )
    const answers = events.find((event) => event.type === 'quick')?.answers ?? []
    expect(textOf(answers[0])).toBe(await alone([...prompt, ...ids[0]!, ...promptOf(2, 12)]))
    expect(textOf(answers[1])).toBe(await alone([...prompt, ...ids[0]!, 4, 3]))
    expect(answers[0]?.suffixTokens).toBe(13)
  })

  test('go with an answer that outgrows its slot', async () => {
    const on = await house()
    const long = text(700, promptOf(2, 12), 150)
    const { ids, events } = await ask(on, beside(prompt, [long, text('reply', [1])].slice(0, 1), { maxTokens: 1200 }))
    expect(decode(ids[0]!)).toBe(await alone(prompt, 1200))
    expect(textOf(events.find((event) => event.type === 'quick')?.answers[0])).toBe(
      await alone([...head, ...promptOf(2, 12)], 150),
    )
  })

  test('give way where the working set has no room for both', async () => {
    const on = await house({ workingSetBytes: slotBytes(LAYOUT, 4096) })
    const full = promptOf(1, 3400)
    const { ids, events } = await ask(on, beside(full, [text(3400, [1], 400)], { maxTokens: 696 }))
    expect(ids[0]!.length).toBe(696)
    const [answer] = events.find((event) => event.type === 'quick')?.answers ?? []
    expect(answer).toMatchObject({ kind: 'fault', fault: { code: 'out_of_memory' } })
  })

  test('are not told twice, and the next turn finds the whole prompt', async () => {
    const on = await house()
    const { ids } = await ask(on, beside(prompt, plans))
    const turn = [...prompt, ...ids[0]!, ...promptOf(8, 20)]
    const next = await ask(on, jobOf(turn))
    expect(next.start.cache.working).toBeGreaterThanOrEqual(prompt.length + 7)
    expect(decode(next.ids[0]!)).toBe(await alone(turn, 8))
  })
})

describe('a stream beside them', () => {
  test('waits for one bounded run at most', async () => {
    const on = await house()
    const streaming = ask(on, jobOf(promptOf(1, 100), { maxTokens: 60 }))
    await new Promise((resolve) => setTimeout(resolve, 5))
    const plans = Array.from({ length: 30 }, (_, i) => text(200, promptOf(50 + i, 40), 3))
    await Promise.all([streaming, ask(on, quick(promptOf(2, 200), plans))])
    const shared = on.runs.slice(
      0,
      on.runs.findLastIndex(([kind]) => kind === 'decode'),
    )
    for (const [i, [kind, tokens]] of shared.entries()) {
      if (kind !== 'tree') continue
      expect(tokens).toBeLessThanOrEqual(128)
      expect(shared[i + 1]?.[0] ?? 'decode').toBe('decode')
    }
    expect(shared.some(([kind]) => kind === 'tree')).toBe(true)
  })

  test('of a request, a prompt that people wait for goes first', async () => {
    const on = await house()
    const order: string[] = []
    const asked = [
      ask(on, quick(promptOf(2, 200), [text(200, promptOf(3, 200), 40)])).then(() => order.push('quick')),
      ask(on, jobOf(promptOf(4, 2000), { maxTokens: 1 })).then(() => order.push('prompt')),
    ]
    await Promise.all(asked)
    expect(order).toEqual(['prompt', 'quick'])
  })
})
