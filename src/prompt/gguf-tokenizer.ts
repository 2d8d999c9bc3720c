// Turns the tokenizer that a GGUF file carries in its metadata into a Hugging Face tokenizer.json, once per import.
// Invariant: what is written tokenizes exactly as the family's own tokenizer does; a family that this file does not
// know is refused by name, because a guess would give other tokens without any error.

import { PRE_TOKENIZERS, type PreTokenizer } from './pre-tokenizers.js'

type Metadata = Readonly<Record<string, unknown>>

/** Values of `tokenizer.ggml.token_type`. */
const TokenType = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const

/** What a model needs to know of its tokenizer beside tokenizer.json. */
export interface TokenizerTraits {
  readonly bosTokenId: number | undefined
  readonly addBos: boolean
  /** Every token that ends a generation: the file's EOS first, then, in chat models, the end of a turn. */
  readonly eosTokenIds: readonly number[]
  /** Spelling of BOS and EOS for chat templates; empty when the file names none. */
  readonly bosToken: string
  readonly eosToken: string
  /** The file's own chat template, Jinja source. */
  readonly template: string | undefined
}

// Control tokens that end a turn in families whose files name only the end of the document as EOS.
const END_OF_TURN = new Set([
  '<|im_end|>',
  '<|eot_id|>',
  '<|eom_id|>',
  '<|end|>',
  '<|endoftext|>',
  '<|end_of_text|>',
  '<end_of_turn>',
])

/**
 * The text of a tokenizer.json for `metadata` (all keys of a GGUF header, arrays as arrays or typed arrays).
 * @throws Error that names the tokenizer model or pre-tokenizer when it is not supported.
 */
export function buildTokenizerJson(metadata: Metadata): string {
  const model = stringOf(metadata, 'tokenizer.ggml.model')
  if (model === 'gpt2') return JSON.stringify(byteLevel(metadata))
  if (model === 'llama') return JSON.stringify(sentencePiece(metadata))
  throw new Error(
    `tokenizer.ggml.model '${model ?? ''}' is not supported; known are gpt2 (byte-level BPE) and llama (SentencePiece BPE)`,
  )
}

/** BOS, EOS and the template that `metadata` names. */
export function tokenizerTraits(metadata: Metadata): TokenizerTraits {
  const tokens = tokensOf(metadata)
  const types = listOf(metadata, 'tokenizer.ggml.token_type')
  const bosTokenId = numberOf(metadata, 'tokenizer.ggml.bos_token_id')
  const eosTokenId = numberOf(metadata, 'tokenizer.ggml.eos_token_id')
  const ends = ['eos', 'eot', 'eom'].map((name) => numberOf(metadata, `tokenizer.ggml.${name}_token_id`))
  const turnEnds = tokens.flatMap((token, id) =>
    END_OF_TURN.has(token) && Number(types?.[id]) === TokenType.control ? [id] : [],
  )
  const named = metadata['tokenizer.ggml.add_bos_token']
  return {
    bosTokenId,
    addBos: bosTokenId !== undefined && (typeof named === 'boolean' ? named : addsBosUnasked(metadata)),
    eosTokenIds: [...new Set([...ends.filter((id) => id !== undefined), ...turnEnds])],
    bosToken: bosTokenId === undefined ? '' : (tokens[bosTokenId] ?? ''),
    eosToken: eosTokenId === undefined ? '' : (tokens[eosTokenId] ?? ''),
    template: stringOf(metadata, 'tokenizer.chat_template'),
  }
}

function addsBosUnasked(metadata: Metadata): boolean {
  if (stringOf(metadata, 'tokenizer.ggml.model') !== 'gpt2') return true
  const name = stringOf(metadata, 'tokenizer.ggml.pre')
  return name !== undefined && Object.hasOwn(PRE_TOKENIZERS, name) && PRE_TOKENIZERS[name]?.addBos === true
}

function byteLevel(metadata: Metadata): object {
  const pre = preTokenizer(metadata)
  const merges = listOf(metadata, 'tokenizer.ggml.merges')
  if (merges === undefined) throw new Error('tokenizer.ggml.merges is missing')
  return tokenizerJson(metadata, {
    normalizer: pre.normalizer === undefined ? null : { type: pre.normalizer },
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        ...pre.splits.map((Regex) => ({ type: 'Split', pattern: { Regex }, behavior: 'Isolated', invert: false })),
        { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
      ],
    },
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: { ignore_merges: pre.ignoreMerges ?? false, merges: Array.from(merges) },
  })
}

function preTokenizer(metadata: Metadata): PreTokenizer {
  const name = stringOf(metadata, 'tokenizer.ggml.pre')
  const known = name !== undefined && Object.hasOwn(PRE_TOKENIZERS, name) ? PRE_TOKENIZERS[name] : undefined
  if (known === undefined) {
    const what = name === undefined ? 'the file names no pre-tokenizer (tokenizer.ggml.pre)' : `pre-tokenizer '${name}'`
    throw new Error(`${what} is not supported; known are ${Object.keys(PRE_TOKENIZERS).sort().join(', ')}`)
  }
  return known
}

