// Members of a watched file and of names that resolve to many: what comes, what goes, and what a fault leaves alone.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { RemoteOptions } from '../backend/remote/contract.js'
import { ManualClock } from '../testing/manual-clock.js'
import { Discovery } from './discovery.js'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'refrain-discovery-'))
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

const entry = (url: string, more: Partial<RemoteOptions> = {}): RemoteOptions => ({
  ...{ url, kind: 'auto', forwardAuthorization: false, headers: {}, shared: false, priority: false, models: {} },
  ...more,
})

function open(addresses: () => readonly string[]) {
  const assigned: [string, string[]][] = []
  const file = join(folder, 'backends')
  const discovery = new Discovery(
    { everyMs: 1000, file },
    {
      fleet: { assign: (source, wanted) => assigned.push([source, wanted.map(({ url }) => url)]) },
      clock: new ManualClock(),
      parse: (text) => {
        if (text.includes('!')) throw new Error('no list')
        return text.split('\n').map((url) => entry(url))
      },
      resolve: async () => addresses(),
    },
  )
  return { discovery, assigned, file }
}

test('a file is read when it changes; one that is wrong or gone changes nothing', async () => {
  const { discovery, assigned, file } = open(() => [])
  await discovery.look()
  expect(assigned).toEqual([])
  writeFileSync(file, 'http://a\nhttp://b')
  await discovery.look()
  await discovery.look()
  expect(assigned).toEqual([[file, ['http://a', 'http://b']]])
  writeFileSync(file, '!')
  await discovery.look()
  rmSync(file)
  await discovery.look()
  expect(assigned).toHaveLength(1)
  writeFileSync(file, 'http://b')
  await discovery.look()
  expect(assigned.at(-1)).toEqual([file, ['http://b']])
})

test('a name is a member an address, and keeps them while it does not resolve', async () => {
  let answer: () => readonly string[] = () => ['10.0.0.2', '10.0.0.1', '::1']
  const { discovery, assigned } = open(() => answer())
  await discovery.configure('config', [entry('https://vllm.test:8000', { resolve: true }), entry('http://other')])
  const three = ['https://10.0.0.1:8000', 'https://10.0.0.2:8000', 'https://[::1]:8000', 'http://other']
  expect(assigned.at(-1)).toEqual(['config', three])
  answer = () => {
    throw new Error('ENOTFOUND')
  }
  await discovery.look()
  expect(assigned.at(-1)).toEqual(['config', three])
  answer = () => ['10.0.0.3']
  await discovery.look()
  expect(assigned.at(-1)).toEqual(['config', ['https://10.0.0.3:8000', 'http://other']])
})
