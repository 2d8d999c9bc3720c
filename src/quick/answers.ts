// From branches back to tasks: what the engine answered becomes what the client asked for. Invariant: one result for each
// question, in the order asked; a fault of one is told in its own result and touches no other.

import type { GenerateEvent } from '../core/events.js'
import type { BranchAnswer, BranchPlan, QuickResult } from '../core/quick.js'
import type { Fork } from './fork-plan.js'

/** The forks that a backend runs, in their order. */
export function plansOf(forks: readonly Fork[]): readonly BranchPlan[] {
  return forks.flatMap(({ plan }) => ('suffix' in plan ? [plan] : []))
}

export function resultsOf(forks: readonly Fork[], answers: readonly BranchAnswer[]): readonly QuickResult[] {
  const left = [...answers]
  return forks.map((fork) => {
    const { plan } = fork
    if (!('suffix' in plan)) return faulty(fork, plan, { promptTokens: 0, completionTokens: 0 })
    const answer = left.shift()
    if (answer === undefined) throw new Error('a backend left a branch without an answer')
    return resultOf(fork, answer)
  })
}

/** The events, with the results beside the answers of their branches. */
export async function* withResults(
  events: AsyncIterable<GenerateEvent>,
  forks: readonly Fork[],
): AsyncGenerator<GenerateEvent, void> {
  let isTold = false
  for await (const event of events) {
    if (event.type === 'quick') {
      isTold = true
      yield { ...event, results: resultsOf(forks, event.answers) }
      continue
    }
    if (event.type === 'finish' && !isTold) {
      const answers = plansOf(forks).map(unasked)
      yield { type: 'quick', answers, results: resultsOf(forks, answers) }
    }
    yield event
  }
}

/** Of a backend that knows no branches. */
function unasked(): BranchAnswer {
  const message = 'the backend that answered takes no quick instructions'
  return { kind: 'fault', fault: { code: 'unsupported_parameter', message }, suffixTokens: 0, answerTokens: 0 }
}

type Fault = NonNullable<QuickResult['error']>

function faulty({ task, url, form }: Fork, { code, message }: Fault, usage: QuickResult['usage']): QuickResult {
  return { task: task.task, ...(url !== undefined && { url }), form, error: { code, message }, usage }
}

function resultOf(fork: Fork, answer: BranchAnswer): QuickResult {
  const { task, url, form, choices = [] } = fork
  const usage = { promptTokens: answer.suffixTokens, completionTokens: answer.answerTokens }
  const about = { task: task.task, ...(url !== undefined && { url }), form }
  if (answer.kind === 'fault') return faulty(fork, answer.fault, usage)
  if (answer.kind === 'choice') {
    const shares = softmax(answer.logprobs)
    const probabilities = choices.map((choice, i) => ({ choice: choice.trim(), probability: shares[i] ?? 0 }))
    const best = answer.logprobs.indexOf(Math.max(...answer.logprobs))
    return { ...about, choice: (choices[best] ?? '').trim(), probabilities, usage }
  }
  const { text, reason } = answer
  if (task.schema === undefined) {
    const isCut = task.regex !== undefined && reason === 'length'
    return { ...about, text: text.trim(), ...(isCut && { error: cut('the text that the regex asks for') }), usage }
  }
  return isJson(text) ? { ...about, json: text.trim(), usage } : { ...about, text, error: cut('its JSON'), usage }
}

function cut(what: string): Fault {
  return { code: 'incomplete', message: `max_tokens ended the answer before ${what} was complete` }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** Probabilities given that one of them it is. */
function softmax(logprobs: readonly number[]): number[] {
  const best = Math.max(...logprobs)
  const weights = logprobs.map((logprob) => Math.exp(logprob - best))
  const sum = weights.reduce((a, b) => a + b, 0)
  return weights.map((weight) => weight / sum)
}
