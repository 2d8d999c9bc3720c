// Plans against figures that are known from elsewhere, and against arithmetic done by hand.

import { fileURLToPath } from 'node:url'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { planCommand } from './command.js'
import { shapeOfConfig } from './hugging-face.js'
import { fitPrefill, makePlan, prefillMs } from './plan.js'
import { type KvShape, parseShape, sessionBytes, tokenBytes, totalBytes, widthsOf } from './shape.js'
import { loadShape, shapeNames } from './shape-sources.js'

const folder = [fileURLToPath(new URL('../../models/shapes', import.meta.url))]
const shape = (name: string) => loadShape(name, folder)
const session = async (name: string, tokens: number, dtype?: 'bf16') => {
  const each = await shape(name)
  return sessionBytes(each, tokens, widthsOf(each, dtype))
}

describe('bytes', () => {
  test('V3: 61 layers of 576 bf16 elements are about 70 KB a token', async () => {
    const v3 = await shape('deepseek-v3')
    expect(tokenBytes(v3, widthsOf(v3))).toBe(61 * 576 * 2)
    expect(tokenBytes(v3, widthsOf(v3)) / 1000).toBeCloseTo(70.3, 1)
  })

  test('V3.2 at 131,072 tokens: 5.2 GB of entries and 1.1 GB of index', async () => {
    const { entries, index, state } = await session('deepseek-v3.2', 131_072)
    expect([entries / 1e9, index / 1e9, state]).toEqual([expect.closeTo(5.245, 3), expect.closeTo(1.055, 3), 0])
  })

  test('V4 Pro in bf16 at 1,048,576 tokens: 9.62 GiB', async () => {
    expect(totalBytes(await session('deepseek-v4-pro', 1_048_576, 'bf16')) / 2 ** 30).toBeCloseTo(9.62, 2)
  })

  test('heads of a small model: 30 layers, 3 heads of 64, K and V, 2 bytes', async () => {
    expect(totalBytes(await session('smollm2-135m-instruct', 10))).toBe(10 * 30 * 3 * 64 * 2 * 2)
  })

  test('a window stops growing, a state never grows', async () => {
    const window = 18 * 8 * 128 * 2
    const full = 18 * 8 * 128 * 2
    expect(totalBytes(await session('gpt-oss-120b', 100))).toBe(100 * (window + full))
    expect(totalBytes(await session('gpt-oss-120b', 1000))).toBe(128 * window + 1000 * full)
    const { state, entries } = await session('qwen3-next-80b', 1000)
    expect([state, entries]).toEqual([36 * 2_146_304, 1000 * 12 * 2 * 512 * 2])
    expect((await session('qwen3-next-80b', 100_000)).state).toBe(state)
  })

  test('every shape of the package is right and never shrinks with the length', async () => {
    const names = await shapeNames(folder)
    expect(names.length).toBeGreaterThan(8)
    for (const name of names) {
      const each = await shape(name)
      expect(each.name).toBe(name)
      fc.assert(
        fc.property(fc.nat(2_000_000), fc.nat(5000), (tokens, more) => {
          const widths = widthsOf(each)
          const before = totalBytes(sessionBytes(each, tokens, widths))
          expect(totalBytes(sessionBytes(each, tokens + more, widths))).toBeGreaterThanOrEqual(before)
        }),
        { numRuns: 30 },
      )
    }
  })
})

