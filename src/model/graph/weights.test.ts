import { mkdtemp, open, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { WeightsFile } from './weights.js'

async function written(write: (file: WeightsFile) => Promise<void>): Promise<Buffer> {
  const folder = await mkdtemp(join(tmpdir(), 'refrain-weights-'))
  const handle = await open(join(folder, 'weights.bin'), 'w')
  try {
    await write(new WeightsFile(handle))
    return await readFile(join(folder, 'weights.bin'))
  } finally {
    await handle.close()
    await rm(folder, { recursive: true })
  }
}

test('regions start on pages, follow one another and fill in any order', async () => {
  const bytes = await written(async (file) => {
    const first = await file.append('first', [3], Float32Array.of(1, 2, 3))
    const second = file.reserve('second', 'uint8', [2, 2500])
    const third = await file.append('third', [2], Uint8Array.of(7, 8))
    expect([first.offset, second.offset, third.offset]).toEqual([0, 4096, 4096 * 3])
    expect([first.bytes, second.bytes, file.bytes]).toEqual([12, 5000, 4096 * 3 + 2])
    await file.fill(second, 2500, new Uint8Array(2500).fill(5))
    await file.fill(second, 0, new Uint8Array(2500).fill(4))
  })
  expect([bytes.readFloatLE(8), bytes[4096], bytes[4096 + 2499], bytes[4096 + 2500], bytes[4096 + 4999]]).toEqual([
    3, 4, 4, 5, 5,
  ])
  expect([...bytes.subarray(4096 * 3)]).toEqual([7, 8])
})

test('a part of a larger array is written as that part', async () => {
  const bytes = await written(async (file) => {
    await file.append('part', [2], Float32Array.of(1, 2, 3, 4).subarray(1, 3))
  })
  expect([bytes.length, bytes.readFloatLE(0), bytes.readFloatLE(4)]).toEqual([8, 2, 3])
})

test('data that does not fit its region is refused', async () => {
  await written(async (file) => {
    const region = file.reserve('small', 'float32', [2])
    await expect(file.fill(region, 4, Float32Array.of(1, 2))).rejects.toThrow(/leaves the region of small/)
    await expect(file.append('odd', [3], Float32Array.of(1))).rejects.toThrow(/odd has 4 bytes, not 12/)
  })
})
