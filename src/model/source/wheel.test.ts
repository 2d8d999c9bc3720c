import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { seeded } from '../../testing/random.js'
import { encodeWheel } from '../../testing/wheel-writer.js'
import { SourceFailure } from './failure.js'
import { readMember } from './wheel.js'

const random = seeded(3)
const noise = Uint8Array.from({ length: 300_000 }, () => random.below(256))
const zeros = new Uint8Array(2_000_000)
const wheel = encodeWheel(
  [
    { name: 'pkg/__init__.py', data: Buffer.from('pass\n'), method: 'deflated' },
    { name: 'pkg/noise.gguf', data: noise, method: 'stored' },
    { name: 'pkg/zeros.gguf', data: zeros, method: 'deflated' },
    { name: 'pkg/empty', data: new Uint8Array(0), method: 'stored' },
  ],
  'a comment behind the end PK\x05\x06',
)

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-wheel-'))
})
afterAll(async () => {
  await rm(folder, { recursive: true })
})

async function read(bytes: Uint8Array, member: string): Promise<Buffer> {
  const path = join(folder, 'w.whl')
  await writeFile(path, bytes)
  const chunks: Uint8Array[] = []
  for await (const chunk of readMember(path, member)) chunks.push(chunk)
  return Buffer.concat(chunks)
}

describe('readMember', () => {
  test('stored, deflated and empty members', async () => {
    expect((await read(wheel, 'pkg/noise.gguf')).equals(noise)).toBe(true)
    expect((await read(wheel, 'pkg/zeros.gguf')).equals(zeros)).toBe(true)
    expect((await read(wheel, 'pkg/empty')).length).toBe(0)
  })

  test('names what is missing', async () => {
    await expect(read(wheel, 'pkg/other')).rejects.toThrow(/has no 'pkg\/other'/)
    await expect(read(Buffer.from('no archive'), 'x')).rejects.toThrow(/not a wheel/)
    await expect(read(Buffer.alloc(0), 'x')).rejects.toThrow(/not a wheel/)
  })

  test('damage is a failure of the source', async () => {
    await expect(read(wheel.subarray(5000), 'pkg/zeros.gguf')).rejects.toThrow(SourceFailure)
    const broken = Buffer.from(wheel)
    broken.fill(0xff, wheel.indexOf('pkg/zeros.gguf') + 20, wheel.indexOf('pkg/zeros.gguf') + 200)
    await expect(read(broken, 'pkg/zeros.gguf')).rejects.toThrow(SourceFailure)
    const encrypted = Buffer.from(wheel)
    encrypted[wheel.lastIndexOf('pkg/noise.gguf') - 46 + 8]! |= 1
    await expect(read(encrypted, 'pkg/noise.gguf')).rejects.toThrow(/not read/)
  })

  test('random damage ends in bytes or in a failure', async () => {
    const small = encodeWheel([{ name: 'm', data: zeros.subarray(0, 5000), method: 'deflated' }])
    for (let round = 0; round < 200; round++) {
      const copy = Buffer.from(small)
      copy[random.below(copy.length)] = random.below(256)
      const outcome = await read(copy, 'm').catch((error: unknown) => error)
      expect(outcome instanceof SourceFailure || Buffer.isBuffer(outcome)).toBe(true)
    }
  })
})
