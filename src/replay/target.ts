// The servers that a trace is replayed to: how they are named, what they serve, how long a word is to them. Invariant:
// nothing is sent before every target has said that it is there.

import { UsageError } from '../core/usage-error.js'
import { getJson, post } from './exchange.js'
import type { Api } from './prompts.js'
import { WordText } from './words.js'

export interface Target {
  /** In the report. */
  readonly name: string
  /** Without `/v1`. */
  readonly url: string
  readonly key: string | undefined
}

export interface ReadyTarget extends Target {
  readonly model: string
  readonly wordsPerToken: number
}

const ASK_MS = 10_000
/** A probe is a prompt as others: a server may have to queue it. */
const PROBE_MS = 120_000
/** The longer probe; the shorter one is half of it. */
const PROBE_WORDS = 512

export interface TargetFlags {
  /** `URL` or `NAME=URL`. */
  readonly target: readonly string[]
  /** Names of environment variables with the targets' keys, in their order; `-`: none. */
  readonly keyEnv?: readonly string[]
}

/** @throws UsageError. */
export function targetsOf(flags: TargetFlags, environment: (name: string) => string | undefined): Target[] {
  const { target: texts, keyEnv = [] } = flags
  if (keyEnv.length > texts.length) throw new UsageError('--key-env: there are more keys than targets')
  const targets = texts.map((text, i) => ({ ...namedUrl(text), key: keyOf(keyEnv[i], environment) }))
  const names = new Set<string>()
  for (const { name } of targets) {
    if (names.has(name)) throw new UsageError(`--target: two are called ${name}; name them as NAME=URL`)
    names.add(name)
  }
  return targets
}

function namedUrl(text: string): Pick<Target, 'name' | 'url'> {
  const [, named, rest] = /^([A-Za-z0-9_.-]+)=(.+)$/.exec(text) ?? []
  const written = rest ?? text
  let url: URL
  try {
    url = new URL(written.includes('://') ? written : `http://${written}`)
  } catch {
    throw new UsageError(`--target: '${text}' is no URL`)
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new UsageError(`--target: '${text}' is neither http nor https`)
  if (url.username !== '' || url.password !== '')
    throw new UsageError('--target: give a key with --key-env, not in the URL')
  const base = `${url.origin}${url.pathname}`.replace(/\/+$/, '').replace(/\/v1$/, '')
  return { name: named ?? url.host, url: base }
}

function keyOf(name: string | undefined, environment: (name: string) => string | undefined): string | undefined {
  if (name === undefined || name === '-') return undefined
  const key = environment(name)
  if (key !== undefined && key !== '') return key
  throw new UsageError(`--key-env: the environment has no ${name}`)
}

/** What `/v1/models` names first, or `wanted` where it is among them. @throws UsageError naming the target. */
export async function modelOf(target: Target, wanted: string | undefined): Promise<string> {
  let answer: unknown
  try {
    answer = await getJson(target, '/v1/models', ASK_MS)
  } catch (error) {
    throw new UsageError(`${target.name}: ${target.url}/v1/models: ${(error as Error).message}`)
  }
  const { data } = (answer ?? {}) as { readonly data?: readonly { readonly id?: unknown }[] }
  const ids = (Array.isArray(data) ? data : []).map(({ id }) => id).filter((id) => typeof id === 'string')
  if (wanted !== undefined) {
    if (ids.length === 0 || ids.includes(wanted)) return wanted
    throw new UsageError(`${target.name} has no model '${wanted}'; it has ${ids.join(', ')}`)
  }
  const [first] = ids
  if (first !== undefined) return first
  throw new UsageError(`${target.name}: ${target.url}/v1/models names no model; say which with --model`)
}

/**
 * Words for a token in the target's own tokenizer, by what it counts of two probes; their difference knows nothing of the
 * template around them. Seeded by `seed`, so that no run finds another's probes. @throws UsageError naming the target.
 */
export async function wordsPerToken(
  target: Target,
  speech: { readonly api: Api; readonly model: string; readonly seed: string; readonly signal: AbortSignal },
): Promise<number> {
  const { api, model, seed, signal } = speech
  if (api === 'tokens') return 1
  const text = new WordText().of(`probe ${seed}`, PROBE_WORDS)
  const half = new WordText().of(`probe ${seed}`, PROBE_WORDS / 2)
  const counts: number[] = []
  for (const prompt of [half, text]) {
    const said = api === 'chat' ? { messages: [{ role: 'user', content: prompt }] } : { prompt }
    const answer = await post(target, {
      path: api === 'chat' ? '/v1/chat/completions' : '/v1/completions',
      body: { model, ...said, max_tokens: 1, temperature: 0, stream: true, stream_options: { include_usage: true } },
      headers: {},
      timeoutMs: PROBE_MS,
      signal,
    })
    if ('error' in answer) throw new UsageError(`${target.name} refuses a first prompt: ${answer.error}`)
    // A server that counts nothing gets a word a token.
    if (answer.promptTokens === undefined) return 1
    counts.push(answer.promptTokens)
  }
  const tokens = counts[1]! - counts[0]!
  return tokens > 0 ? PROBE_WORDS / 2 / tokens : 1
}
