// A redis-server of a test's own: on a port of its own, without files, ended with the test. Absent where none is installed.

import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** False: tests with it are skipped, with the reason that it is not on the PATH. */
export const hasRedis = isThere()

function isThere(): boolean {
  try {
    execFileSync('redis-server', ['--version'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}

export interface RedisServer {
  readonly port: number
  readonly url: string
  /** SIGKILL. */
  kill(): Promise<void>
  /** Stands still and says nothing, or goes on. */
  pause(): void
  resume(): void
  /** Starts it again on the same port, empty. */
  start(): Promise<void>
  close(): Promise<void>
}

export interface RedisOptions {
  readonly password?: string
  /** Files in PEM; it then speaks TLS only. */
  readonly tls?: { readonly cert: string; readonly key: string }
}

export async function redisServer({ password, tls }: RedisOptions = {}): Promise<RedisServer> {
  const port = await freePort()
  const folder = mkdtempSync(join(tmpdir(), 'refrain-redis-'))
  let child: ChildProcess | undefined
  const ports = tls
    ? ['--port', '0', '--tls-port', `${port}`, '--tls-cert-file', tls.cert, '--tls-key-file', tls.key]
    : ['--port', `${port}`]
  const secure = tls ? ['--tls-ca-cert-file', tls.cert, '--tls-auth-clients', 'no'] : []
  const args = [...ports, ...secure, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--dir', folder]
  if (password !== undefined) args.push('--requirepass', password)
  const start = async () => {
    const started = spawn('redis-server', args, { stdio: ['ignore', 'pipe', 'pipe'] })
    child = started
    await new Promise<void>((resolve, reject) => {
      let said = ''
      const read = (bytes: Buffer) => {
        said += bytes
        if (said.includes('Ready to accept connections')) resolve()
      }
      started.stdout.on('data', read)
      started.stderr.on('data', read)
      started.once('exit', (code) => reject(new Error(`redis-server ended with ${code}: ${said.slice(-500)}`)))
    })
  }
  const kill = async () => {
    const ending = child
    if (ending === undefined || ending.exitCode !== null || ending.signalCode !== null) return
    const ended = new Promise((resolve) => ending.once('exit', resolve))
    ending.kill('SIGKILL')
    await ended
  }
  await start()
  return {
    port,
    url: `${tls ? 'rediss' : 'redis'}://127.0.0.1:${port}`,
    kill,
    pause: () => void child?.kill('SIGSTOP'),
    resume: () => void child?.kill('SIGCONT'),
    start,
    async close() {
      await kill()
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })
}
