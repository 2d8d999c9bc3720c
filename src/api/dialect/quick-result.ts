// Results of quick instructions as clients read them, the same in every dialect: the member `quick` of a body or of one
// chunk before a stream's end. Invariant: a result has exactly one of text, choice, json and error, or a text that was cut
// beside its error.

import { RefrainError } from '../../core/errors.js'
import type { GenerateEvent } from '../../core/events.js'
import type { QuickResult } from '../../core/quick.js'

/** `{results, usage}`; the usage is what the questions added to the call. */
export function quickMember(results: readonly QuickResult[]) {
  return { results: results.map(wireResult), usage: addedUsage(results) }
}

export function wireResult({ task, url, form, text, choice, json, probabilities, error, usage }: QuickResult) {
  return {
    task,
    ...(url !== undefined && { url }),
    form,
    ...(text !== undefined && { text }),
    ...(choice !== undefined && { choice }),
    ...(json !== undefined && { json: JSON.parse(json) as unknown }),
    ...(probabilities && {
      probabilities: Object.fromEntries(probabilities.map((each) => [each.choice, each.probability])),
    }),
    ...(error && { error: { code: error.code, message: error.message } }),
    usage: wireUsage(usage.promptTokens, usage.completionTokens, usage.cachedTokens),
  }
}

/** Tokens of all suffixes and answers. */
export function addedTokens(results: readonly QuickResult[]): QuickResult['usage'] {
  return {
    promptTokens: results.reduce((sum, { usage }) => sum + usage.promptTokens, 0),
    completionTokens: results.reduce((sum, { usage }) => sum + usage.completionTokens, 0),
  }
}

type Finish = Extract<GenerateEvent, { type: 'finish' }>

/** The end of a call whose questions are all of it, or a part that is counted with the rest. */
export function withAdded(finish: Finish, results: readonly QuickResult[]): Finish {
  const { promptTokens, completionTokens } = addedTokens(results)
  return {
    ...finish,
    promptTokens: finish.promptTokens + promptTokens,
    completionTokens: finish.completionTokens + completionTokens,
  }
}

function addedUsage(results: readonly QuickResult[]) {
  const { promptTokens, completionTokens } = addedTokens(results)
  return wireUsage(promptTokens, completionTokens)
}

/** As Chat Completions writes it. `cachedTokens`: absent where nobody says. */
export function wireUsage(promptTokens: number, completionTokens: number, cachedTokens?: number) {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    ...(cachedTokens !== undefined && { prompt_tokens_details: { cached_tokens: cachedTokens } }),
  }
}

/** The one answer of a call that is a task, as text. @throws RefrainError where the task failed. */
export function answerText(results: readonly QuickResult[]): string {
  const [result] = results
  if (result?.error === undefined) return result?.text ?? result?.choice ?? result?.json ?? ''
  const { code, message } = result.error
  throw new RefrainError(code === 'incomplete' ? 'invalid_request' : code, message)
}
