// Questions beside an answer whose prompt they share too little of, because the template writes a conversation otherwise
// when it goes on: they run as a job of their own, at the same time. Invariant: the answer is told as if nothing ran
// beside it; what becomes of the questions comes before its finish, a failure too.

import { type ErrorCode, RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'
import type { BranchAnswer, BranchPlan } from '../core/quick.js'

export interface Beside {
  readonly plans: readonly BranchPlan[]
  /** Starts the job of the questions. */
  ask(signal: AbortSignal): AsyncIterable<GenerateEvent>
}

/** `events`, with the answers of `beside` in front of the finish. */
export async function* besides(
  events: AsyncIterable<GenerateEvent>,
  { plans, ask }: Beside,
  signal: AbortSignal,
): AsyncGenerator<GenerateEvent, void> {
  const stop = new AbortController()
  const onAbort = () => stop.abort(signal.reason)
  signal.addEventListener('abort', onAbort, { once: true })
  const answers = answersOf(ask(stop.signal)).catch((fault: unknown) => failed(fault, plans))
  try {
    for await (const event of events) {
      if (event.type === 'finish') yield { type: 'quick', answers: await answers }
      yield event
    }
  } finally {
    signal.removeEventListener('abort', onAbort)
    stop.abort(new Error('the answer is over'))
  }
}

async function answersOf(events: AsyncIterable<GenerateEvent>): Promise<readonly BranchAnswer[]> {
  for await (const event of events) if (event.type === 'quick') return event.answers
  throw new Error('a backend left branches without answers')
}

function failed(fault: unknown, plans: readonly BranchPlan[]): readonly BranchAnswer[] {
  const code: ErrorCode = fault instanceof RefrainError ? fault.code : 'internal'
  const message = fault instanceof RefrainError ? fault.message : 'it failed for a reason of the server'
  return plans.map(({ suffix }) => ({
    ...{ kind: 'fault' as const, fault: { code, message } },
    ...{ suffixTokens: suffix.length, answerTokens: 0 },
  }))
}
