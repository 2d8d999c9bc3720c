// The command line as a process: what it prints, how it exits, what signals do. Runs what `npm run build` left in dist/.

import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { fileURLToPath } from 'node:url'
import { afterEach, describe, expect, test } from 'vitest'

const main = fileURLToPath(new URL('../dist/main.js', import.meta.url))
const built = existsSync(main)
const children: ChildProcess[] = []
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL')
})

interface Run {
  readonly child: ChildProcess
  output(): string
  errors(): string
  readonly exit: Promise<number | null>
}

function refrain(args: string[], env: Record<string, string> = {}): Run {
  const child = spawn(process.execPath, [main, ...args], {
    cwd: tmpdir(),
    env: { PATH: process.env['PATH'] ?? '', HOME: tmpdir(), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  children.push(child)
  let output = ''
  let errors = ''
  child.stdout.on('data', (bytes) => {
    output += bytes
  })
  child.stderr.on('data', (bytes) => {
    errors += bytes
  })
  const exit = new Promise<number | null>((resolve) => child.once('close', resolve))
  return { child, output: () => output, errors: () => errors, exit }
}

/** Serves the scripted backend; resolves with the URL of the start line. */
async function serving(flags: string[] = [], env: Record<string, string> = {}): Promise<Run & { url: string }> {
  const run = refrain(['serve', '--scripted', '--port', '0', ...flags], env)
  for (let i = 0; i < 1500; i++) {
    const url = /"url":"(http[^"]+)"/.exec(run.errors())?.[1]
    if (url !== undefined) return { ...run, url }
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error(`no start line: ${run.errors()}`)
}

const ask = (url: string) =>
  fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content: 'words '.repeat(100) }], stream: true }),
  })

describe.skipIf(!built)('the command line (needs npm run build)', () => {
  test('serves, logs one line a request, drains on SIGTERM and exits 0', async () => {
    const run = await serving([], { REFRAIN_BACKEND__OPTIONS: '{decodeTokensPerSecond: 200}' })
    const reply = await ask(run.url)
    run.child.kill('SIGTERM')
    expect(await reply.text()).toContain('[DONE]')
    expect(await run.exit).toBe(0)
    const lines = run
      .errors()
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(lines.filter((line) => line.msg === 'request')).toHaveLength(1)
    expect(lines.find((line) => line.msg === 'request')).toMatchObject({ status: 200, route: '/v1/chat/completions' })
    expect(lines.map((line) => line.msg)).toEqual(expect.arrayContaining(['config', 'draining', 'stopped']))
  })

  test('a second signal ends it at once', async () => {
    const run = await serving([], { REFRAIN_BACKEND__OPTIONS: '{decodeTokensPerSecond: 1}' })
    await ask(run.url)
    run.child.kill('SIGINT')
    await expect.poll(run.errors).toContain('draining')
    run.child.kill('SIGINT')
    expect(await run.exit).toBe(1)
  })

  test("a fault of the user's is one line without a stack, and exit code 2", async () => {
    const taken = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => taken.once('listening', resolve))
    const { port } = taken.address() as { port: number }
    const runs: [string[], RegExp][] = [
      [['serve', '--config', '/nowhere.yaml'], /^refrain: the config file cannot be read/],
      [['serve', '--scripted', '--log-level', 'silent', '--port', String(port)], /^refrain: .*EADDRINUSE/],
      [['serve', '--scripted', '--log-level', 'loud'], /^refrain: log\.level: must be one of/],
      [['serve', '--host', '0.0.0.0'], /^refrain: server\.host: /],
      [
        ['serve', '--log-level', 'silent', '--model', 'no-such-model'],
        /^refrain: no model is called 'no-such-model'; known are /,
      ],
      [['pull', 'no-such-model'], /^refrain: no model is called/],
      [['import', '/nowhere.gguf'], /^refrain: there is no file/],
    ]
    for (const [args, message] of runs) {
      const run = refrain(args)
      expect(await run.exit, args.join(' ')).toBe(2)
      expect(run.errors()).toMatch(message)
      expect(run.errors().trim().split('\n')).toHaveLength(1)
    }
    taken.close()
  })

  test('config prints what counts, secrets masked', async () => {
    const env = { REFRAIN_TENANTS: '[{name: a, key: a-secret-key}]', REFRAIN_SERVER__PORT: '9001' }
    const run = refrain(['config'], env)
    expect(await run.exit).toBe(0)
    expect(run.output()).toMatch(/port: 9001/)
    expect(run.output()).not.toContain('a-secret-key')
    const check = refrain(['config', '--check'], env)
    expect(await check.exit).toBe(0)
    expect(check.output()).toBe('the config is right\n')
  })

  test('version', async () => {
    const run = refrain(['version'])
    expect(await run.exit).toBe(0)
    expect(run.output()).toMatch(/^\d+\.\d+\.\d+\n$/)
  })
})
