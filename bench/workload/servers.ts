// Starts the servers that a bench talks to, on free ports of 127.0.0.1, and ends them by their own process.

import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { createServer } from 'node:net'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

export interface Server {
  readonly url: string
  readonly pid: number
  /** SIGTERM, then waits for the end; `kill` is SIGKILL. */
  stop(how?: 'SIGTERM' | 'SIGKILL'): Promise<void>
}

export async function startRefrain(args: readonly string[], env: Record<string, string> = {}): Promise<Server> {
  const port = await freePort()
  const child = spawn(process.execPath, ['dist/main.js', 'serve', '--port', String(port), ...args], {
    stdio: ['ignore', 'ignore', process.env['BENCH_VERBOSE'] ? 'inherit' : 'ignore'],
    env: { ...process.env, ...env },
  })
  return ready(child, `http://127.0.0.1:${port}`, '/ready')
}

export async function startLlama(peer: {
  readonly folder: string
  readonly model: string
  readonly args: readonly string[]
}): Promise<Server> {
  const port = await freePort()
  const args = ['-m', peer.model, '--port', String(port), ...peer.args]
  const child = spawn(join(peer.folder, 'llama-server'), args, { stdio: 'ignore' })
  return ready(child, `http://127.0.0.1:${port}`, '/health')
}

/** Where llama-server, llama-bench and llama-quantize are. */
export function llamaFolder(): string | undefined {
  const peers = join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'refrain-peers')
  if (!existsSync(peers)) return undefined
  return readdirSync(peers)
    .filter((name) => name.startsWith('llama-') && existsSync(join(peers, name, 'bin', 'llama-server')))
    .map((name) => join(peers, name, 'bin'))
    .at(-1)
}

async function ready(child: ChildProcess, url: string, path: string): Promise<Server> {
  let exited = false
  const gone = new Promise<void>((resolve) => {
    child.on('exit', () => {
      exited = true
      resolve()
    })
  })
  for (let tries = 0; tries < 600; tries++) {
    if (exited) throw new Error(`the server ended with code ${child.exitCode} before it was ready`)
    const answer = await fetch(url + path).catch(() => undefined)
    await answer?.arrayBuffer()
    if (answer?.ok) break
    await sleep(100)
  }
  return {
    url,
    pid: child.pid as number,
    async stop(how = 'SIGTERM') {
      if (!exited) child.kill(how)
      await gone
    },
  }
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  await new Promise((resolve) => server.close(resolve))
  return port
}
