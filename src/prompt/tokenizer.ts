// Text to token ids and back, from a tokenizer.json; step 5 of a request's path. Invariant: `encode` is a pure function
// of its text. Special tokens are cut out first and every segment between them is tokenized on its own, so a segment's
// ids may be remembered: a chat that grew by one message tokenizes that message only.

import { LRUCache } from 'lru-cache'
import { IdList } from './bpe.js'
import type { Tokenizer } from './contract.js'
import { streamOf, TokenBytes } from './detokenizer.js'
import { ownCopy } from './own-copy.js'
import { SegmentEncoder } from './segment-encoder.js'
import { SpecialSplitter } from './special-tokens.js'
import { parseTokenizerJson } from './tokenizer-json.js'

export interface TokenizerOptions {
  readonly bosTokenId?: number | undefined
  /** Whether `bos: 'add'` adds it. */
  readonly addBos: boolean
  readonly eosTokenIds: readonly number[]
  /** Bytes of segments and their ids that are remembered; 0 remembers none. */
  readonly memoBytes: number
}

// What an entry weighs beside its text (2 bytes a unit) and ids (4 bytes each).
const ENTRY_BYTES = 200

/** @throws Error that names the part of `tokenizerJson` which is not supported. */
export function createTokenizer(tokenizerJson: string, options: TokenizerOptions): Tokenizer {
  const parts = parseTokenizerJson(tokenizerJson)
  const segments = new SegmentEncoder(parts)
  const added = new Map(parts.added.map((token) => [token.id, token]))
  const splitters = {
    parse: new SpecialSplitter(parts.added),
    text: new SpecialSplitter(parts.added.filter((token) => !token.special)),
  }
  const spellings: string[] = []
  for (const [spelling, id] of parts.vocab) spellings[id] = spelling
  const bytes = new TokenBytes(parts, spellings, added)
  const memo = createMemo(options.memoBytes)
  const list = new IdList()
  const bosTokenId = options.addBos ? options.bosTokenId : undefined

  const encodeSegment = (text: string): void => {
    const known = memo?.get(text)
    if (known !== undefined) {
      list.append(known)
      return
    }
    const start = list.length
    segments.encode(text, list)
    memo?.set(ownCopy(text), list.copy(start))
  }

  return {
    vocabSize: spellings.length,
    eosTokenIds: options.eosTokenIds,
    encode(text, { special, bos }) {
      list.length = 0
      const found = splitters[special].split(text)
      const first = found[0]
      const hasBos = typeof first === 'object' && first.id === bosTokenId
      if (bos === 'add' && bosTokenId !== undefined && !hasBos) list.push(bosTokenId)
      for (const part of found) {
        if (typeof part === 'string') encodeSegment(part)
        else list.push(part.id)
      }
      return list.copy(0)
    },
    decode: (ids, decodeOptions) => bytes.decode(ids, decodeOptions?.special ?? 'skip'),
    bytesOf: (id) => bytes.of(id),
    spellingOf: (id) => spellings[id] ?? '',
    isSpecial: (id) => added.get(id)?.special === true,
    stream: (visible) => streamOf(bytes, visible),
    specialId: (spelling) => {
      const id = parts.vocab.get(spelling)
      return id !== undefined && added.get(id)?.special === true ? id : undefined
    },
  }
}

function createMemo(maxBytes: number): LRUCache<string, Int32Array> | undefined {
  if (maxBytes <= 0) return undefined
  return new LRUCache({
    maxSize: maxBytes,
    sizeCalculation: (ids, text) => ENTRY_BYTES + 2 * text.length + 4 * ids.length,
  })
}
