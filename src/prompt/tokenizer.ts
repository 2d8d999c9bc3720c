// Text to token ids and back, from a tokenizer.json; step 5 of a request's path. Invariant: `encode` is a pure function
// of its text. Special tokens are cut out first and every segment between them is tokenized on its own, so a segment's
// ids may be remembered: a chat that grew by one message tokenizes that message only, and where that is much, on a thread.

import { LRUCache } from 'lru-cache'
import { IdList } from './bpe.js'
import type { EncodeOptions, Tokenizer } from './contract.js'
import { streamOf, TokenBytes } from './detokenizer.js'
import { ownCopy } from './own-copy.js'
import { type Cut, PrefixMemo, type Start } from './prefix-memo.js'
import { SegmentEncoder } from './segment-encoder.js'
import { type FoundToken, SpecialSplitter } from './special-tokens.js'
import { parseTokenizerJson } from './tokenizer-json.js'
import { TokenizerThread } from './tokenizer-thread.js'

export interface TokenizerOptions {
  readonly bosTokenId?: number | undefined
  /** Whether `bos: 'add'` adds it. */
  readonly addBos: boolean
  readonly eosTokenIds: readonly number[]
  /** Bytes of texts and their ids that are remembered; 0 remembers none. */
  readonly memoBytes: number
  /** The compiled tokenizer-worker.js, for `encodeAsync`; undefined: it works in place. */
  readonly workerUrl?: URL
  /** New text above so many UTF-16 units is left to the thread; undefined: 16384, which takes it about 10 ms. */
  readonly threadUnits?: number
  /** Texts of so many units are remembered whole; undefined: 65536. */
  readonly prefixUnits?: number
}

// What an entry weighs beside its text (2 bytes a unit) and ids (4 bytes each).
const ENTRY_BYTES = 200

const THREAD_UNITS = 16_384

/** A text on its way to ids: how it begins, and what lies behind that. */
interface Plan {
  readonly key: string
  readonly text: string
  readonly start: Start
  readonly parts: readonly (string | FoundToken)[]
  readonly bos: number | undefined
}

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
  const memo = createMemo(options.memoBytes / 2)
  const prefixes = new PrefixMemo({
    maxBytes: options.memoBytes / 2,
    margin: splitters.parse.longest,
    ...(options.prefixUnits !== undefined && { leastUnits: options.prefixUnits }),
  })
  const threadUnits = options.threadUnits ?? THREAD_UNITS
  const thread = options.workerUrl && new TokenizerThread(options.workerUrl, tokenizerJson)
  const list = new IdList()
  const bosTokenId = options.addBos ? options.bosTokenId : undefined

  const planOf = (text: string, { special, bos }: EncodeOptions): Plan => {
    const key = `${special} ${bos}`
    const start = prefixes.start(key, text)
    const found = splitters[special].split(text, start.at)
    const first = found[0]
    const adds = start.at === 0 && bos === 'add' && !(typeof first === 'object' && first.token.id === bosTokenId)
    return { key, text, start, parts: found, bos: adds ? bosTokenId : undefined }
  }

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

  const finish = ({ key, text, start, parts: found, bos }: Plan) => {
    list.length = 0
    const cuts: Cut[] = [...start.cuts]
    if (bos !== undefined) list.push(bos)
    for (const part of found) {
      if (typeof part === 'string') encodeSegment(part)
      else {
        list.push(part.token.id)
        cuts.push({ text: part.end, ids: start.ids.length + list.length })
      }
    }
    const ids = joined(start.ids, list)
    prefixes.keep(key, text, { start, ids, cuts })
    return ids
  }

  /** The thread works out what is not remembered of `parts`; undefined: that is little. */
  const prepared = (found: readonly (string | FoundToken)[]): Promise<void> | undefined => {
    if (thread === undefined || memo === undefined) return undefined
    const fresh = unknown(found, memo)
    if (fresh.reduce((sum, segment) => sum + segment.length, 0) <= threadUnits) return undefined
    return thread.encode(fresh).then((worked) => {
      worked?.forEach((ids, segment) => void memo.set(ownCopy(segment), ids))
    })
  }

  return {
    vocabSize: spellings.length,
    eosTokenIds: options.eosTokenIds,
    encode: (text, how) => finish(planOf(text, how)),
    prepare(texts, how) {
      if (texts.reduce((sum, text) => sum + text.length, 0) <= threadUnits) return undefined
      return prepared(texts.flatMap((text) => planOf(text, how).parts))
    },
    encodeAsync(text, how) {
      const plan = planOf(text, how)
      const ready = text.length - plan.start.at <= threadUnits ? undefined : prepared(plan.parts)
      return ready === undefined ? finish(plan) : ready.then(() => finish(plan))
    },
    close: async () => thread?.close(),
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

type Memo = LRUCache<string, Int32Array>

function createMemo(maxBytes: number): Memo | undefined {
  if (maxBytes < 1) return undefined
  return new LRUCache({
    maxSize: Math.floor(maxBytes),
    sizeCalculation: (ids, text) => ENTRY_BYTES + 2 * text.length + 4 * ids.length,
  })
}

/** The segments of `parts` that are not remembered, each once. */
function unknown(parts: readonly (string | FoundToken)[], memo: Memo): string[] {
  const texts = new Set(parts.filter((part) => typeof part === 'string'))
  return [...texts].filter((text) => !memo.has(text))
}

function joined(start: Int32Array, { ids, length }: IdList): Int32Array {
  const all = new Int32Array(start.length + length)
  all.set(start)
  all.set(ids.subarray(0, length), start.length)
  return all
}
