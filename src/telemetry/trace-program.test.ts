// Traces of the built program: phases come from the engine's thread, and the last spans are sent before it ends.

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { type Collector, startCollector } from '../testing/otlp-collector.js'
import { isBuilt, post, type Served, serve } from '../testing/served.js'
import { writeToyModel } from '../testing/toy-model.js'

let folder: string
let collector: Collector
let served: Served | undefined

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'refrain-traces-'))
  collector = await startCollector()
})

afterEach(async () => {
  await served?.end('SIGKILL')
  await collector.close()
  await rm(folder, { recursive: true, force: true })
})

test.skipIf(!isBuilt)('phases of a real engine, the last ones sent at its end (needs npm run build)', async () => {
  const model = join(folder, 'toy.gguf')
  await writeToyModel(model, { architecture: 'llama', quantization: 'Q4_1' })
  process.env['REFRAIN_TELEMETRY__TRACE__ENDPOINT'] = collector.url
  try {
    served = await serve(['--data-dir', join(folder, 'data'), '--model', model])
  } finally {
    delete process.env['REFRAIN_TELEMETRY__TRACE__ENDPOINT']
  }
  const prompt = Array.from({ length: 150 }, (_, i) => `w${(i * i * 7) % 97}`).join(' ')
  const ask = () => post(served?.url ?? '', '/v1/completions', { prompt, max_tokens: 4, ignore_eos: true })
  await ask()
  const { tiers, usage } = await ask()
  expect(await served.end('SIGTERM')).toBe(0)
  const roots = collector.spans.filter(({ kind }) => kind === 2).sort((a, b) => a.start - b.start)
  expect(roots).toHaveLength(2)
  for (const { spanId, start, end } of roots) {
    const phases = collector.spans.filter(({ parentSpanId }) => parentSpanId === spanId)
    expect(phases.map(({ name }) => name)).toEqual(['queue', 'restore', 'prefill', 'decode'])
    // Both threads go by the machine's clock.
    for (const phase of phases) {
      expect(phase.start).toBeGreaterThanOrEqual(start - 0.1)
      expect(phase.end).toBeLessThanOrEqual(end + 5)
    }
  }
  expect(roots[1]?.attributes).toMatchObject({
    'gen_ai.operation.name': 'text_completion',
    'gen_ai.usage.input_tokens': usage.prompt_tokens,
    'gen_ai.usage.output_tokens': 4,
    'refrain.tokens.computed': tiers['computed'],
  })
})
