// The built program as its user starts it: a child process of `dist/main.js serve` on a free port. Ended by its own pid.

import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const MAIN = fileURLToPath(new URL('../../dist/main.js', import.meta.url))

/** False: `npm run build` was not run; tests of the whole program are skipped. */
export const isBuilt = existsSync(MAIN)

export interface Served {
  readonly url: string
  readonly pid: number
  /** Resolves with the exit code; undefined after SIGKILL. */
  end(signal: 'SIGTERM' | 'SIGKILL'): Promise<number | undefined>
  /** All that it logged so far, a JSON object a line. */
  log(): string
}

/** @throws Error with the program's last words when it ends before it listens. */
export async function serve(args: readonly string[]): Promise<Served> {
  const child = spawn(process.execPath, [MAIN, 'serve', '--port', '0', ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  let log = ''
  const exit = new Promise<number | undefined>((resolve) => child.on('exit', (code) => resolve(code ?? undefined)))
  // All that it and its processes said has been read by then.
  const closed = new Promise<number | undefined>((resolve) => child.on('close', (code) => resolve(code ?? undefined)))
  const url = await new Promise<string>((resolve, reject) => {
    const read = (chunk: Buffer) => {
      log += chunk
      // Backends' URLs stand in the config that it logs.
      const found = /"url":"(http:[^"]+)","model"/.exec(log)
      if (found?.[1] !== undefined) resolve(found[1])
    }
    child.stdout?.on('data', read)
    child.stderr?.on('data', read)
    void closed.then((code) => reject(new Error(`the server ended with code ${code}: ${wordsIn(log)}`)))
  })
  return { url, pid: child.pid as number, end: (signal) => end(child, signal, exit), log: () => log }
}

/** What it said beside its log, whose lines may come behind it, and the last of those. */
function wordsIn(log: string): string {
  const lines = log.split('\n')
  return [...lines.filter((line) => !line.startsWith('{')), log.slice(-2000)].join('\n')
}

function end(child: ChildProcess, signal: 'SIGTERM' | 'SIGKILL', exit: Promise<number | undefined>) {
  if (child.exitCode === null && child.signalCode === null) child.kill(signal)
  return exit
}

export interface ChatAnswer {
  readonly text: string
  readonly tiers: Record<string, number>
  readonly usage: { readonly prompt_tokens: number; readonly completion_tokens: number }
}

export interface PostOptions {
  /** A tenant's. */
  readonly key?: string
  readonly signal?: AbortSignal
}

/** One greedy chat or completion, not streamed. @throws Error with status and body when it is refused. */
export async function post(
  url: string,
  path: string,
  body: object,
  { key, signal }: PostOptions = {},
): Promise<ChatAnswer> {
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(key !== undefined && { authorization: `Bearer ${key}` }) },
    body: JSON.stringify({ temperature: 0, ...body }),
    ...(signal && { signal }),
  })
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`)
  const { choices, usage } = (await response.json()) as {
    choices: { text?: string; message?: { content: string } }[]
    usage: ChatAnswer['usage']
  }
  const header = response.headers.get('x-refrain-cache') ?? ''
  const tiers = Object.fromEntries(
    header
      .split(', ')
      .map((part) => part.split('='))
      .map(([k, v]) => [k, Number(v)]),
  )
  return { text: choices.map((choice) => choice.text ?? choice.message?.content).join('\0'), tiers, usage }
}
