import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { encodeGguf, f32, f32s, i32, i32s, u64 } from '../testing/gguf-writer.js'
import { seeded } from '../testing/random.js'
import { dequantize } from './dequantize.js'
import { Gguf } from './gguf.js'
import { ModelError } from './model-error.js'

let folder: string
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-gguf-'))
})
afterAll(async () => {
  await rm(folder, { recursive: true })
})

const matrix = Float32Array.from({ length: 8 * 32 }, (_, i) => Math.sin(i))
const file = encodeGguf(
  {
    'general.architecture': 'llama',
    'llama.block_count': 2,
    'llama.rope.freq_base': f32(10000),
    'some.signed': i32(-7),
    'some.large': u64(2 ** 40),
    'some.flag': true,
    'tokenizer.ggml.tokens': ['a', 'Ġb', 'ñ', ''],
    'tokenizer.ggml.token_type': i32s([1, -1, 3]),
    'tokenizer.ggml.scores': f32s([0.5, -2]),
  },
  [
    { name: 'w', shape: [8, 32], type: 'Q8_0', values: matrix },
    { name: 'norm', shape: [5], type: 'F32', values: Float32Array.of(1, 2, 3, 4, 5) },
    { name: 'last', shape: [8, 32], type: 'F16', values: matrix },
  ],
)

async function opened(bytes: Uint8Array): Promise<Gguf> {
  const path = join(folder, `${Math.random().toString(36).slice(2)}.gguf`)
  await writeFile(path, bytes)
  return Gguf.open(path)
}

async function refusal(bytes: Uint8Array): Promise<ModelError> {
  try {
    await (await opened(bytes)).close()
  } catch (error) {
    if (error instanceof ModelError) return error
    throw error
  }
  throw new Error('the file was accepted')
}

/** A copy of the good file with `bytes` at the place where `anchor` ends, plus `skip`. */
function patched(anchor: string, skip: number, bytes: readonly number[]): Buffer {
  const copy = Buffer.from(file)
  Buffer.from(bytes).copy(copy, copy.indexOf(anchor) + anchor.length + skip)
  return copy
}

describe('a sound file', () => {
  test('metadata of every kind', async () => {
    const gguf = await opened(file)
    expect(gguf.version).toBe(3)
    expect(gguf.get('general.architecture', 'string')).toBe('llama')
    expect(gguf.need('llama.block_count', 'number')).toBe(2)
    expect(gguf.get('some.signed', 'number')).toBe(-7)
    expect(gguf.get('some.large', 'number')).toBe(2 ** 40)
    expect(gguf.get('some.flag', 'boolean')).toBe(true)
    expect(gguf.need('tokenizer.ggml.tokens', 'strings')).toEqual(['a', 'Ġb', 'ñ', ''])
    expect(gguf.need('tokenizer.ggml.token_type', 'numbers')).toEqual([1, -1, 3])
    expect(gguf.get('tokenizer.ggml.scores', 'numbers')).toEqual([0.5, -2])
    expect(gguf.get('absent', 'number')).toBeUndefined()
    expect(() => gguf.need('absent', 'number')).toThrow(/no metadata key 'absent'/)
    expect(() => gguf.get('some.flag', 'number')).toThrow(/'some.flag' is not of the kind number/)
    await gguf.close()
  })

  test('tensors, whole and by rows', async () => {
    const gguf = await opened(file)
    const w = gguf.tensor('w')
    expect(w).toMatchObject({ shape: [8, 32], type: 'Q8_0', bytes: 8 * 34 })
    expect(w.offset % 32).toBe(0)
    const whole = dequantize('Q8_0', await gguf.read(w), 256)
    whole.forEach((value, i) => {
      expect(Math.abs(value - matrix[i]!)).toBeLessThan(0.005)
    })
    const slice = await gguf.read(w, { from: 3, count: 2 })
    expect(dequantize('Q8_0', slice, 64)).toEqual(whole.subarray(96, 160))
    await expect(gguf.read(w, { from: 7, count: 2 })).rejects.toThrow(RangeError)
    expect([...dequantize('F32', await gguf.read(gguf.tensor('norm')), 5)]).toEqual([1, 2, 3, 4, 5])
    expect(() => gguf.tensor('nope')).toThrow(/no tensor 'nope'/)
    await gguf.close()
  })

  test('strings across the reading window', async () => {
    const tokens = Array.from({ length: 90_000 }, (_, i) => `token-${i}-${'x'.repeat(i % 40)}`)
    const gguf = await opened(encodeGguf({ tokens, after: 'end' }, []))
    expect(gguf.need('tokens', 'strings')).toEqual(tokens)
    expect(gguf.get('after', 'string')).toBe('end')
    await gguf.close()
  })
})

