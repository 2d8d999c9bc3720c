// Every generation of events, recorded from engines or written here in their forms, decodes to the same index; and that index
// foretells what the recorded engine reported.

import { pack, Unpackr } from 'msgpackr'
import { describe, expect, test } from 'vitest'
import { promptKeys } from '../../core/block-keys.js'
import { HeldIndex } from '../../testing/held-index.js'
import { hasKvRecordings, type KvStep, kvRecording } from '../../testing/kv-recordings.js'
import { decodeBatch } from './event-batch.js'
import { type Applied, MemberHoldings, RankHoldings } from './holdings.js'

class Followed {
  readonly index = new HeldIndex()
  readonly applied: Applied = { stored: 0, removed: 0, duplicates: 0, orphans: 0, ignored: 0 }
  readonly faults = { bad: 0, unknown: 0, broken: 0 }
  readonly shared = new MemberHoldings('m', this.index)
  readonly rank = new RankHoldings(this.shared, { aliases: 100_000, isOnly: true })

  take(payload: Uint8Array): void {
    const { events, bad, unknown, broken } = decodeBatch(payload)
    this.faults.bad += bad
    this.faults.unknown += unknown
    if (broken) this.faults.broken++
    for (const event of events) this.rank.apply(event, this.applied)
  }

  get held(): string[] {
    expect(this.index.complaints).toEqual([])
    expect(this.faults).toEqual({ bad: 0, unknown: 0, broken: 0 })
    return this.index.held('m')
  }
}

/** Whole prompts are never reused: their last token is computed for its logits. */
function foretold(
  { index }: Followed,
  tokens: readonly number[],
  blockTokens: number,
  salt: string | undefined,
): number {
  const keys = promptKeys(tokens, { blockTokens, salt })
  return Math.min(index.prefix('m', keys), Math.floor((tokens.length - 1) / blockTokens)) * blockTokens
}

function requestsOf(
  step: KvStep,
): { tokens: readonly number[]; cached: number | undefined; salt: string | undefined }[] {
  const several = Array.isArray(step.prompt_token_ids?.[0])
  const [prompts, usages] = several ? [step.prompt_token_ids, step.usage] : [[step.prompt_token_ids], [step.usage]]
  const salt = (step.request as { cache_salt?: string } | undefined)?.cache_salt
  return (prompts as unknown as (readonly number[] | undefined)[]).flatMap((tokens, i) => {
    const usage = (usages as KvStep['usage'][])[i]
    return tokens === undefined ? [] : [{ tokens, cached: usage?.prompt_tokens_details?.cached_tokens, salt }]
  })
}

describe.skipIf(!hasKvRecordings)('recorded events (needs ../shared)', () => {
  test.each([
    ['vllm-0.32.0', 32, 11],
    ['vllm-0.32.0-evict-bytes', 32, 16],
    ['vllm-0.32.0-dup-latejoin-bytes', 32, 13],
  ])('%s foretells what the engine reported', (name, blockTokens, requests) => {
    const followed = new Followed()
    const { messages, steps } = kvRecording(name)
    const seen: string[] = []
    const said: string[] = []
    for (const step of steps) {
      // The clear is published with the engine's next step: what is foretold meanwhile is of no account.
      const isAfterReset = step.name === 'A1-after-reset' || (name.includes('dup') && step.name === 'A1')
      for (const { tokens, cached, salt } of requestsOf(step)) {
        if (cached === undefined) continue
        said.push(`${step.name} ${cached}`)
        const told = foretold(followed, tokens, blockTokens, salt)
        seen.push(`${step.name} ${isAfterReset ? cached : told}`)
      }
      for (const { socket, during, frames } of messages) {
        if (socket === 'pub' && during === step.name) followed.take(frames.at(-1) as Buffer)
      }
    }
    expect(seen).toEqual(said)
    expect(said.length).toBe(requests)
    expect(followed.held.length).toBeGreaterThan(0)
    expect(followed.applied.orphans).toBe(0)
  })

  test('another block size gives other keys, and the same reuse', () => {
    const followed = new Followed()
    const { messages, steps } = kvRecording('vllm-0.32.0-block128')
    for (const { socket, frames } of messages) if (socket === 'pub') followed.take(frames.at(-1) as Buffer)
    const tokens = steps.find(({ name }) => name === 'A2')?.prompt_token_ids as number[]
    expect(foretold(followed, tokens, 128, undefined)).toBe(128)
    expect(foretold(followed, tokens, 32, undefined)).toBe(0)
    expect(followed.shared.blockTokens).toEqual([128])
  })

  test.each([
    ['vllm-0.23.0-encoder-only', 'vllm-0.32.0-evict-bytes', 'as is'],
    ['vllm-0.11.0-encoder-only', 'vllm-0.32.0', 'unsalted'],
  ] as const)('%s gives the index of %s', (older, newer, salts) => {
    const indexOf = (name: string, form: Form) => {
      const followed = new Followed()
      for (const { socket, frames } of kvRecording(name).messages) {
        if (socket === 'pub') followed.take(rewrite(frames.at(-1) as Buffer, form))
      }
      return { held: followed.held, ...followed.applied, salted: followed.rank.tellsSalt }
    }
    const form: Form = salts === 'unsalted' ? withoutExtras : (event) => event
    expect(indexOf(older, (event) => event)).toEqual({ ...indexOf(newer, form), salted: salts === 'as is' })
  })

  const recorded = () => kvRecording('vllm-0.32.0-evict-bytes').messages.filter(({ socket }) => socket === 'pub')
  const held = (form: Form, batchForm?: BatchForm) => {
    const followed = new Followed()
    // Before the clear at the end: there is more to compare.
    for (const { frames } of recorded().slice(0, 39)) followed.take(rewrite(frames.at(-1) as Buffer, form, batchForm))
    return followed.held
  }

  test.each(Object.entries(salted()))('%s has the same index', (_, [form, batchForm]) => {
    const reference = held((event) => event)
    expect(reference.length).toBeGreaterThan(50)
    expect(held(form, batchForm)).toEqual(reference)
  })

  test.each(Object.entries(unsalted()))('%s, which knows no salts, has the index without them', (_, form) => {
    expect(held(form)).toEqual(held(withoutExtras))
  })
})

