// Quick instructions as clients ask for them: the list `tasks` of POST /v1/quick, the member `quick` of a chat body in any
// dialect, and DeepSeek's `task` on the last message. Invariant: what cannot be asked is refused here, by its field; what
// fails later is that task's own.

import { QUICK_TASKS, type QuickAsk, type QuickTask } from '../../core/quick.js'
import type { GenerateRequest } from '../../core/request.js'
import type { Envelope } from './contract.js'
import {
  boolean,
  custom,
  type Field,
  integer,
  invalid,
  kindOf,
  listOf,
  type Reading,
  type ReadOf,
  readFields,
  required,
  schemaOf,
  shallow,
  text,
} from './fields.js'

/** limits.quickTasks, quickChoices and quickTokens where nothing is said: config/reference.yaml. */
const TASKS = 32
const CHOICES = 256
const TOKENS = 1024

/** Of choices and urls; longer ones are no labels. */
const LABEL_CHARS = 4096

const taskFields = {
  task: custom<(typeof QUICK_TASKS)[number]>(
    { enum: QUICK_TASKS, description: 'What is asked; `custom` brings its instruction.' },
    (value, path) => {
      const name = QUICK_TASKS.find((known) => known === value)
      if (name !== undefined) return name
      const shown = typeof value === 'string' ? `'${value.slice(0, 40)}'` : kindOf(value)
      throw invalid(path, `must be one of ${QUICK_TASKS.map((known) => `'${known}'`).join(', ')}, not ${shown}`)
    },
  ),
  instruction: text("What is asked, in words; in place of the task's own."),
  choices: listOf(text('An answer.'), 'The answers that there are; their probabilities come back.'),
  schema: custom<string>({ type: 'object', description: 'JSON Schema of the answer.' }, (value, path, reading) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      throw invalid(path, `must be a JSON Schema, not ${kindOf(value)}`)
    }
    return shallow(reading.raw.at(stepsOf(path)) ?? '{}', path, reading)
  }),
  regex: text('A regular expression that the whole answer matches.'),
  max_tokens: integer({ min: 1 }, 'Tokens of the answer at most.'),
  urls: listOf(text('A url.'), 'Of `read_url`: each is a question of its own.'),
  ignore_eos: boolean('Answer with exactly max_tokens tokens; for measurements.'),
}

/** The field `tasks`. */
export const tasks: Field<readonly QuickTask[]> = custom(
  {
    type: 'array',
    minItems: 1,
    items: schemaOf(taskFields, ['task']),
    description: 'Side questions about the conversation, answered together.',
  },
  (value, path, reading) => {
    if (!Array.isArray(value)) throw invalid(path, `must be an array, not ${kindOf(value)}`)
    if (value.length === 0) throw invalid(path, 'must not be empty')
    return value.map((task, i) => taskOf(task, `${path}[${i}]`, reading))
  },
)

const askFields = {
  tasks,
  at: custom<'user' | 'reply'>(
    { enum: ['user', 'reply'], description: 'Behind the last message, or behind the answer to it. Default user.' },
    (value, path) => {
      if (value === 'user' || value === 'reply') return value
      throw invalid(path, `must be one of 'user', 'reply', not ${kindOf(value)}`)
    },
  ),
}

/** The member `quick` of a chat body. */
export const quick: Field<QuickAsk> = custom(
  { ...schemaOf(askFields, ['tasks']), description: 'Side questions beside the answer.' },
  (value, path, reading) => {
    const read = readFields(askFields, value, path, reading)
    return { tasks: required(read.tasks, `${path}.tasks`), at: read.at ?? 'user' }
  },
)

/** @throws RefrainError `invalid_request` where a limit of the config is passed. */
export function checkQuick(asked: readonly QuickTask[], path: string, limits: Envelope['limits']): void {
  const { quickTasks = TASKS, quickChoices = CHOICES, quickTokens = TOKENS } = limits
  const questions = asked.reduce((sum, { urls = [''] }) => sum + urls.length, 0)
  if (questions > quickTasks) {
    throw invalid(path, `must ask at most ${quickTasks} questions, each url being one (limits.quickTasks)`)
  }
  for (const task of asked) {
    if ((task.choices?.length ?? 0) > quickChoices) {
      throw invalid(`${task.path}.choices`, `must have at most ${quickChoices} choices (limits.quickChoices)`)
    }
    if ((task.maxTokens ?? 0) > quickTokens) {
      throw invalid(`${task.path}.max_tokens`, `must be at most ${quickTokens} (limits.quickTokens)`)
    }
  }
}

interface AskContext {
  /** As sent, where messages may carry a task. */
  readonly messages?: unknown
  readonly maxTokens: number | undefined
  readonly limits: Envelope['limits']
  /** The last message is continued. */
  readonly continues?: boolean | undefined
}

export interface AskedBeside {
  /** What the request has of it. */
  readonly request: Partial<Pick<GenerateRequest, 'quick' | 'maxTokens' | 'n'>>
  /** The call is the task: its answer stands where the answer to the chat would. */
  readonly isTask: boolean
}

