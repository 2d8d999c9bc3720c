// A simulated server (src/testing/mock-upstream.ts) in a process of its own, so that a bench can kill it and its work does
// not count as the router's.

import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { type MockCounts, type MockOptions, mockUpstream } from '../../src/testing/mock-upstream.js'

export interface Upstream {
  readonly url: string
  counts(): Promise<MockCounts>
  /** SIGKILL, and its end. */
  kill(): Promise<void>
}

export async function startUpstream(options: MockOptions): Promise<Upstream> {
  const child: ChildProcess = fork(fileURLToPath(import.meta.url), ['--serve', JSON.stringify(options)])
  const gone = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  const url = await new Promise<string>((resolve, reject) => {
    child.once('message', (message) => resolve(message as string))
    child.once('exit', (code) => reject(new Error(`an upstream ended with ${code}`)))
  })
  return {
    url,
    counts: async () => (await (await fetch(`${url}/stats`)).json()) as MockCounts,
    async kill() {
      child.kill('SIGKILL')
      await gone
    },
  }
}

if (process.argv[2] === '--serve' && process.argv[1] === fileURLToPath(import.meta.url)) {
  const upstream = await mockUpstream(JSON.parse(process.argv[3] as string) as MockOptions)
  process.on('disconnect', () => process.exit(0))
  process.send?.(upstream.url)
}
