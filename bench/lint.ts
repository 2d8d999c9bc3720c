// Question: how long does `refrain lint` take for a log of 1 GB, and does its memory stay flat?
// Method: append-only sessions of seeded words (about 20 turns each, eight at a time, one system prompt and eight tools) are
// written as JSON lines to a temporary file until it has the size, then read once by the command in this process; the
// resident set is sampled while it runs. CPU time stands beside wall time, which other work on the machine blurs. Ceiling:
// JSON.parse of every line of the same file, in the same run. Goal: 60 s, and no growth between the first and last quarter.
// Run: npm run bench -- lint [megabytes]

import { createReadStream, createWriteStream } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { lintCommand } from '../src/lint/command.js'
import { seeded } from '../src/testing/random.js'

const MB = 1024 * 1024
const bytesWanted = Number(process.argv[2] ?? 1024) * MB
const random = seeded(5)

function words(count: number): string {
  let text = ''
  for (let i = 0; i < count; i++) text += `${random.below(60_000).toString(36)} `
  return text
}

const system = { role: 'system', content: words(2000) }
const tools = Array.from({ length: 8 }, (_, i) => ({
  type: 'function',
  function: { name: `tool${i}`, description: words(150), parameters: { type: 'object', properties: {} } },
}))

/** Bytes written, and those of them that no earlier line had. */
async function write(path: string): Promise<{ bytes: number; unique: number }> {
  const file = createWriteStream(path)
  const open = Array.from({ length: 8 }, () => [system] as { role: string; content: string }[])
  let bytes = 0
  let unique = 0
  while (bytes < bytesWanted) {
    const at = random.below(open.length)
    if (open[at]!.length > 40) open[at] = [system]
    const messages = open[at]!
    const more = [words(20 + random.below(200)), words(100 + random.below(400))] as const
    messages.push({ role: 'user', content: more[0] })
    const line = `${JSON.stringify({ model: 'm', tools, messages, stream: true })}\n`
    messages.push({ role: 'assistant', content: more[1] })
    bytes += line.length
    unique += more[0].length + more[1].length
    if (!file.write(line)) await new Promise<void>((resolve) => file.once('drain', () => resolve()))
  }
  await new Promise<void>((resolve) => file.end(resolve))
  return { bytes, unique }
}

async function timed<T>(work: () => Promise<T>): Promise<{ value: T; wallMs: number; cpuMs: number }> {
  const cpu = process.cpuUsage()
  const start = performance.now()
  const value = await work()
  const { user, system: kernel } = process.cpuUsage(cpu)
  return { value, wallMs: Math.round(performance.now() - start), cpuMs: Math.round((user + kernel) / 1000) }
}

const folder = await mkdtemp(join(tmpdir(), 'refrain-lint-bench-'))
try {
  const path = join(folder, 'log.jsonl')
  const { bytes, unique } = await write(path)
  const parse = await timed(async () => {
    let count = 0
    for await (const line of createInterface({ input: createReadStream(path) }))
      count += JSON.parse(line).messages.length
    return count
  })
  globalThis.gc?.()
  /** Largest resident set in MB, by quarter of the file. */
  const resident = [0, 0, 0, 0]
  const lint = await timed(() =>
    lintCommand(
      path,
      { json: true },
      {
        progress(read) {
          const quarter = Math.min(3, Math.floor((4 * read) / bytes))
          resident[quarter] = Math.max(resident[quarter]!, Math.round(process.memoryUsage.rss() / MB))
        },
      },
    ),
  )
  const { requests, hitRate64, hitRate16, causes } = JSON.parse(lint.value)
  const result = {
    megabytes: Math.round(bytes / MB),
    uniqueShare: unique / bytes,
    ...{ requests, hitRate64, hitRate16, causes: causes.length },
    lint: { wallMs: lint.wallMs, cpuMs: lint.cpuMs },
    parse: { wallMs: parse.wallMs, cpuMs: parse.cpuMs },
    residentMegabytes: resident,
  }
  process.stdout.write(`${JSON.stringify(result)}\n`)
} finally {
  await rm(folder, { recursive: true })
}
