// What a backend counted, in whichever dialect it says it. Invariant: a number that it does not say is undefined, never 0;
// numbers that contradict each other are not taken.

import type { RemoteUsage as Usage } from './contract.js'

export type { RemoteUsage as Usage } from './contract.js'

type Json = Readonly<Record<string, unknown>>

/** `usage` of an answer, or undefined where it is none or does not add up. `timings` are llama-server's. */
export function usageFrom(usage: unknown, timings?: unknown): Usage | undefined {
  const said = asJson(usage)
  if ('input_tokens' in said && 'cache_read_input_tokens' in said) return anthropic(said)
  const promptTokens = count(said['prompt_tokens'] ?? said['input_tokens'])
  if (promptTokens === undefined) return undefined
  const details = asJson(said['prompt_tokens_details'] ?? said['input_tokens_details'])
  const cachedTokens =
    count(details['cached_tokens']) ?? count(said['prompt_cache_hit_tokens']) ?? count(asJson(timings)['cache_n'])
  return checked({
    promptTokens,
    completionTokens: count(said['completion_tokens'] ?? said['output_tokens']) ?? 0,
    ...(cachedTokens !== undefined && { cachedTokens }),
  })
}

/** `input_tokens` leaves out what was cached; https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching */
function anthropic(said: Json): Usage | undefined {
  const cachedTokens = count(said['cache_read_input_tokens'])
  const parts = [said['input_tokens'], said['cache_read_input_tokens'], said['cache_creation_input_tokens']]
  const promptTokens = parts.reduce<number>((sum, part) => sum + (count(part) ?? 0), 0)
  const completionTokens = count(said['output_tokens']) ?? 0
  return checked({ promptTokens, completionTokens, ...(cachedTokens !== undefined && { cachedTokens }) })
}

/** The end of a stream that told the length of its prompt at its beginning. */
export function outputOnly(usage: unknown): Usage | undefined {
  const completionTokens = count(asJson(usage)['output_tokens'])
  return completionTokens === undefined ? undefined : { promptTokens: 0, completionTokens }
}

/** Of several parts of one answer (a stream's first and last event), what each says, the later one first. */
export function joinUsage(earlier: Usage | undefined, later: Usage | undefined): Usage | undefined {
  if (earlier === undefined || later === undefined) return later ?? earlier
  const cachedTokens = later.cachedTokens ?? earlier.cachedTokens
  return {
    promptTokens: Math.max(earlier.promptTokens, later.promptTokens),
    completionTokens: Math.max(earlier.completionTokens, later.completionTokens),
    ...(cachedTokens !== undefined && { cachedTokens }),
  }
}

function checked(usage: Usage): Usage | undefined {
  return usage.promptTokens === 0 || (usage.cachedTokens ?? 0) > usage.promptTokens ? undefined : usage
}

function count(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : undefined
}

const USAGE = /"usage"\s*:\s*\{/g
const USAGE_CHARS = 4096

/** The usage of a whole answer: its text is not parsed, only the object that is called `usage`. */
export function usageInText(text: string): Usage | undefined {
  const at = lastMatch(text, USAGE)
  if (at === undefined) return undefined
  const usage = objectAt(text, at.end - 1)
  const timings = text.lastIndexOf('"timings"')
  return usageFrom(usage, timings < 0 ? undefined : objectAt(text, text.indexOf('{', timings)))
}

/**
 * The text with what is known and was left out of `usage`: how much of the prompt was cached, in OpenAI's field and in
 * DeepSeek's two. As it is where nothing is missing, or nothing is known.
 */
export function completeUsage(text: string, usage: Usage): string {
  if (usage.cachedTokens === undefined) return text
  const at = lastMatch(text, USAGE)
  if (at === undefined) return text
  const said = asJson(objectAt(text, at.end - 1))
  if (!('prompt_tokens' in said)) return text
  const { cachedTokens, promptTokens } = usage
  let missing = ''
  if (!('prompt_tokens_details' in said)) missing += `"prompt_tokens_details":{"cached_tokens":${cachedTokens}},`
  if (!('prompt_cache_hit_tokens' in said)) {
    missing += `"prompt_cache_hit_tokens":${cachedTokens},"prompt_cache_miss_tokens":${promptTokens - cachedTokens},`
  }
  return text.slice(0, at.end) + missing + text.slice(at.end)
}

function lastMatch(text: string, pattern: RegExp): { start: number; end: number } | undefined {
  const from = text.lastIndexOf('"usage"')
  if (from < 0) return undefined
  pattern.lastIndex = from
  const match = pattern.exec(text)
  if (match !== null && match.index === from) return { start: from, end: pattern.lastIndex }
  // `"usage":null` of a later chunk, or another word of that name: the one before it.
  return from === 0 ? undefined : lastMatch(text.slice(0, from), pattern)
}

/** The object whose brace stands at `at`; usage has no strings with braces in them. */
function objectAt(text: string, at: number): unknown {
  let depth = 0
  const end = Math.min(text.length, at + USAGE_CHARS)
  for (let i = at; i < end; i++) {
    const c = text.charCodeAt(i)
    if (c === 123) depth++
    else if (c === 125 && --depth === 0) return parsed(text.slice(at, i + 1))
  }
  return undefined
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    // Garbage says nothing of usage.
    return undefined
  }
}

function asJson(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {}
}
