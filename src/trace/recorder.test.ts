// Recording a served program: what stands in the files, that no text does, and that they can be read and simulated.

import { chmod, mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { simulateCommand } from '../simulate/command.js'
import { chat, post, scriptedProgram } from '../testing/scripted-program.js'
import { BlockNames } from './block-names.js'
import { readTraces } from './read-trace.js'

let folder: string
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-record-'))
})
afterEach(async () => {
  await chmod(folder, 0o700)
  await rm(folder, { recursive: true })
})

const long = (word: string) => `${word} `.repeat(400)
const system = { role: 'system', content: long('sysword') }
const user = (content: string) => ({ role: 'user', content })
const ask = (messages: object[], session?: string) => ({
  body: { messages, max_tokens: 5 },
  headers: session === undefined ? undefined : { 'x-refrain-session': session },
})

async function recorded(requests: readonly ReturnType<typeof ask>[], record = folder): Promise<void> {
  const program = await scriptedProgram({}, { record })
  for (const { body, headers } of requests) {
    expect((await post(program, '/v1/chat/completions', body, headers)).status).toBe(200)
  }
  await program.stop()
}

const texts = async () =>
  Promise.all((await readdir(folder)).sort().map((name) => readFile(join(folder, name), 'utf8')))

describe('serve --record', () => {
  test('a file a session, with lengths and block numbers and not a word of text', async () => {
    const first = [system, user(long('secretone'))]
    await recorded([
      ask(first, 'key-of-a'),
      ask([...first, { role: 'assistant', content: 'x' }, user(long('secrettwo'))], 'key-of-a'),
      ask([system, user(long('other'))], 'key-of-b'),
    ])
    const files = await texts()
    expect(files).toHaveLength(2)
    for (const text of files) expect(text).not.toMatch(/secret|sysword|other|key-of/)
    const [a, b] = files.map((text) => JSON.parse(text))
    expect(a).toMatchObject({ block_size: 64, hash_id_scope: 'global', totals: { requests: 2 } })
    expect(b.recording).toBe(a.recording)
    expect(a.requests).toHaveLength(2)
    const [one, two] = a.requests
    expect(one).toMatchObject({ type: 's', t: 0, think_time: 0 })
    expect(one.hash_ids).toHaveLength(Math.floor(one.in / 64))
    expect(one.out).toBeGreaterThan(0)
    expect(a.totals.input).toBe(one.in + two.in)
    // The second turn begins with the first, and the other session with the same system text.
    expect(two.hash_ids.slice(0, one.hash_ids.length - 1)).toEqual(one.hash_ids.slice(0, -1))
    expect(b.requests[0].hash_ids[0]).toBe(one.hash_ids[0])
    expect(b.requests[0].hash_ids.at(-1)).not.toBe(one.hash_ids.at(-1))
    expect(a.system_tokens / one.in).toBeGreaterThan(0.3)
    expect((await stat(join(folder, (await readdir(folder))[0]!))).mode & 0o777).toBe(0o600)
  })

  test('what was recorded can be read and simulated, sessions share what they shared', async () => {
    await recorded([ask([system, user(long('one'))], 'a'), ask([system, user(long('two'))], 'b')])
    const trace = await readTraces([folder])
    expect(trace.requests.map(({ turn }) => turn)).toEqual([1, 1])
    const report = JSON.parse(await simulateCommand([folder], { json: true }))
    expect(report.ideal.memoryHits).toBeGreaterThan(3)
    expect(report.ideal.memoryHits).toBeLessThan(report.references / 2)
  })

  test('conversations without a key are followed by their blocks', async () => {
    const first = [system, user(long('alpha'))]
    await recorded([
      ask(first),
      ask([system, user(long('beta'))]),
      ask([...first, { role: 'assistant', content: 'x' }, user(long('gamma'))]),
    ])
    const counts = (await texts()).map((text) => JSON.parse(text).requests.length)
    expect(counts.sort()).toEqual([1, 2])
  })

  test.skipIf(process.getuid?.() === 0)(
    'a folder that cannot be written fails no request (root writes anywhere)',
    async () => {
      await chmod(folder, 0o500)
      await recorded([ask([user('hello')])])
      expect(await readdir(folder)).toEqual([])
    },
  )

  test('a folder that is taken away fails no request', async () => {
    const program = await scriptedProgram({}, { record: join(folder, 'gone') })
    await rm(join(folder, 'gone'), { recursive: true })
    expect((await post(program, '/v1/chat/completions', chat())).status).toBe(200)
    await program.stop()
    expect(await readdir(folder)).toEqual([])
  })

  test('a folder that cannot be made is the operator’s to mend', async () => {
    await expect(scriptedProgram({}, { record: '/dev/null/traces' })).rejects.toThrow(/--record: .* cannot be made/)
  })
})

test('numbers of blocks: equal for equal, never twice, forgotten late', () => {
  const names = new BlockNames(3)
  const first = ['a', 'b', 'c'].map((hash) => names.name(hash))
  expect(['a', 'b', 'c'].map((hash) => names.name(hash))).toEqual(first)
  for (const hash of ['d', 'e']) names.name(hash)
  expect(names.name('a')).toBe(first[0])
  const later = Array.from({ length: 10 }, (_, i) => names.name(`x${i}`))
  expect(new Set([...first, ...later, names.name('b')]).size).toBe(14)
})
