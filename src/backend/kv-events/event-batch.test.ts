// What is taken from events beyond hashes and tokens, and that nothing sent is an error.

import fc from 'fast-check'
import { pack } from 'msgpackr'
import { describe, expect, test } from 'vitest'
import { type BlockStored, decodeBatch, type KvEvent } from './event-batch.js'

const batch = (...events: unknown[]) => decodeBatch(pack([1.5, events, 3]) as Buffer)
const stored = (fields: object): BlockStored => {
  const { events, bad } = batch({ type: 'BlockStored', block_hashes: [7], token_ids: [1, 2], block_size: 2, ...fields })
  expect(bad).toBe(0)
  return events[0] as BlockStored
}

describe('an event', () => {
  test('of the first block: the salt stands behind the adapter and the images', () => {
    const image = ['0f3a', 1]
    const event = stored({ lora_name: 'sql', extra_keys: [['sql', image, 'tenant-7', Buffer.from([1, 2])]] })
    expect(event).toMatchObject({ adapter: 'sql', salt: 'tenant-7', tellsSalt: true })
    expect(event.extras).toHaveLength(1)
    expect(stored({ lora_name: 'sql', extra_keys: [['sql', 'tenant-7']] })).toMatchObject({
      ...{ adapter: 'sql', salt: 'tenant-7', extras: undefined },
    })
  })

  test('of a later block: a bare text is an image', () => {
    const event = stored({ parent_block_hash: 6, extra_keys: [['0f3a']] })
    expect(event.salt).toBeUndefined()
    expect(event.extras?.[0]).toContain('0f3a')
  })

  test('of images: other images and other places are other extras', () => {
    const spelled = [
      ['a', 1],
      ['a', 2],
      ['b', 1],
    ].map((image) => stored({ extra_keys: [[image]] }).extras?.[0])
    expect(new Set(spelled).size).toBe(3)
  })

  test('of an adapter that has but a number', () => {
    expect(stored({ lora_id: 3 }).adapter).toBe('#3')
  })

  test('of bigrams (EAGLE): the first of each pair is the token', () => {
    const event = stored({
      token_ids: [
        [1, 2],
        [2, 3],
      ],
    })
    expect([...event.tokens]).toEqual([1, 2])
  })

  test('of every medium there is', () => {
    const media = [null, 'GPU', 'CPU', 'CPU_PINNED', 'FS', 'DISK', 'OBJ', 'EXTERNAL'].map(
      (medium) => stored({ medium }).medium,
    )
    expect(media).toEqual(['device', 'device', 'host', 'host', 'disk', 'disk', 'remote', 'remote'])
  })

  test('of offloading, without tokens', () => {
    expect(stored({ token_ids: [], block_size: 0, medium: 'CPU' }).tokens).toHaveLength(0)
  })

  test.each([
    ['tokens that are no blocks', { token_ids: [1, 2, 3] }],
    ['a token that is no number', { token_ids: [1, 'two'] }],
    ['a token below zero', { token_ids: [1, -2] }],
    ['a hash that is a text', { block_hashes: ['seven'] }],
    ['a hash of three bytes', { block_hashes: [Buffer.from([1, 2, 3])] }],
    ['no hashes', { block_hashes: 7 }],
    ['a parent that is a list', { parent_block_hash: [7] }],
    ['a medium that is a number', { medium: 7 }],
  ])('with %s is skipped and counted, and those beside it count', (_, wrong) => {
    const removed = ['BlockRemoved', [9]]
    const bad = { type: 'BlockStored', block_hashes: [7], token_ids: [1, 2], block_size: 2, ...wrong }
    const { events, bad: count, broken } = batch(removed, bad, removed, ['AllBlocksCleared'])
    expect(events.map(({ type }) => type)).toEqual(['removed', 'removed', 'cleared'])
    expect({ count, broken }).toEqual({ count: 1, broken: false })
  })

  test('of a type that is not known is counted apart', () => {
    const { events, bad, unknown } = batch({ type: 'BlockMoved', from: 1 }, ['BlockPinned', 2], 7, [], {})
    expect({ events, bad, unknown }).toEqual({ events: [], bad: 3, unknown: 2 })
  })

  test('before a frame ends too early counts', () => {
    const whole = pack([
      1.5,
      [
        ['BlockRemoved', [9]],
        ['BlockRemoved', [10]],
      ],
      3,
    ]) as Buffer
    const { events, broken } = decodeBatch(whole.subarray(0, -4))
    expect(events).toHaveLength(1)
    expect(broken).toBe(true)
  })
})

describe('any bytes', () => {
  test('decode to something', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 400 }), (bytes) => {
        expect(decodeBatch(bytes).events).toBeInstanceOf(Array)
      }),
      { numRuns: 2000 },
    )
  })

  test('that were a batch before some of them changed, too, and what is whole is within bounds', () => {
    const events = [
      {
        type: 'BlockStored',
        block_hashes: [1, 2n ** 60n],
        token_ids: [1, 2, 3, 4],
        block_size: 2,
        extra_keys: [['s'], null],
      },
      ['BlockStored', [Buffer.alloc(32, 7)], Buffer.alloc(32, 6), [5, 70_000], 2, null, 'GPU'],
      ['BlockRemoved', [1], 'CPU'],
      ['AllBlocksCleared'],
    ]
    const whole = pack([1.5, events, 0]) as Buffer
    const change = fc.record({ at: fc.nat(whole.length - 1), to: fc.nat(255) })
    fc.assert(
      fc.property(fc.array(change, { minLength: 1, maxLength: 6 }), fc.nat(whole.length), (changes, end) => {
        const bytes = Buffer.from(whole)
        for (const { at, to } of changes) bytes[at] = to
        for (const event of decodeBatch(bytes.subarray(0, end)).events) expect(isWhole(event)).toBe(true)
      }),
      { numRuns: 3000 },
    )
  })
})

function isWhole(event: KvEvent): boolean {
  if (event.type === 'cleared') return true
  if (event.hashes.words.length !== 2 * event.hashes.count) return false
  if (event.type === 'removed') return true
  const { tokens, blockTokens, hashes } = event
  return tokens.length === 0 || (blockTokens > 0 && tokens.length === blockTokens * hashes.count)
}
