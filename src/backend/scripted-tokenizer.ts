// The text side of the scripted backend: a tokenizer without a vocabulary (three UTF-8 bytes a token, counted anew behind
// each special token). Invariant: decode(encode(text)) is text, byte for byte, and equal prefixes give equal ids up to the
// token that the difference falls into. Stands where a real model's tokenizer stands, step 5.

import type { Detokenizer, Tokenizer } from '../prompt/contract.js'
import { type Cut, PrefixMemo } from '../prompt/prefix-memo.js'

/** The id that ends an answer. */
export const END_ID = 0
const ONE = 1
const TWO = ONE + 0x100
const THREE = TWO + 0x10000
const SPECIALS = THREE + 0x1000000
const END_SPELLING = '<end>'

export interface ScriptedTokenizerOptions {
  /** How the end token is spelled; undefined: `<end>`, which is not looked for in text. */
  readonly end?: string
  /** Spellings of further special tokens. */
  readonly specials?: readonly string[]
  /** Texts of so many units are remembered; undefined: as the real tokenizer does. */
  readonly prefixUnits?: number
}

const MEMO_BYTES = 32 * 1024 * 1024

/**
 * Bytes a token: 3. Ids: 0 ends; then all one-byte, two-byte and three-byte strings in order, then special tokens.
 *
 *   0 | 1 .. 256 | 257 .. 65792 | 65793 .. 16843008 | 16843009 ..
 *   end  1 byte     2 bytes        3 bytes             special
 */
export function createScriptedTokenizer(options: ScriptedTokenizerOptions = {}): Tokenizer {
  const specials = new Map((options.specials ?? []).map((spelling, i) => [spelling, SPECIALS + i]))
  if (options.end !== undefined) specials.set(options.end, END_ID)
  const spellings = new Map([...specials].map(([spelling, id]) => [id, spelling]))
  if (options.end === undefined) spellings.set(END_ID, END_SPELLING)
  const parse = specials.size === 0 ? undefined : new RegExp(`(${[...specials.keys()].map(literal).join('|')})`)
  const memo = new PrefixMemo({
    maxBytes: MEMO_BYTES,
    margin: Math.max(1, ...[...specials.keys()].map((spelling) => spelling.length)),
    ...(options.prefixUnits !== undefined && { leastUnits: options.prefixUnits }),
  })
  const bytesOf = (id: number): Uint8Array => {
    if (id >= SPECIALS) return new Uint8Array(0)
    if (id >= THREE) return Uint8Array.of((id - THREE) >> 16, ((id - THREE) >> 8) & 255, (id - THREE) & 255)
    if (id >= TWO) return Uint8Array.of((id - TWO) >> 8, (id - TWO) & 255)
    return id >= ONE ? Uint8Array.of(id - ONE) : new Uint8Array(0)
  }
  return {
    vocabSize: SPECIALS + (options.specials?.length ?? 0),
    eosTokenIds: [END_ID],
    encode(text, { special }) {
      const start = memo.start(special, text)
      const rest = text.slice(start.at)
      const parts = parse === undefined || special === 'text' ? [rest] : rest.split(parse)
      const found = parts.map((part, i) => (i % 2 === 0 ? encodeBytes(part) : [specials.get(part) as number]))
      const ids = joined([start.ids, ...found])
      memo.keep(special, text, { start, ids, cuts: [...start.cuts, ...cutsOf(start, parts, found)] })
      return ids
    },
    decode(ids, decodeOptions) {
      const keep = decodeOptions?.special === 'keep'
      return Buffer.concat(
        Array.from(ids, (id) => {
          const spelling = keep ? spellings.get(id) : undefined
          return spelling === undefined ? bytesOf(id) : Buffer.from(spelling)
        }),
      ).toString('utf8')
    },
    bytesOf,
    spellingOf: (id) => spellings.get(id) ?? Buffer.from(bytesOf(id)).toString('latin1'),
    isSpecial: (id) => spellings.has(id),
    specialId: (spelling) => specials.get(spelling) ?? (spelling === spellings.get(END_ID) ? END_ID : undefined),
    stream: (visible) =>
      createByteStream((id) => (visible?.includes(id) ? Buffer.from(spellings.get(id) ?? '') : bytesOf(id))),
  }
}

/** One- and two-byte tokens: the same text as `encode` gives, in another tokenization. */
export function scriptedPieces(text: string): number[] {
  const bytes = Buffer.from(text, 'utf8')
  const ids: number[] = []
  for (let at = 0, wide = false; at < bytes.length; wide = !wide) {
    const second = wide ? bytes[at + 1] : undefined
    const first = bytes[at] as number
    ids.push(second === undefined ? ONE + first : TWO + (first << 8) + second)
    at += second === undefined ? 1 : 2
  }
  return ids
}

function encodeBytes(text: string): Int32Array {
  const bytes = Buffer.from(text, 'utf8')
  const whole = Math.floor(bytes.length / 3)
  const rest = bytes.length - whole * 3
  const ids = new Int32Array(whole + (rest > 0 ? 1 : 0))
  for (let i = 0; i < whole; i++) {
    const at = i * 3
    ids[i] = THREE + ((bytes[at] as number) << 16) + ((bytes[at + 1] as number) << 8) + (bytes[at + 2] as number)
  }
  if (rest === 1) ids[whole] = ONE + (bytes[whole * 3] as number)
  if (rest === 2) ids[whole] = TWO + ((bytes[whole * 3] as number) << 8) + (bytes[whole * 3 + 1] as number)
  return ids
}

/** In ASCII a token ends with every third unit; a cut every so many tokens is enough. */
const CUT_TOKENS = 1024

/** Behind each special token, and within long ASCII. */
function cutsOf(
  start: { readonly at: number; readonly ids: Int32Array },
  parts: readonly string[],
  found: readonly ArrayLike<number>[],
): Cut[] {
  const cuts: Cut[] = []
  let [text, ids] = [start.at, start.ids.length]
  for (const [i, part] of parts.entries()) {
    const { length } = found[i] as ArrayLike<number>
    const isAscii = i % 2 === 0 && Buffer.byteLength(part) === part.length
    for (let at = CUT_TOKENS; isAscii && at * 3 < part.length; at += CUT_TOKENS) {
      cuts.push({ text: text + at * 3, ids: ids + at })
    }
    text += part.length
    ids += length
    if (i % 2 === 1) cuts.push({ text, ids })
  }
  return cuts
}

function joined(parts: readonly ArrayLike<number>[]): Int32Array {
  const ids = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    ids.set(part, at)
    at += part.length
  }
  return ids
}

function literal(spelling: string): string {
  return spelling.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')
}

function createByteStream(bytesOf: (id: number) => Uint8Array): Detokenizer {
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  return {
    push: (id) => decoder.decode(bytesOf(id), { stream: true }),
    end: () => decoder.decode(),
  }
}