describe('shapes', () => {
  test.each([
    ['name: a\ndtype: bf16\nlayers: []', /layers .*fewer/],
    ['name: a\ndtype: bf16\nlayers: [{kind: ring, count: 1}]', /layers\[0\]\.kind must be one of full, latent/],
    ['name: a\ndtype: bf16\nlayers: [{kind: full, count: 1, kvHeads: 8}]', /layers\[0\].*headDim/],
    ['name: a\ndtype: bf16\nlayers: [{kind: full, count: 0, kvHeads: 8, headDim: 1}]', /layers\[0\]\.count/],
    ['name: a\ndtype: int3\nlayers: [{kind: full, count: 1, kvHeads: 8, headDim: 1}]', /dtype/],
    ['name: [', /not YAML/],
  ])('refuses %j', (text, complaint) => {
    expect(() => parseShape(text, 'a.yaml')).toThrow(complaint)
  })

  test('an unknown name is answered with the known ones', async () => {
    await expect(shape('no-such')).rejects.toThrow(/known are .*deepseek-v3\.2.*config\.json/)
  })

  const v4Types = ['sliding_attention', 'compressed_sparse_attention', 'heavily_compressed_attention']
  test.each<[string, Record<string, unknown>, KvShape['layers']]>([
    [
      'grouped heads',
      { num_hidden_layers: 2, num_attention_heads: 8, num_key_value_heads: 2, hidden_size: 512 },
      [{ kind: 'full', kvHeads: 2, headDim: 64, count: 2 }],
    ],
    [
      'latent with an index',
      { num_hidden_layers: 61, kv_lora_rank: 512, qk_rope_head_dim: 64, index_head_dim: 128 },
      [{ kind: 'latent', dim: 576, index: { dim: 128 }, count: 61 }],
    ],
    [
      'windows in a pattern',
      { num_hidden_layers: 6, sliding_window: 512, sliding_window_pattern: 6, num_attention_heads: 4, head_dim: 256 },
      [
        { kind: 'sliding', window: 512, kvHeads: 4, headDim: 256, count: 5 },
        { kind: 'full', kvHeads: 4, headDim: 256, count: 1 },
      ],
    ],
    [
      'states between',
      {
        ...{ num_hidden_layers: 48, full_attention_interval: 4, num_attention_heads: 16, num_key_value_heads: 2 },
        ...{ head_dim: 256, linear_num_value_heads: 32, linear_value_head_dim: 128, linear_num_key_heads: 16 },
        ...{ linear_key_head_dim: 128, linear_conv_kernel_dim: 4 },
      },
      [
        { kind: 'state', stateBytes: 2_146_304, count: 36 },
        { kind: 'full', kvHeads: 2, headDim: 256, count: 12 },
      ],
    ],
    [
      'compressed, by types',
      {
        ...{ num_hidden_layers: 3, layer_types: v4Types, head_dim: 512, sliding_window: 128, index_head_dim: 128 },
        compress_rates: { compressed_sparse_attention: 4, heavily_compressed_attention: 128 },
      },
      [
        { kind: 'compressed', window: 128, dim: 512, count: 1 },
        { kind: 'compressed', window: 128, dim: 512, ratio: 4, index: { dim: 128 }, count: 1 },
        { kind: 'compressed', window: 128, dim: 512, ratio: 128, count: 1 },
      ],
    ],
    [
      'compressed, by ratios, inside of text_config',
      {
        text_config: {
          ...{ num_hidden_layers: 2, compress_ratios: [128, 4, 0], head_dim: 512, index_head_dim: 128 },
          sliding_window: 128,
        },
      },
      [
        { kind: 'compressed', window: 128, dim: 512, ratio: 128, count: 1 },
        { kind: 'compressed', window: 128, dim: 512, ratio: 4, index: { dim: 128 }, count: 1 },
      ],
    ],
  ])('config.json: %s', (_, config, layers) => {
    expect(shapeOfConfig(config, 'config.json').layers).toEqual(layers)
  })

  test('config.json: what is not understood is named', () => {
    const config = { num_hidden_layers: 1, layer_types: ['mamba'] }
    expect(() => shapeOfConfig(config, 'c.json')).toThrow(/layers of type 'mamba'/)
    expect(() => shapeOfConfig({}, 'c.json')).toThrow(/'num_hidden_layers' must be a whole number/)
  })
})

