// What `refrain explain` prints of a server behind whose port some process did not answer.

import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, expect, test } from 'vitest'
import { explainReport } from './report.js'

const closing: (() => void)[] = []
afterEach(() => {
  for (const close of closing.splice(0)) close()
})

async function answering(answer: object): Promise<string> {
  const server = createServer((_request, response) => response.end(JSON.stringify(answer)))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  closing.push(() => server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

const summary = {
  session: 's',
  tenant: 't',
  turns: 2,
  prompt_tokens: 10,
  reused_tokens: 5,
  missed_tokens: 0,
  repeats: [],
}

test('names who did not answer, without letting a name move the cursor', async () => {
  const missing = ['router process 1', 'a\u001b[2J']
  const lines = (text: string) => text.split('\n').filter((line) => line.startsWith('!'))
  const told = [
    '! router process 1 did not answer: what came there since is not told',
    '! a?[2J did not answer: what came there since is not told',
  ]
  expect(lines(await explainReport({ url: await answering({ data: [summary], missing }) }))).toEqual(told)
  const turns = { ...summary, data: [], missing }
  expect(lines(await explainReport({ url: await answering(turns), session: 's' }))).toEqual(told)
})

test('says nothing of it where all did', async () => {
  const text = await explainReport({ url: await answering({ data: [summary] }) })
  expect(text).toMatch(/^s +t +2/m)
  expect(text).not.toContain('!')
})