/**
 * What a chat asks on the side: by `quick`, or by DeepSeek's `task` on the last message, which makes the call answer that.
 * @throws RefrainError `invalid_request` by field.
 */
export function quickOf(asked: QuickAsk | undefined, context: AskContext): AskedBeside {
  const { messages, maxTokens, limits, continues = false } = context
  const task = taskOfMessages(messages)
  if (asked === undefined) {
    if (task === undefined) return { request: {}, isTask: false }
    return { request: { quick: { tasks: [task], at: 'user' }, maxTokens: 0, n: 1 }, isTask: true }
  }
  if (task !== undefined) throw invalid('quick', `cannot go with '${task.path}'`)
  if (asked.at === 'reply' && maxTokens === 0) throw invalid('quick.at', "cannot be 'reply' where max_tokens is 0")
  if (asked.at === 'user' && continues) throw invalid('quick.at', "must be 'reply' where the last message is continued")
  checkQuick(asked.tasks, 'quick.tasks', limits)
  return { request: { quick: asked }, isTask: false }
}

/** @throws RefrainError where an earlier message has a task, or where it is none that stands alone. */
function taskOfMessages(messages: unknown): QuickTask | undefined {
  if (!Array.isArray(messages)) return undefined
  const at = messages.findIndex((message) => typeof (message as { task?: unknown } | null)?.task === 'string')
  if (at < 0) return undefined
  const path = `messages[${at}].task`
  if (at < messages.length - 1) throw invalid(path, 'belongs to the last message')
  const name = (messages[at] as { task: string }).task
  const task = QUICK_TASKS.find((known) => known === name && known !== 'custom' && known !== 'read_url')
  if (task !== undefined) return { task, path }
  throw invalid(path, `must be one of 'action', 'title', 'query', 'authority', 'domain', not '${name.slice(0, 40)}'`)
}

function taskOf(value: unknown, path: string, reading: Reading): QuickTask {
  const read = readFields(taskFields, value, path, reading)
  const task = required(read.task, `${path}.task`)
  checkTask(read, path, task)
  const { instruction, choices, schema, regex, urls } = read
  return {
    ...{ task, path },
    ...(instruction !== undefined && { instruction }),
    ...(choices !== undefined && { choices }),
    ...(schema !== undefined && { schema }),
    ...(regex !== undefined && { regex }),
    ...(urls !== undefined && { urls }),
    ...(read.max_tokens !== undefined && { maxTokens: read.max_tokens }),
    ...(read.ignore_eos === true && { ignoreEos: true }),
  }
}

function checkTask(read: ReadOf<typeof taskFields>, path: string, task: string): void {
  const { instruction, choices, schema, regex, urls } = read
  if (task === 'custom' && instruction === undefined)
    throw invalid(`${path}.instruction`, 'is required by custom tasks')
  if (instruction?.trim() === '') throw invalid(`${path}.instruction`, 'must not be empty')
  const forms = Object.entries({ choices, schema, regex }).filter(([, form]) => form !== undefined)
  if (forms.length > 1) throw invalid(`${path}.${forms[1]?.[0]}`, `cannot go with ${forms[0]?.[0]}`)
  if (choices !== undefined) checkChoices(choices, `${path}.choices`)
  if (choices !== undefined && read.ignore_eos === true) throw invalid(`${path}.ignore_eos`, 'cannot go with choices')
  if (task !== 'read_url' && urls !== undefined) throw invalid(`${path}.urls`, 'belongs to tasks of read_url')
  if (task !== 'read_url') return
  if (urls === undefined || urls.length === 0) throw invalid(`${path}.urls`, 'must have at least one url')
  for (const [i, url] of urls.entries()) checkLabel(url, `${path}.urls[${i}]`)
}

function checkChoices(choices: readonly string[], path: string): void {
  if (choices.length < 2) throw invalid(path, 'must have at least two choices')
  for (const [i, choice] of choices.entries()) checkLabel(choice, `${path}[${i}]`)
  // In this order, whatever begins with a choice comes right behind it.
  const sorted = [...choices.entries()].sort(([, a], [, b]) => (a < b ? -1 : a > b ? 1 : 0))
  for (const [i, [at, choice]] of sorted.entries()) {
    const before = sorted[i - 1]
    if (before === undefined || !choice.startsWith(before[1])) continue
    throw invalid(
      `${path}[${Math.max(at, before[0])}]`,
      'must not be the beginning of another choice, or begin with one',
    )
  }
}

function checkLabel(label: string, path: string): void {
  if (label.trim() === '') throw invalid(path, 'must not be empty')
  if (label.length > LABEL_CHARS) throw invalid(path, `must have at most ${LABEL_CHARS} characters`)
}

/** `a[0].b` as the steps to it. */
function stepsOf(path: string): (string | number)[] {
  return path.split(/[.[]/).map((step) => (step.endsWith(']') ? Number(step.slice(0, -1)) : step))
}
