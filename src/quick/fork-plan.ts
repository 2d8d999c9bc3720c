// From tasks to branches: for each task, what stands behind the conversation that is shared, as text and as tokens, and
// which form its answer has. Invariant: a branch's tokens are those that the same question sent as a request of its own
// would have; what they have in common with the prompt is shared, whatever the model's template does.

import { type ErrorCode, RefrainError } from '../core/errors.js'
import type { BranchForm, BranchPlan, QuickAsk, QuickTask } from '../core/quick.js'
import type { ModelFormats, Tokenizer } from '../prompt/contract.js'
import { listed, type QuickCatalogue, type TaskEntry } from './catalogue.js'
import { choiceTrie } from './choice-trie.js'
import { ForkTexts, type TextParts } from './fork-text.js'

export interface ForkInput extends TextParts {
  readonly ask: QuickAsk
  readonly catalogue: QuickCatalogue
  readonly formats: ModelFormats
  readonly tokenizer: Tokenizer
  /** The whole prompt, with the header of an answer. */
  readonly tokens: Int32Array
  /** How many of them stand before the header. */
  readonly prefixTokens: number
  readonly contextLength: number
}

/** One question, and what became of it so far: a plan for the engine, or a fault of its own. */
export interface Fork {
  readonly task: QuickTask
  readonly url?: string
  readonly form: 'native' | 'instruction'
  readonly choices?: readonly string[]
  readonly plan: BranchPlan | { readonly code: ErrorCode; readonly message: string }
}

/** @throws RefrainError `invalid_request` by field, `template_failed`. */
export function planForks(input: ForkInput): Fork[] {
  const texts = new ForkTexts(input)
  return input.ask.tasks.flatMap((task) => (task.urls ?? [undefined]).map((url) => forkOf(task, url, input, texts)))
}

function forkOf(task: QuickTask, url: string | undefined, input: ForkInput, texts: ForkTexts): Fork {
  const entry = task.task === 'custom' ? undefined : input.catalogue[task.task]
  const choices = task.schema === undefined && task.regex === undefined ? (task.choices ?? entry?.choices) : undefined
  const native =
    task.instruction === undefined && entry?.native && texts.fits(entry.native.at) ? entry.native : undefined
  const words = (text: string) => text.replaceAll('{url}', url ?? '').replaceAll('{choices}', listed(choices))
  const suffix =
    native === undefined
      ? texts.instruction(words(task.instruction ?? entry?.instruction ?? ''))
      : texts.native(native.at, words(native.before ?? '') + native.token)
  const about = {
    task,
    form: native === undefined ? ('instruction' as const) : ('native' as const),
    ...(url !== undefined && { url }),
    ...(choices !== undefined && { choices }),
  }
  const { shares, ids } = suffix
  const left = input.contextLength - (shares === 'reply' ? input.tokens.length : shares) - ids.length
  const form = formOf(task, entry, { choices, left, tokenizer: input.tokenizer })
  const rows = form.kind === 'choice' ? form.trie.ids.length : form.maxTokens - 1
  if (left < Math.max(1, rows)) {
    const message = `'${task.path}' needs ${ids.length + rows} tokens behind the conversation, and the window has no room`
    return { ...about, plan: { code: 'context_length_exceeded', message } }
  }
  return { ...about, plan: { shares, suffix: ids, form, path: task.path } }
}

interface FormParts {
  readonly choices: readonly string[] | undefined
  /** Tokens that the window leaves behind the suffix. */
  readonly left: number
  readonly tokenizer: Tokenizer
}

function formOf(task: QuickTask, entry: TaskEntry | undefined, { choices, left, tokenizer }: FormParts): BranchForm {
  if (choices !== undefined) return { kind: 'choice', trie: trieOf(choices, task, tokenizer) }
  const { schema, regex, ignoreEos = false } = task
  const wanted = task.maxTokens ?? (schema === undefined && regex === undefined ? entry?.maxTokens : undefined) ?? 64
  const constraint =
    schema !== undefined
      ? ({ kind: 'json-schema', schema } as const)
      : regex !== undefined && ({ kind: 'regex', regex } as const)
  return {
    kind: 'text',
    maxTokens: Math.max(1, Math.min(wanted, left)),
    // Titles and queries are one line; whoever brings an instruction gets all that is answered.
    stop: entry !== undefined && task.instruction === undefined && constraint === false && !ignoreEos ? ['\n'] : [],
    ignoreEos,
    ...(constraint && { constraint }),
  }
}

function trieOf(choices: readonly string[], { path }: QuickTask, tokenizer: Tokenizer): ReturnType<typeof choiceTrie> {
  try {
    return choiceTrie(choices.map((choice) => tokenizer.encode(choice, { special: 'text', bos: 'none' })))
  } catch (cause) {
    const message = `'${path}.choices' cannot be told apart by this model's tokens: ${(cause as Error).message}`
    throw new RefrainError('invalid_request', message, { param: `${path}.choices`, cause })
  }
}
