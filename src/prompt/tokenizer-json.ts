// The parts of a Hugging Face tokenizer.json that this project reads, checked: a file that asks for something else is
// refused by name instead of being tokenized almost right.

import { Tokenizer as Vendor } from '@huggingface/tokenizers'
import { GPT2 } from './pre-tokenizers.js'
import type { AddedToken } from './special-tokens.js'

/** A tokenizer.json, ready to use. */
export interface TokenizerParts {
  readonly vocab: ReadonlyMap<string, number>
  readonly merges: readonly (string | readonly [string, string])[]
  readonly added: readonly AddedToken[]
  /** Applied to every segment between added tokens; undefined: none. */
  readonly normalize: ((text: string) => string) | undefined
  /** Global expressions; each cuts every piece of the one before into its matches and the gaps. */
  readonly splits: readonly RegExp[]
  /** How the vocabulary spells text: stand-ins of bytes, or U+2581 for spaces and <0xNN> for bytes. */
  readonly alphabet: 'bytes' | 'spaces'
  readonly stripsLeadingSpace: boolean
  readonly ignoreMerges: boolean
  readonly unknownId: number | undefined
}

type Json = Readonly<Record<string, unknown>>

/** @throws Error that names the part which is not supported. */
export function parseTokenizerJson(text: string): TokenizerParts {
  const json = JSON.parse(text) as Json
  const model = json['model'] as Json
  if (model?.['type'] !== 'BPE') throw unsupported('model', model?.['type'])
  for (const name of ['continuing_subword_prefix', 'end_of_word_suffix', 'dropout']) {
    if (model[name] !== null && model[name] !== undefined && model[name] !== '') throw unsupported('model with', name)
  }
  const vocab = new Map(Object.entries(model['vocab'] as Record<string, number>))
  const added = (json['added_tokens'] as Json[]).map(addedToken)
  for (const token of added) vocab.set(token.content, token.id)
  const { splits, bytes } = preTokenizer(json['pre_tokenizer'] as Json | null)
  const unknown = model['unk_token']
  return {
    vocab,
    merges: model['merges'] as readonly (string | readonly [string, string])[],
    added,
    normalize: normalizer(json['normalizer'] as object | null),
    splits,
    alphabet: bytes ? 'bytes' : 'spaces',
    stripsLeadingSpace: stripsLeadingSpace(json['decoder'] as Json | null),
    ignoreMerges: model['ignore_merges'] === true,
    unknownId: typeof unknown === 'string' ? vocab.get(unknown) : undefined,
  }
}

function addedToken(json: Json): AddedToken {
  if (json['single_word'] === true) throw unsupported('added token with', 'single_word')
  return {
    id: Number(json['id']),
    content: String(json['content']),
    special: json['special'] === true,
    lstrip: json['lstrip'] === true,
    rstrip: json['rstrip'] === true,
  }
}

function normalizer(json: object | null): ((text: string) => string) | undefined {
  const made = vendorParts({ normalizer: json ?? null }).normalizer
  return made === null ? undefined : (text) => made.normalize(text)
}

function preTokenizer(json: Json | null): { splits: RegExp[]; bytes: boolean } {
  const steps = json === null ? [] : json['type'] === 'Sequence' ? (json['pretokenizers'] as Json[]) : [json]
  const splits: RegExp[] = []
  let bytes = false
  for (const step of steps) {
    if (bytes) throw unsupported('pre-tokenizer after ByteLevel:', step['type'])
    if (step['type'] === 'Split') {
      if (step['behavior'] !== 'Isolated' || step['invert'] === true) throw unsupported('Split', step['behavior'])
      splits.push(expression(step['pattern'] as object))
    } else if (step['type'] === 'Digits') {
      splits.push(expression({ Regex: step['individual_digits'] === true ? '\\p{N}' : '\\p{N}+' }))
    } else if (step['type'] === 'ByteLevel') {
      if (step['add_prefix_space'] === true) throw unsupported('ByteLevel with', 'add_prefix_space')
      if (step['use_regex'] !== false) splits.push(expression({ Regex: GPT2 }))
      bytes = true
    } else {
      throw unsupported('pre-tokenizer', step['type'])
    }
  }
  return { splits, bytes }
}

// The vendor translates Oniguruma's expressions (white space, classes) to JavaScript's.
function expression(pattern: object): RegExp {
  const split = { type: 'Split', pattern, behavior: 'Isolated', invert: false }
  const compiled = vendorParts({ pre_tokenizer: split }).pre_tokenizer?.pattern
  if (compiled === null || compiled === undefined) throw unsupported('pattern', JSON.stringify(pattern))
  return compiled
}

interface VendorParts {
  readonly normalizer: { normalize(text: string): string } | null
  readonly pre_tokenizer: { readonly pattern?: RegExp | null } | null
}

// The vendor builds its parts only as members of a whole tokenizer, so it gets one around an empty vocabulary.
function vendorParts(parts: object): VendorParts {
  const nothing = { added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null }
  const model = { type: 'BPE', vocab: {}, merges: [] }
  return new Vendor({ ...nothing, model, ...parts }, {}) as VendorParts
}

function stripsLeadingSpace(decoder: Json | null): boolean {
  const steps = decoder?.['type'] === 'Sequence' ? (decoder['decoders'] as Json[]) : []
  return steps.some((step) => step['type'] === 'Strip' && step['content'] === ' ' && step['start'] === 1)
}

function unsupported(part: string, name: unknown): Error {
  return new Error(`tokenizer.json: ${part} '${String(name)}' is not supported`)
}