function sentencePiece(metadata: Metadata): object {
  const addPrefix = metadata['tokenizer.ggml.add_space_prefix'] !== false
  const escaping = { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' }
  const strip = addPrefix ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : []
  return tokenizerJson(metadata, {
    normalizer: {
      type: 'Sequence',
      normalizers: addPrefix ? [{ type: 'Prepend', prepend: '\u2581' }, escaping] : [escaping],
    },
    pre_tokenizer: null,
    decoder: spaceDecoder(strip),
    model: { fuse_unk: true, byte_fallback: true, merges: mergesByScore(metadata) },
  })
}

function spaceDecoder(strip: readonly object[]): object {
  const unescaping = { type: 'Replace', pattern: { String: '\u2581' }, content: ' ' }
  return { type: 'Sequence', decoders: [unescaping, { type: 'ByteFallback' }, { type: 'Fuse' }, ...strip] }
}

/**
 * SentencePiece merges the pair whose result scores best; as a list of merges: every way to cut a piece into two
 * pieces, best result first. Merges with one result stay neighbours, so that a reader can give them one rank.
 */
function mergesByScore(metadata: Metadata): [string, string][] {
  const tokens = tokensOf(metadata)
  const scores = listOf(metadata, 'tokenizer.ggml.scores')
  if (scores?.length !== tokens.length) throw new Error('tokenizer.ggml.scores is missing or has another length')
  const types = listOf(metadata, 'tokenizer.ggml.token_type')
  const mergeable = tokens.flatMap((token, id) =>
    Number(types?.[id] ?? TokenType.normal) === TokenType.normal ? [token] : [],
  )
  const scoreOf = new Map(tokens.map((token, id) => [token, Number(scores[id])]))
  const known = new Set(mergeable)
  const byScore = mergeable.toSorted((a, b) => scoreOf.get(b)! - scoreOf.get(a)!)
  return byScore.flatMap((token) => {
    const cuts: [string, string][] = []
    for (let at = 1; at < token.length; at++) {
      const [left, right] = [token.slice(0, at), token.slice(at)]
      if (known.has(left) && known.has(right)) cuts.push([left, right])
    }
    return cuts
  })
}

interface Parts {
  readonly normalizer: object | null
  readonly pre_tokenizer: object | null
  readonly decoder: object
  readonly model: object
}

function tokenizerJson(metadata: Metadata, parts: Parts): object {
  const tokens = tokensOf(metadata)
  const vocab = new Map<string, number>()
  tokens.forEach((token, id) => {
    if (vocab.has(token)) throw new Error(`tokens ${vocab.get(token)} and ${id} have the same spelling '${token}'`)
    vocab.set(token, id)
  })
  const unknown = numberOf(metadata, 'tokenizer.ggml.unknown_token_id')
  const byteFallback = 'byte_fallback' in parts.model
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: addedTokens(metadata, tokens),
    normalizer: parts.normalizer,
    pre_tokenizer: parts.pre_tokenizer,
    post_processor: null,
    decoder: parts.decoder,
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: byteFallback && unknown !== undefined ? (tokens[unknown] ?? null) : null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ...parts.model,
      vocab: Object.fromEntries(vocab),
    },
  }
}

function addedTokens(metadata: Metadata, tokens: readonly string[]): object[] {
  const types = listOf(metadata, 'tokenizer.ggml.token_type')
  // Phi-3's tokens swallow the white space after them, all but these; GGUF has no field for it.
  const swallows = stringOf(metadata, 'general.architecture') === 'phi3'
  const keeps = new Set(['<unk>', '<s>', '<|endoftext|>'])
  return tokens.flatMap((content, id) => {
    const type = Number(types?.[id] ?? TokenType.normal)
    const special = type === TokenType.control || type === TokenType.unknown
    if (!special && type !== TokenType.userDefined) return []
    const rstrip = swallows && !keeps.has(content)
    return [{ id, content, single_word: false, lstrip: false, rstrip, normalized: false, special }]
  })
}

function tokensOf(metadata: Metadata): readonly string[] {
  const tokens = listOf(metadata, 'tokenizer.ggml.tokens')
  if (tokens === undefined || tokens.length === 0) throw new Error('tokenizer.ggml.tokens is missing')
  return Array.from(tokens, String)
}

function listOf(metadata: Metadata, key: string): ArrayLike<unknown> | undefined {
  const value = metadata[key]
  if (value === undefined || Array.isArray(value)) return value
  if (ArrayBuffer.isView(value) && 'length' in value) return value as unknown as ArrayLike<unknown>
  throw new Error(`${key} is not a list`)
}

function stringOf(metadata: Metadata, key: string): string | undefined {
  const value = metadata[key]
  return typeof value === 'string' ? value : undefined
}

function numberOf(metadata: Metadata, key: string): number | undefined {
  const value = metadata[key]
  return typeof value === 'number' || typeof value === 'bigint' ? Number(value) : undefined
}
