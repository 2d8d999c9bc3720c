// Side questions as requests of their own, for servers elsewhere: what each says, and what its answer means. Invariant: a
// question that fails says so in its own result; what an answer is taken for is one of the choices, JSON, or a text, never
// something in between.

import { RefrainError } from '../core/errors.js'
import type { Aside, QuickResult, QuickTask } from '../core/quick.js'
import { listed, type QuickCatalogue } from './catalogue.js'

/** One question. */
export interface AsideQuestion {
  readonly task: QuickTask
  readonly url?: string
  readonly form: 'native' | 'instruction'
  /** What is asked in words; undefined: the server renders the task's own token. */
  readonly instruction?: string
  readonly aside: Aside
}

/** What a server answered. */
export interface AsideAnswer {
  readonly text: string
  /** It stopped at `max_tokens`. */
  readonly cut: boolean
  /** Of the first token's alternatives, natural logarithms; absent: not told. */
  readonly first?: readonly { readonly token: string; readonly logprob: number }[]
  readonly promptTokens: number
  readonly completionTokens: number
  readonly cachedTokens?: number
}

/** Tokens of an answer whose task says nothing. */
const TOKENS = 64

/** `native`: the server renders `task` members. A question in words of the client's own is always one in words. */
export function asideQuestions(
  tasks: readonly QuickTask[],
  { catalogue, native }: { readonly catalogue: QuickCatalogue; readonly native: boolean },
): AsideQuestion[] {
  return tasks.flatMap((task) => (task.urls ?? [undefined]).map((url) => questionOf(task, url, { catalogue, native })))
}

function questionOf(
  task: QuickTask,
  url: string | undefined,
  { catalogue, native }: { readonly catalogue: QuickCatalogue; readonly native: boolean },
): AsideQuestion {
  const { schema, regex, instruction, path } = task
  const entry = task.task === 'custom' ? undefined : catalogue[task.task]
  const choices = schema === undefined && regex === undefined ? (task.choices ?? entry?.choices) : undefined
  const isNative = native && instruction === undefined && task.task !== 'custom' && task.task !== 'read_url'
  const words = (instruction ?? entry?.instruction ?? '')
    .replaceAll('{url}', url ?? '')
    .replaceAll('{choices}', listed(choices))
  const isLine = entry !== undefined && instruction === undefined && choices === undefined && schema === undefined
  const longest = Math.max(0, ...(choices ?? []).map(({ length }) => length))
  return {
    task,
    ...(url !== undefined && { url }),
    form: isNative ? 'native' : 'instruction',
    ...(!isNative && { instruction: words.trim() }),
    aside: {
      path,
      // A token is a character at least; what frames a choice in JSON comes on top.
      maxTokens: choices === undefined ? (task.maxTokens ?? entry?.maxTokens ?? TOKENS) : longest + 16,
      ...(isLine && task.ignoreEos !== true && { stop: ['\n'] }),
      ...(task.ignoreEos === true && { ignoreEos: true }),
      ...(choices !== undefined && { guide: { kind: 'choice' as const, choices } }),
      ...(schema !== undefined && { guide: { kind: 'json-schema' as const, schema } }),
      ...(regex !== undefined && { guide: { kind: 'regex' as const, regex } }),
    },
  }
}

/** `baseTokens`: what the questions have in common, counted with the whole call. */
export function asideResult(question: AsideQuestion, answer: AsideAnswer, baseTokens: number): QuickResult {
  const { task, url, form, aside } = question
  const usage = {
    promptTokens: Math.max(0, answer.promptTokens - baseTokens),
    completionTokens: answer.completionTokens,
    ...(answer.cachedTokens !== undefined && { cachedTokens: answer.cachedTokens }),
  }
  const about = { task: task.task, ...(url !== undefined && { url }), form }
  const incomplete = (what: string) => ({
    error: { code: 'incomplete' as const, message: `max_tokens ended the answer before ${what} was complete` },
  })
  const { guide } = aside
  const text = answer.text.trim()
  if (guide?.kind === 'choice') {
    const choice = choiceIn(text, guide.choices)
    if (choice === undefined) return { ...about, error: astray(text), usage }
    const probabilities = probabilitiesOf(guide.choices, answer.first)
    return { ...about, choice: choice.trim(), ...(probabilities && { probabilities }), usage }
  }
  if (guide?.kind === 'json-schema') {
    return parsed(text) === undefined
      ? { ...about, text, ...incomplete('its JSON'), usage }
      : { ...about, json: text, usage }
  }
  const isCut = guide?.kind === 'regex' && answer.cut
  return { ...about, text, ...(isCut && incomplete('the text that the regex asks for')), usage }
}

/** A question that came to nothing. */
export function asideFault({ task, url, form }: AsideQuestion, fault: unknown): QuickResult {
  if (!(fault instanceof RefrainError)) throw fault
  const { code, message } = fault
  const usage = { promptTokens: 0, completionTokens: 0 }
  return { task: task.task, ...(url !== undefined && { url }), form, error: { code, message }, usage }
}

/** The choice that a text is: bare, in quotes, or as the one member of an object, which is how some servers are guided. */
function choiceIn(text: string, choices: readonly string[]): string | undefined {
  const value = parsed(text)
  const said =
    typeof value === 'string'
      ? value
      : typeof value === 'object' && value !== null
        ? String(Object.values(value)[0])
        : text
  const bare = said.trim()
  return choices.find((choice) => choice.trim() === bare)
}

function astray(text: string) {
  const message = `the backend answered '${text.slice(0, 80)}', which is none of the choices`
  return { code: 'engine_failed' as const, message }
}

/**
 * From the alternatives of the first token, where each choice has one that begins it alone; undefined where they do not
 * tell the choices apart.
 */
function probabilitiesOf(choices: readonly string[], first: AsideAnswer['first'] = []): QuickResult['probabilities'] {
  const weights = choices.map(() => 0)
  for (const { token, logprob } of first) {
    const piece = token.trimStart()
    if (piece === '') continue
    const begun = choices.flatMap((choice, i) => (choice.trimStart().startsWith(piece) ? [i] : []))
    const [only] = begun
    if (begun.length === 1 && only !== undefined) weights[only] = (weights[only] as number) + Math.exp(logprob)
  }
  if (weights.some((weight) => weight === 0)) return undefined
  const sum = weights.reduce((a, b) => a + b, 0)
  return choices.map((choice, i) => ({ choice: choice.trim(), probability: (weights[i] as number) / sum }))
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}
