// The tasks that have a name: what is asked in words, what may be answered, and the special token that asks the same of a
// model which was trained with one. Invariant: every named task can be asked of every model; a card's entry goes before
// the words here.

import type { QuickTaskName } from '../core/quick.js'

/** Where a native token stands: behind a message of the user's, behind an answer, or behind the header of one to come. */
export type NativePlace = 'user' | 'reply' | 'header'

export interface NativeForm {
  /** The special token as the tokenizer spells it. */
  readonly token: string
  readonly at: NativePlace
  /** Text in front of the token, e.g. `{url}`. */
  readonly before?: string
}

export interface TaskEntry {
  /** `{choices}` stands for the choices, `{url}` for the url. */
  readonly instruction: string
  /** Undefined: free text. */
  readonly choices?: readonly string[]
  readonly maxTokens: number
  readonly native?: NativeForm
}

/** What a model card says of a task; all of it may be absent. */
export interface CardTask extends Partial<NativeForm> {
  readonly instruction?: string
  readonly choices?: readonly string[]
  readonly maxTokens?: number
}

export type NamedTask = Exclude<QuickTaskName, 'custom'>

export type QuickCatalogue = Readonly<Record<NamedTask, TaskEntry>>

const WORDS: QuickCatalogue = {
  action: {
    instruction: 'Does answering the last message need a web search? Reply with one word: {choices}.',
    choices: ['search', 'answer'],
    maxTokens: 8,
  },
  title: {
    instruction: 'Write a title for this conversation in at most six words, and nothing else.',
    maxTokens: 24,
  },
  query: {
    instruction: 'Write the web search query that helps most with the last message, and nothing else.',
    maxTokens: 32,
  },
  authority: {
    instruction: 'How authoritative must sources for the last message be? Reply with one word: {choices}.',
    choices: ['high', 'medium', 'low'],
    maxTokens: 8,
  },
  domain: {
    instruction: 'Which field is the last message about? Reply with one word: {choices}.',
    choices: ['code', 'math', 'science', 'health', 'law', 'finance', 'news', 'other'],
    maxTokens: 8,
  },
  read_url: {
    instruction: 'Does answering the last message need the page {url} ? Reply with one word: {choices}.',
    choices: ['yes', 'no'],
    maxTokens: 8,
  },
}

/** The catalogue of a model whose card says `own`. @throws Error where a native form is given by halves. */
export function catalogueOf(own: Readonly<Partial<Record<NamedTask, CardTask>>> = {}): QuickCatalogue {
  const entries = Object.entries(WORDS).map(([name, words]) => {
    const { token, at, before, ...rest } = own[name as NamedTask] ?? {}
    if ((token === undefined) !== (at === undefined)) throw new Error(`quick.${name}: token and at go together`)
    const native = token !== undefined && at !== undefined && { token, at, ...(before !== undefined && { before }) }
    return [name, { ...words, ...rest, ...(native && { native }) }] as const
  })
  return Object.fromEntries(entries) as QuickCatalogue
}

/** What `{choices}` stands for: `a, b or c`. */
export function listed(choices: readonly string[] = []): string {
  if (choices.length < 2) return choices.join('')
  return `${choices.slice(0, -1).join(', ')} or ${choices.at(-1)}`
}