describe('what is refused', () => {
  test('another format, another version, another byte order', async () => {
    expect((await refusal(Buffer.from('PK\x03\x04 and more than twenty-four bytes'))).message).toMatch(
      /not a GGUF file/,
    )
    expect((await refusal(Buffer.from('GGUF'))).message).toMatch(/too few/)
    expect((await refusal(patched('GGUF', 0, [1, 0, 0, 0]))).message).toMatch(/version 1 is not read/)
    expect((await refusal(patched('GGUF', 0, [0, 0, 0, 3]))).message).toMatch(/big-endian/)
    await expect(Gguf.open(folder)).rejects.toThrow(/not a file|EISDIR/)
  })

  test('counts and lengths beyond the file', async () => {
    const huge = [255, 255, 255, 255, 0, 0, 0, 0]
    const absurd = [255, 255, 255, 255, 255, 255, 255, 255]
    expect((await refusal(patched('GGUF', 4, huge))).message).toMatch(/claims 4294967295 tensors/)
    expect((await refusal(patched('GGUF', 12, absurd))).message).toMatch(/number of metadata entries is absurd/)
    expect((await refusal(patched('tokenizer.ggml.tokens', 8, huge))).message).toMatch(/claims 4294967295 elements/)
    expect((await refusal(patched('general.architecture', 4, huge))).message).toMatch(/'general.architecture' needs/)
    expect((await refusal(patched('general.architecture', 0, [99, 0, 0, 0]))).message).toMatch(/unknown value type 99/)
  })

  test('a header that is there, but absurdly large', async () => {
    const template = encodeGguf({ 'tokenizer.chat_template': 'x'.repeat((16 << 20) + 1) }, [])
    expect((await refusal(template)).message).toMatch(
      /'tokenizer.chat_template' has 16777217 bytes; 16777216 are the most/,
    )
  })

  test('tensors that cannot be', async () => {
    const name = '\x04\0\0\0\0\0\0\0last'
    expect((await refusal(patched(name, 0, [9, 0, 0, 0]))).message).toMatch(/'last' has 9 dimensions/)
    expect((await refusal(patched(name, 4, [0, 0, 0, 0]))).message).toMatch(/impossible shape/)
    expect((await refusal(patched(name, 20, [2, 0, 0, 0, 1]))).message).toMatch(/not aligned/)
    expect((await refusal(patched(name, 24, [0, 0, 16, 0]))).message).toMatch(/tensor 'last' ends at byte/)
    expect((await refusal(patched(name, 4, [33, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2]))).message).toMatch(
      /rows of 33, not a multiple of 32/,
    )
    const unread = await refusal(patched(name, 20, [20, 0, 0, 0]))
    expect(unread.fault).toBe('unsupported')
    expect(unread.message).toMatch(/'last' has the type IQ4_NL, which is not read; F32, F16, Q4_0/)
    const twice = Buffer.from(file)
    twice[twice.indexOf('last')] = 'l'.charCodeAt(0)
    twice.write('norm', twice.indexOf(name) + 8)
    expect((await refusal(twice)).message).toMatch(/tensor 'norm' is there twice/)
  })

  test('a part of a split file', async () => {
    const refused = await refusal(encodeGguf({ 'split.count': 3 }, []))
    expect(refused.message).toMatch(/one of 3 parts/)
  })

  test('every truncation is named, never a crash', async () => {
    for (let length = 0; length < file.length - 32; length += 13) {
      const refused = await refusal(file.subarray(0, length))
      expect(refused.message).toMatch(/cut off|too few|claims/)
    }
  })

  test('random damage gives a file or a refusal', async () => {
    const random = seeded(1)
    for (let round = 0; round < 400; round++) {
      const copy = Buffer.from(file)
      for (let flips = 0; flips < 3; flips++) copy[random.below(copy.length - 600)] = random.below(256)
      const outcome = await opened(copy).catch((error: unknown) => error)
      if (outcome instanceof Gguf) await outcome.close()
      else expect(outcome).toBeInstanceOf(ModelError)
    }
  })
})
