// The fields that OpenAI's two generating APIs share, with those that vLLM and llama.cpp added to them: sampling, ends,
// and what is known but has no effect or cannot be honoured. Invariant: a known field is honoured,
// refused by name, or listed here as having no effect.

import type { GenerateRequest, Sampling } from '../../core/request.js'
import { type Envelope, envelopeRequest } from './contract.js'
import {
  accepted,
  asObject,
  boolean,
  custom,
  type Field,
  integer,
  invalid,
  kindOf,
  noted,
  number,
  object,
  type ReadOf,
  refused,
  text,
  wellFormed,
} from './fields.js'
import { constraintFields } from './openai-constraint.js'

/** Largest token id that is looked at; serve.ts knows the vocabulary. */
const MAX_ID = 2 ** 31 - 1

export const sharedFields = {
  model: text('A model of /v1/models, or a name that an alias pattern matches. Absent: the default model.'),
  stream: boolean('Server-sent events.'),
  stream_options: object(
    {
      include_usage: boolean('A last chunk with usage.'),
      include_obfuscation: accepted('nothing is obfuscated'),
      continuous_usage_stats: noted('usage comes once, last'),
    },
    'What a stream carries.',
  ),
  temperature: number({ min: 0, max: 2 }, '0 is greedy. Default 1.'),
  top_p: number({ min: 0, max: 1 }, 'Default 1.'),
  top_k: integer({ min: -1 }, '0 or -1: off.'),
  min_p: number({ min: 0, max: 1 }, '0: off.'),
  repetition_penalty: number({ min: 0.01, max: 10 }, '1: off.'),
  repeat_penalty: number({ min: 0.01, max: 10 }, 'The same as repetition_penalty.'),
  presence_penalty: number({ min: -2, max: 2 }, '0: off.'),
  frequency_penalty: number({ min: -2, max: 2 }, '0: off.'),
  logit_bias: custom<Readonly<Record<number, number>>>(
    { type: 'object', additionalProperties: { type: 'number' }, description: 'Token id to added logit, -100 to 100.' },
    readLogitBias,
  ),
  seed: integer({}, 'The same seed and request give the same output.'),
  stop: custom<readonly string[]>(
    { anyOf: [{ type: 'string' }, { type: 'array', items: { type: 'string' } }], description: 'Ends the answer.' },
    readStop,
  ),
  stop_token_ids: idList('Tokens that end the answer.'),
  ignore_eos: boolean('Go on after the end token.'),
  n: integer({ min: 1 }, 'Choices; they share one prefill.'),
  cache_salt: text('Requests share cached prefixes only with requests of the same salt.'),
  ...constraintFields,
  user: accepted("the tenant is the key's"),
  metadata: accepted('nothing is stored'),
  store: accepted('nothing is stored'),
  safety_identifier: accepted('nothing is judged'),
  prompt_cache_key: accepted('content decides what is reused'),
  prompt_cache_options: accepted('every prefix is cached'),
  prompt_cache_retention: accepted('every prefix is cached'),
  cache_prompt: accepted('every prefix is cached'),
  service_tier: accepted('there is one'),
  prediction: accepted('it changes speed elsewhere, never the output'),
  kv_transfer_params: noted('for another engine'),
  priority: noted('send x-refrain-priority'),
  request_id: noted('send x-request-id'),
  use_beam_search: refused([false], 'there is no beam search'),
  length_penalty: refused([1], 'there is no beam search'),
  early_stopping: refused([false], 'there is no beam search'),
  min_tokens: refused([0], 'an answer ends where the model ends it'),
  include_stop_str_in_output: refused([false], 'stop strings are cut off'),
  skip_special_tokens: refused([true], 'special tokens are left out of the text'),
  spaces_between_special_tokens: accepted('special tokens are left out of the text'),
  truncate_prompt_tokens: refused([], 'a prompt is never cut'),
  prompt_logprobs: refused([0, false], 'log probabilities of the prompt are not available'),
  allowed_token_ids: refused([], 'use structured output'),
  bad_words: refused([], 'use logit_bias'),
  logits_processors: refused([], 'none are loaded'),
  guided_grammar: refused([], 'grammars are not available; guided_json, guided_regex and guided_choice are'),
  grammar: refused([''], 'grammars are not available; guided_json, guided_regex and guided_choice are'),
  guided_whitespace_pattern: refused([], 'the pattern cannot be chosen'),
  guided_decoding_backend: accepted('there is one'),
  return_tokens_as_token_ids: refused([false], 'tokens are spelled out'),
  return_token_ids: refused([false], 'use /v1/tokenize'),
  typical_p: refused([1], 'this sampler is not available'),
  tfs_z: refused([1], 'this sampler is not available'),
  top_a: refused([0], 'this sampler is not available'),
  mirostat: refused([0], 'this sampler is not available'),
  dry_multiplier: refused([0], 'this sampler is not available'),
  xtc_probability: refused([0], 'this sampler is not available'),
  dynatemp_range: refused([0], 'this sampler is not available'),
}

