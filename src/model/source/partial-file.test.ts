import { createHash } from 'node:crypto'
import { mkdir, mkdtemp, readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { PartialFile, sweep } from './partial-file.js'

let folder: string
let target: string
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-partial-'))
  target = join(folder, 'weights', 'm.gguf')
})
afterEach(async () => {
  await rm(folder, { recursive: true })
})

const url = 'http://127.0.0.1/m'
const sha256 = (text: string) => createHash('sha256').update(text).digest('hex')
const left = async () => (await readdir(join(folder, 'weights'))).sort()

/** A folder that a process with this id seems to hold, with four bytes of data. */
async function heldBy(pid: number, host = hostname().replace(/[^A-Za-z0-9._-]/g, '_')): Promise<string> {
  const path = `${target}.partial-${host}-${pid}-0123abcd`
  await mkdir(path, { recursive: true })
  await writeFile(join(path, 'data'), 'abcd')
  await writeFile(join(path, 'origin.json'), JSON.stringify({ url, validator: '"v1"' }))
  return path
}

/** No process has this id: it is above the system's limit. */
const DEAD = 4_194_305

describe('one pull', () => {
  test('what is appended arrives with its digest, and nothing is left behind', async () => {
    const partial = await PartialFile.claim(target)
    await partial.restart(undefined)
    await partial.append(Buffer.from('hello '))
    await partial.append(Buffer.from('world'))
    expect(partial.bytes).toBe(11)
    expect(await partial.seal()).toBe(sha256('hello world'))
    await partial.moveTo(target)
    await partial.release()
    expect(await readFile(target, 'utf8')).toBe('hello world')
    expect(await left()).toEqual(['m.gguf'])
  })

  test('released data is continued for the same url only', async () => {
    const first = await PartialFile.claim(target)
    await first.resume(url)
    expect(first.bytes).toBe(0)
    await first.restart({ url, validator: '"v1"' })
    await first.append(Buffer.from('abc'))
    await first.release()
    expect(await left()).toEqual([expect.stringMatching(/^m\.gguf\.partial-free-/)])

    const second = await PartialFile.claim(target)
    await second.resume(url)
    expect(second.bytes).toBe(3)
    expect(second.origin).toEqual({ url, validator: '"v1"' })
    await second.append(Buffer.from('def'))
    expect(await second.seal()).toBe(sha256('abcdef'))
    await second.release()

    const third = await PartialFile.claim(target)
    await third.resume('http://127.0.0.1/other')
    expect(third.bytes).toBe(0)
    await third.release()
    expect(await left()).toEqual([])
  })

  test('a linked file is shared, hashed, and survives everything that is done to the partial file', async () => {
    const source = join(folder, 'source')
    await writeFile(source, 'precious')
    const partial = await PartialFile.claim(target)
    await partial.fill(source, () => undefined)
    expect((await stat(partial.data)).ino).toBe((await stat(source)).ino)
    expect(await partial.seal()).toBe(sha256('precious'))
    await partial.restart(undefined)
    await partial.append(Buffer.from('other'))
    await partial.discard()
    expect(await readFile(source, 'utf8')).toBe('precious')
  })
})

describe('several pulls', () => {
  test('what a dead process left is taken over', async () => {
    await heldBy(DEAD)
    const partial = await PartialFile.claim(target)
    await partial.resume(url)
    expect(partial.bytes).toBe(4)
    await partial.discard()
    expect(await left()).toEqual([])
  })

  test('what a living process or another host holds is left alone, for a day', async () => {
    const held = [await heldBy(process.pid), await heldBy(DEAD, 'elsewhere')]
    const partial = await PartialFile.claim(target)
    await partial.resume(url)
    expect(partial.bytes).toBe(0)
    await sweep(target)
    expect(await left()).toHaveLength(3)
    await partial.discard()
    const old = new Date(Date.now() - 25 * 3600 * 1000)
    for (const path of held) {
      await utimes(join(path, 'data'), old, old)
      await utimes(path, old, old)
    }
    await sweep(target)
    expect(await left()).toEqual([])
  })

  test('only one of many takes over', async () => {
    const path = await heldBy(DEAD)
    const partials = await Promise.all(Array.from({ length: 8 }, () => PartialFile.claim(target)))
    for (const partial of partials) await partial.resume(url)
    expect(partials.filter(({ bytes }) => bytes === 4)).toHaveLength(1)
    for (const partial of partials) await partial.discard()
    await expect(stat(path)).rejects.toThrow(/ENOENT/)
  })

  test('a torn note of the origin starts anew', async () => {
    const path = await heldBy(DEAD)
    await writeFile(join(path, 'origin.json'), '{"url":')
    await rename(path, `${target}.partial-free-00000000`)
    const partial = await PartialFile.claim(target)
    await partial.resume(url)
    expect(partial.bytes).toBe(0)
    await partial.discard()
  })
})
