// Side questions in fleet mode, top to bottom: to a Refrain as they came, to other servers as requests of their own where
// the prefix is held. Invariant: nobody's question computes the prefix that another one is computing: one goes first, the
// others follow once it is held; a question that fails touches no other.

import type { AsideWords, FleetQuick, FleetService, Forward, Forwarded, ForwardUsage } from './api/contract.js'
import { RefrainError } from './core/errors.js'
import type { QuickResult } from './core/quick.js'
import { asideAnswer } from './quick/aside-answer.js'
import { type AsideAnswer, type AsideQuestion, asideFault, asideQuestions, asideResult } from './quick/asides.js'
import { catalogueOf } from './quick/catalogue.js'
import type { MemberPlacement } from './router/contract.js'

/** How a backend is asked: all at once, by its own special tokens, or in words. */
export type AskedAs = 'refrain' | 'tasks' | 'words'

export interface FleetQuickParts {
  readonly fleet: Pick<FleetService, 'place' | 'forward'>
  /** By the id of the backend. */
  askedAs(member: string): AskedAs
  /** Ids of all backends. */
  members(): readonly string[]
}

/** A prompt of which so much is held is computed by nobody. */
const HELD = 0.9
/** Questions at once: a server's own queue is for others too. */
const AT_ONCE = 8

export type Whole = Extract<Forwarded, { kind: 'whole' }>

export function createFleetQuick(parts: FleetQuickParts): Pick<FleetQuick, 'ask'> {
  const { fleet, askedAs, members } = parts
  const catalogue = catalogueOf()

  return {
    async ask(asked, routed, signal) {
      const placement = fleet.place(asked.whole.query) //           model_not_found, engine_failed, queue_full
      const as = askedAs(placement.member.id)
      const excluded = members().filter((id) => askedAs(id) !== as)
      const send = (each: Forward) => sent(fleet, excluding(each, excluded), { routed, signal })
      if (as === 'refrain') return { kind: 'whole', answer: await send(asked.whole) }
      const questions = asideQuestions(asked.tasks, { catalogue, native: as === 'tasks' })
      const { isJoinable } = asked
      const asking = new Asking({ chat: (question) => asked.chat(question), send, isJoinable, signal })
      const answers = await asking.all(questions, isHeld(placement, asked.whole)) // as the leader fails
      return { kind: 'results', ...summed(questions, answers) }
    },
  }
}

/** Not to members of these ids. */
export function excluding(asked: Forward, excluded: readonly string[]): Forward {
  return { ...asked, query: { ...asked.query, excluded } }
}

interface Sending {
  readonly routed: (route: string) => void
  readonly signal: AbortSignal
}

/** Sends what is answered by one body. @throws RefrainError, the signal's reason. */
export async function sent(
  fleet: Pick<FleetService, 'forward'>,
  asked: Forward,
  { routed, signal }: Sending,
): Promise<Whole> {
  const nothing = () => {
    throw new Error('a side question was answered by a stream')
  }
  const sink = { routed, begin: nothing, write: nothing, failsWith: () => undefined }
  const forwarded = await fleet.forward(asked, sink, signal)
  if (forwarded.kind !== 'whole') return nothing()
  return forwarded
}

function isHeld({ predictedHitTokens }: MemberPlacement, { query }: Forward): boolean {
  return predictedHitTokens >= HELD * query.promptTokens
}

export type Answered = AsideAnswer | { readonly fault: unknown }

export interface AskingParts {
  /** The chat with one question. */
  chat(question: AsideWords): Forward
  send(asked: Forward): Promise<Whole>
  /** Words may end the last message. */
  readonly isJoinable: boolean
  readonly signal: AbortSignal
}

/** The questions of one call. */
export class Asking {
  readonly #parts: AskingParts
  /** The template takes no two messages of the user's in a row. */
  #joined = false

  constructor(parts: AskingParts) {
    this.#parts = parts
  }

  /** @throws RefrainError where the first one fails for a reason of the backend's, the signal's reason. */
  async all(questions: readonly AsideQuestion[], isHeld: boolean): Promise<Answered[]> {
    const answers: Answered[] = []
    let next = 0
    // The first that is answered brings the prefix; what it cannot be asked is no reason to send the others at once.
    while (!isHeld && next < questions.length) {
      const answer = await this.#one(questions[next] as AsideQuestion)
      answers[next++] = answer
      if (!('fault' in answer)) break
      if (isOfBackend(answer.fault)) throw answer.fault
    }
    const follow = async () => {
      while (next < questions.length) {
        const i = next++
        answers[i] = await this.#one(questions[i] as AsideQuestion)
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, follow))
    return answers
  }

  async #one(question: AsideQuestion): Promise<Answered> {
    try {
      return await this.#answer(question)
    } catch (fault) {
      if (this.#parts.signal.aborted || !(fault instanceof RefrainError)) throw fault
      return { fault }
    }
  }

  async #answer(question: AsideQuestion): Promise<AsideAnswer> {
    const joined = this.#joined
    const whole = await this.#send(question, joined)
    if (whole.status !== 400 || joined || question.instruction === undefined || !this.#parts.isJoinable) {
      return asideAnswer(whole)
    }
    const again = await this.#send(question, true)
    if (again.status === 200) this.#joined = true
    return asideAnswer(again.status === 200 ? again : whole)
  }

  #send({ aside, instruction, task }: AsideQuestion, joined: boolean): Promise<Whole> {
    const how = instruction === undefined ? { task: task.task } : { said: instruction, joined }
    return this.#parts.send(this.#parts.chat({ aside, ...how }))
  }
}

/** Not the question's own: the others would fare no better. */
function isOfBackend(fault: unknown): boolean {
  return !(fault instanceof RefrainError) || fault.code !== 'unsupported_parameter'
}

/** One result a question; `baseTokens` of each prompt are counted elsewhere. */
export function resultsOf(
  questions: readonly AsideQuestion[],
  answers: readonly Answered[],
  baseTokens: number,
): QuickResult[] {
  return questions.map((question, i) => {
    const answer = answers[i] as Answered
    return 'fault' in answer ? asideFault(question, answer.fault) : asideResult(question, answer, baseTokens)
  })
}

/** The length of the shortest prompt that was answered. */
export function shortest(answers: readonly Answered[]): number {
  const lengths = answers.flatMap((answer) => ('fault' in answer ? [] : [answer.promptTokens]))
  return lengths.length === 0 ? 0 : Math.min(...lengths)
}

/** What all questions have in common is counted once: the shortest of them. */
export function summed(questions: readonly AsideQuestion[], answers: readonly Answered[]) {
  const base = shortest(answers)
  const results = resultsOf(questions, answers, base)
  const leader = answers.find((answer) => !('fault' in answer)) as AsideAnswer | undefined
  const usage: ForwardUsage = {
    promptTokens: base + results.reduce((sum, result) => sum + result.usage.promptTokens, 0),
    completionTokens: results.reduce((sum, result) => sum + result.usage.completionTokens, 0),
    ...(leader?.cachedTokens !== undefined && { cachedTokens: Math.min(base, leader.cachedTokens) }),
  }
  return { results, usage }
}