export type SharedRead = ReadOf<typeof sharedFields>

export function samplingOf(read: SharedRead): Sampling {
  return {
    temperature: read.temperature ?? 1,
    topP: read.top_p ?? 1,
    topK: Math.max(0, read.top_k ?? 0),
    minP: read.min_p ?? 0,
    repetitionPenalty: read.repetition_penalty ?? read.repeat_penalty ?? 1,
    presencePenalty: read.presence_penalty ?? 0,
    frequencyPenalty: read.frequency_penalty ?? 0,
    logitBias: read.logit_bias ?? {},
    ...(read.seed === undefined ? {} : { seed: read.seed }),
  }
}

/** The part of a request that both APIs fill alike. @throws RefrainError where a limit of the config is passed. */
export function sharedRequest(
  read: SharedRead,
  envelope: Envelope,
): Omit<GenerateRequest, 'prompt' | 'echo' | 'maxTokens' | 'logprobs' | 'constraint'> {
  const { limits } = envelope
  const n = read.n ?? 1
  const stop = read.stop ?? []
  const stopTokenIds = read.stop_token_ids ?? []
  if (n > limits.n) throw invalid('n', `must be at most ${limits.n} (limits.n)`)
  if (stop.length > limits.stopStrings) {
    throw invalid('stop', `must have at most ${limits.stopStrings} strings (limits.stopStrings)`)
  }
  if (stop.some((each) => each.length > limits.stopChars)) {
    throw invalid('stop', `must have strings of at most ${limits.stopChars} characters (limits.stopChars)`)
  }
  if (stopTokenIds.length > limits.logitBias) {
    throw invalid('stop_token_ids', `must have at most ${limits.logitBias} ids (limits.logitBias)`)
  }
  if (Object.keys(read.logit_bias ?? {}).length > limits.logitBias) {
    throw invalid('logit_bias', `must have at most ${limits.logitBias} ids (limits.logitBias)`)
  }
  return {
    ...envelopeRequest(envelope),
    model: read.model ?? '',
    sampling: samplingOf(read),
    stop,
    stopTokenIds,
    ignoreEos: read.ignore_eos ?? false,
    n,
    ...(read.cache_salt === undefined ? {} : { cacheSalt: read.cache_salt }),
  }
}

export function idList(description: string): Field<readonly number[]> {
  return custom({ type: 'array', items: { type: 'integer', minimum: 0 }, description }, (value, path) => {
    if (!Array.isArray(value)) throw invalid(path, `must be an array of token ids, not ${kindOf(value)}`)
    const bad = value.findIndex((id) => !isTokenId(id))
    if (bad >= 0) throw invalid(`${path}[${bad}]`, `must be a token id, not ${kindOf(value[bad])}`)
    return value as number[]
  })
}

export function isTokenId(id: unknown): id is number {
  return Number.isSafeInteger(id) && (id as number) >= 0 && (id as number) <= MAX_ID
}

function readLogitBias(value: unknown, path: string): Readonly<Record<number, number>> {
  const bias: Record<number, number> = {}
  for (const [key, added] of Object.entries(asObject(value, path))) {
    if (!/^\d{1,10}$/.test(key) || !isTokenId(Number(key))) throw invalid(path, 'must have token ids as its keys')
    if (typeof added !== 'number' || !(added >= -100 && added <= 100)) {
      throw invalid(`${path}.${key}`, `must be a number from -100 to 100, not ${kindOf(added)}`)
    }
    bias[Number(key)] = added
  }
  return bias
}

function readStop(value: unknown, path: string): readonly string[] {
  const list = Array.isArray(value) ? value : [value]
  return list.map((each, i) => {
    const at = Array.isArray(value) ? `${path}[${i}]` : path
    if (typeof each !== 'string') throw invalid(at, `must be a string, not ${kindOf(each)}`)
    if (each === '') throw invalid(at, 'must not be empty')
    return wellFormed(each)
  })
}
