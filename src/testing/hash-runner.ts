// A runner without a network: each KV row is a hash of its token and of the row before it, and the logits are a hash of
// all rows. A row that is wrong, missing, stale or of another prompt changes every token after it, so that equality of
// outputs proves equality of KV. Values are small integers, which fp16 holds exactly.

import { setTimeout as sleep } from 'node:timers/promises'
import type { KvLayout } from '../core/block.js'
import type { DecodeRow, Runner, TreeToken } from '../engine/contract.js'
import type { Slot } from '../engine/slot.js'

export interface HashRunnerOptions {
  readonly layout: KvLayout
  readonly vocabSize: number
  readonly decodeRows?: number
  /** Waits so long in every run. */
  readonly runMs?: number
  /** Called before a run, with its tokens. */
  readonly onRun?: (kind: 'prefill' | 'decode' | 'tree', tokens: number) => void
}

export function createHashRunner(options: HashRunnerOptions): Runner {
  const { layout, vocabSize, decodeRows = 4, runMs = 0, onRun } = options
  const { layers, kvHeads, headDim } = layout

  /** K/V rows of `states`, one a token. */
  const rowsOf = (states: readonly number[]) => {
    const empty = () => Array.from({ length: layers }, () => new Float32Array(kvHeads * states.length * headDim))
    const rows = { k: empty(), v: empty() }
    for (const [i, state] of states.entries()) {
      for (let layer = 0; layer < layers; layer++) {
        for (let head = 0; head < kvHeads; head++) {
          for (let d = 0; d < headDim; d++) {
            const at = (head * states.length + i) * headDim + d
            const value = d === 0 ? state : mix(state, layer * 31 + head * 7 + d)
            ;(rows.k[layer] as Float32Array)[at] = value
            ;(rows.v[layer] as Float32Array)[at] = mix(value, 3)
          }
        }
      }
    }
    return (layer: number, letter: 'k' | 'v') => rows[letter][layer] as Float32Array
  }

  const rowState = (slot: Slot, row: number) => (row < 0 ? 7 : ((slot.k[0] as Float32Array)[row * headDim] as number))

  const append = (slot: Slot, ids: Int32Array) => {
    let state = rowState(slot, slot.length - 1)
    const states = Array.from(ids, (id) => {
      state = mix(state, id)
      return state
    })
    slot.append(ids, rowsOf(states))
  }

  const logits = (slot: Slot, rows: readonly number[] = Array.from({ length: slot.length }, (_, row) => row)) => {
    let state = 1
    for (const buffers of [slot.k, slot.v]) {
      for (const buffer of buffers) {
        for (let head = 0; head < kvHeads; head++) {
          for (const row of rows) {
            const start = (head * slot.capacity + row) * headDim
            for (let i = start; i < start + headDim; i++) state = mix(state, buffer[i] as number)
          }
        }
      }
    }
    const out = new Float32Array(vocabSize)
    for (let id = 0; id < vocabSize; id++) out[id] = mix(state, id) / 2048
    out[state % vocabSize] = 10
    return out
  }

  const pause = async () => {
    if (runMs > 0) await sleep(runMs)
  }

  return {
    layout,
    vocabSize,
    decodeRows,
    async prefill(slot, ids) {
      if (ids.length === 1 && slot.length > 0) throw new Error('a prefill run of one token is not exact')
      onRun?.('prefill', ids.length)
      await pause()
      append(slot, ids)
      return logits(slot)
    },
    async decode(rows: readonly DecodeRow[]) {
      if (rows.length > decodeRows) throw new RangeError(`${rows.length} rows`)
      onRun?.('decode', rows.length)
      await pause()
      return rows.map(({ slot, id }) => {
        append(slot, Int32Array.of(id))
        return logits(slot)
      })
    },
    async tree(slot: Slot, tokens: readonly TreeToken[]) {
      if (tokens.length === 0) throw new RangeError('a run without tokens')
      onRun?.('tree', tokens.length)
      await pause()
      const states = new Map<number, number>()
      for (const { id, sees, behind, row } of tokens) {
        const before = behind.at(-1) ?? sees - 1
        states.set(row, mix(states.get(before) ?? rowState(slot, before), id))
      }
      slot.place([...states.keys()], rowsOf([...states.values()]))
      return tokens.flatMap(({ sees, behind, row, wantsLogits }) => {
        const rows = [...Array.from({ length: sees }, (_, i) => i), ...behind, row]
        return wantsLogits ? [logits(slot, rows)] : []
      })
    },
    close: async () => undefined,
  }
}

/** An integer in [0, 2048). */
function mix(a: number, b: number): number {
  let x = (a * 0x9e3779b1 + b * 0x85ebca6b + 0x165667b1) >>> 0
  x = Math.imul(x ^ (x >>> 15), 0x2c1b3c6d) >>> 0
  x = Math.imul(x ^ (x >>> 12), 0x297a2d39) >>> 0
  return (x ^ (x >>> 15)) & 2047
}