// --- the forms of the field ------------------------------------------------------------------------------------------

type Fields = Record<string, unknown>
type Form = (event: Fields) => unknown
type BatchForm = (at: number, events: unknown[], rank: number) => unknown

const unpackr = new Unpackr({ useRecords: false, int64AsType: 'bigint', mapsAsObjects: true })

function rewrite(payload: Buffer, form: Form, batchForm: BatchForm = (...batch) => batch): Buffer {
  const [at, events, rank] = unpackr.unpack(payload) as [number, Fields[], number]
  return pack(batchForm(at, events.map(form), rank)) as Buffer
}

function withoutExtras({ extra_keys: _, ...event }: Fields): Fields {
  return event
}

const hashesOf = (event: Fields, form: (hash: unknown) => unknown): Fields => ({
  ...event,
  ...(event['block_hashes'] !== undefined && { block_hashes: (event['block_hashes'] as unknown[]).map(form) }),
  ...(event['parent_block_hash'] !== undefined && { parent_block_hash: form(event['parent_block_hash']) }),
})

/** As an engine that sends integers makes them of digests. */
const unsignedHash = (hash: unknown) => (hash instanceof Uint8Array ? Buffer.from(hash).readBigUInt64BE(24) : hash)
const signedHash = (hash: unknown) => (hash instanceof Uint8Array ? Buffer.from(hash).readBigInt64BE(24) : hash)

const saltOf = (event: Fields) => (event['extra_keys'] as (string[] | null)[] | undefined)?.[0]?.[0]

/** By position, all that there are, or up to a field. */
function positional(event: Fields, last = 'kv_cache_spec_kind'): unknown[] {
  const { type } = event
  if (type === 'AllBlocksCleared') return [type]
  if (type === 'BlockRemoved') return [type, event['block_hashes'], event['medium'] ?? null]
  const names = ['block_hashes', 'parent_block_hash', 'token_ids', 'block_size', 'lora_id', 'medium', 'lora_name']
  const all = [...names, 'extra_keys', 'group_idx', 'kv_cache_spec_kind']
  return [type, ...all.slice(0, all.indexOf(last) + 1).map((name) => event[name] ?? null)]
}

function salted(): Record<string, [Form, BatchForm?]> {
  const map: Form = (event) => event
  return {
    'a map batch': [map, (ts, events, rank) => ({ events, data_parallel_rank: rank, ts })],
    'a batch without its rank': [map, (ts, events) => [ts, events]],
    'fields in another order': [(event) => Object.fromEntries(Object.entries(event).reverse())],
    'fields of versions to come': [(event) => ({ ...event, locality: 'LOCAL', ownership: { a: [1, 2] } })],
    'integers for digests': [(event) => hashesOf(event, unsignedHash)],
    'arrays with everything': [(event) => positional(event)],
    'arrays up to the extra keys': [(event) => positional(hashesOf(event, unsignedHash), 'extra_keys')],
    "SGLang's map at position 7": [
      (event) => {
        const array = positional(hashesOf(event, signedHash), 'medium')
        const salt = saltOf(event)
        return event['type'] === 'BlockStored' ? [...array, salt === undefined ? {} : { cache_salt: salt }] : array
      },
    ],
    "SGLang's maps": [
      (event) => {
        const salt = saltOf(event)
        return { ...withoutExtras(hashesOf(event, signedHash)), ...(salt !== undefined && { cache_salt: salt }) }
      },
    ],
    'medium and group left out': [({ medium: _m, group_idx: _g, kv_cache_spec_kind: _k, ...event }) => event],
  }
}

function unsalted(): Record<string, Form> {
  const first = (event: Fields) => positional(hashesOf(event, signedHash), 'lora_id')
  return {
    'the first form of vLLM and SGLang': (event) =>
      event['type'] === 'BlockRemoved' ? first(event).slice(0, 2) : first(event),
    'arrays up to the medium': (event) => positional(hashesOf(event, signedHash), 'medium'),
    "arrays up to the adapter's name": (event) => positional(event, 'lora_name'),
  }
}