describe('times', () => {
  test('prefill: one point is a rate, two points bend', () => {
    expect(prefillMs(1000, fitPrefill([{ tokens: 4096, tokensPerSecond: 500 }]))).toBeCloseTo(2000)
    const points = [
      { tokens: 4096, tokensPerSecond: 8000 },
      { tokens: 131_072, tokensPerSecond: 3000 },
    ]
    const cost = fitPrefill(points)
    for (const { tokens, tokensPerSecond } of points) {
      expect(prefillMs(tokens, cost)).toBeCloseTo((1000 * tokens) / tokensPerSecond)
    }
  })

  test('break-even: from there on a restore is no slower, one block before it is', async () => {
    const each = await shape('llama-3.1-70b')
    fc.assert(
      fc.property(
        fc.double({ min: 1e8, max: 1e11, noNaN: true }),
        fc.double({ min: 0, max: 2000, noNaN: true }),
        fc.double({ min: 100, max: 50_000, noNaN: true }),
        (bytesPerSecond, overheadMs, tokensPerSecond) => {
          const prefill = fitPrefill([{ tokens: 4096, tokensPerSecond }])
          const tiers = [{ tier: 'disk', overheadMs, bytesPerSecond }] as const
          const at = makePlan({ shape: each, tokens: 4096, tiers, prefill }).tiers[0]!.breakEvenTokens!
          const gain = (tokens: number) => {
            const bytes = totalBytes(sessionBytes(each, tokens, widthsOf(each)))
            return (1000 * tokens) / tokensPerSecond - overheadMs - (1000 * bytes) / bytesPerSecond
          }
          if (at === 'never') expect(gain(131_072)).toBeLessThan(1e-6)
          else {
            expect(gain(at)).toBeGreaterThanOrEqual(-1e-6)
            if (at > 64) expect(gain(at - 64)).toBeLessThan(1e-6)
          }
        },
      ),
    )
  })

  test('what fits: whole sessions, and the tokens of one more', async () => {
    const each = await shape('smollm2-135m-instruct')
    const bytes = totalBytes(sessionBytes(each, 1000, widthsOf(each)))
    const tiers = [{ tier: 'gpu', overheadMs: 0, bytes: 2.5 * bytes }] as const
    expect(makePlan({ shape: each, tokens: 1000, tiers }).tiers[0]).toMatchObject({ sessions: 2, fitTokens: 2500 })
  })
})

describe('refrain plan', () => {
  test('prints the figures, and says which flags are missing', async () => {
    const text = await planCommand('deepseek-v3.2', { tokens: '128Ki' })
    expect(text).toContain('entries 5.24 GB, index 1.06 GB')
    expect(text).toContain('give --gpu, --host or --disk')
    expect(text).toContain('give --prefill and --host-rate or --disk-rate')
  })

  test('with all flags, as text and as JSON', async () => {
    const flags = { tokens: '100k', gpu: '80GB', disk: '4TB', diskRate: '5GB/s', prefill: '4096:8000,131072:4000' }
    const text = await planCommand('deepseek-v3.2', flags)
    expect(text).toMatch(/gpu +80\.0 GB +16 /)
    expect(text).toMatch(/restore from disk, 5\.00 ms each +966 ms/)
    const plan = JSON.parse(await planCommand('deepseek-v3.2', { ...flags, json: true }))
    expect(plan.tiers[1]).toMatchObject({ tier: 'disk', sessions: 832, breakEvenTokens: 64 })
  })

  test.each([
    [{ tokens: '12x' }, /--tokens: '12x'/],
    [{ gpu: 'much' }, /--gpu: 'much' is no size/],
    [{ diskRate: '0' }, /--disk-rate: a rate must be more than 0/],
    [{ dtype: 'int4' }, /--dtype: 'int4' is none of/],
    [{ prefill: '4096:fast' }, /--prefill: 'fast'/],
    [{ server: 'http://127.0.0.1:1' }, /--server: .* does not answer/],
  ])('refuses %j', async (flags, complaint) => {
    await expect(planCommand('deepseek-v3', flags)).rejects.toThrow(complaint)
  })
})
