// Where the routes of one of several router processes ask for turns: the process that keeps those of all. Invariant: an
// owner that does not answer is named, and nobody waits longer for it than `ask` does.

import type { Joined, TurnDesk } from './contract.js'

/** A call of a `TurnDesk`, as structures can be cloned. */
export type TurnQuestion = {
  readonly [What in keyof TurnDesk]: { readonly what: What; readonly args: Parameters<TurnDesk[What]> }
}[keyof TurnDesk]

/** Undefined: no answer in time. */
export type AskTurns = (question: TurnQuestion) => Promise<Joined<unknown> | undefined>

/** Who is asked, in words. */
export const OWNER = 'the owner of the router processes'

export function askedTurns(ask: AskTurns): TurnDesk {
  const joined = async <T>(question: TurnQuestion, nothing: T) =>
    ((await ask(question)) as Joined<T> | undefined) ?? { value: nothing, missing: [OWNER] }
  return {
    sessions: (...args) => joined({ what: 'sessions', args }, []),
    turns: (...args) => joined({ what: 'turns', args }, undefined),
    turn: (...args) => joined({ what: 'turn', args }, undefined),
  }
}

/** In the process that keeps turns; `missing`: processes that did not hand over what they have. */
export async function answerTurns(
  desk: TurnDesk,
  question: TurnQuestion,
  missing: readonly string[],
): Promise<Joined<unknown>> {
  const ask = desk[question.what] as (...args: readonly unknown[]) => Promise<Joined<unknown>>
  return { ...(await ask(...question.args)), missing }
}
