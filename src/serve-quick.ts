// Side questions in fleet mode, top to bottom: to a Refrain as they came, to other servers as requests of their own where
// the prefix is held. Invariant: nobody's question computes the prefix that another one is computing: one goes first, the
// others follow once it is held; a question that fails touches no other.

import type {
  FleetQuick,
  FleetService,
  Forward,
  Forwarded,
  ForwardUsage,
  QuickForward,
  QuickForwarded,
} from './api/contract.js'
import { RefrainError } from './core/errors.js'
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

type Whole = Extract<Forwarded, { kind: 'whole' }>

export function createFleetQuick(parts: FleetQuickParts): FleetQuick {
  const { fleet, askedAs, members } = parts
  const catalogue = catalogueOf()

  return {
    async ask(asked, routed, signal): Promise<QuickForwarded> {
      const placement = fleet.place(asked.whole.query) //           model_not_found, engine_failed, queue_full
      const as = askedAs(placement.member.id)
      const excluded = members().filter((id) => askedAs(id) !== as)
      if (as === 'refrain') {
        return { kind: 'whole', answer: await sent(routing(asked.whole, excluded), { parts, routed, signal }) }
      }
      const questions = asideQuestions(asked.tasks, { catalogue, native: as === 'tasks' })
      const asking = new Asking(asked, excluded, { parts, routed, signal })
      const answers = await asking.all(questions, isHeld(placement, asked.whole)) // as the leader fails
      return summed(questions, answers)
    },
  }
}

interface Sent {
  readonly parts: FleetQuickParts
  readonly routed: (route: string) => void
  readonly signal: AbortSignal
}

/** Only to backends that are asked in the same way. */
function routing(asked: Forward, excluded: readonly string[]): Forward {
  return { ...asked, query: { ...asked.query, excluded } }
}

async function sent(asked: Forward, { parts, routed, signal }: Sent): Promise<Whole> {
  const nothing = () => {
    throw new Error('a side question was answered by a stream')
  }
  const sink = { routed, begin: nothing, write: nothing, failsWith: () => undefined }
  const forwarded = await parts.fleet.forward(asked, sink, signal)
  if (forwarded.kind !== 'whole') return nothing()
  return forwarded
}

function isHeld({ predictedHitTokens }: MemberPlacement, { query }: Forward): boolean {
  return predictedHitTokens >= HELD * query.promptTokens
}

type Answered = AsideAnswer | { readonly fault: unknown }

/** The questions of one call. */
class Asking {
  readonly #asked: QuickForward
  readonly #excluded: readonly string[]
  readonly #sent: Sent
  /** The template takes no two messages of the user's in a row. */
  #joined = false

  constructor(asked: QuickForward, excluded: readonly string[], how: Sent) {
    this.#asked = asked
    this.#excluded = excluded
    this.#sent = how
  }

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
      if (this.#sent.signal.aborted || !(fault instanceof RefrainError)) throw fault
      return { fault }
    }
  }

  async #answer(question: AsideQuestion): Promise<AsideAnswer> {
    const joined = this.#joined
    const whole = await this.#send(question, joined)
    if (whole.status !== 400 || joined || question.instruction === undefined || !this.#asked.isJoinable) {
      return answerOf(whole)
    }
    const again = await this.#send(question, true)
    if (again.status === 200) this.#joined = true
    return answerOf(again.status === 200 ? again : whole)
  }

  #send({ aside, instruction, task }: AsideQuestion, joined: boolean): Promise<Whole> {
    const how = instruction === undefined ? { task: task.task } : { said: instruction, joined }
    return sent(routing(this.#asked.chat({ aside, ...how }), this.#excluded), this.#sent)
  }
}

/** Not the question's own: the others would fare no better. */
function isOfBackend(fault: unknown): boolean {
  return !(fault instanceof RefrainError) || fault.code !== 'unsupported_parameter'
}

/** @throws RefrainError where it is none. */
function answerOf({ status, body, usage }: Whole): AsideAnswer {
  const text = body.toString('utf8')
  const value = parsed(text)
  if (status >= 400) throw new RefrainError(status === 429 ? 'queue_full' : 'invalid_request', refusalIn(value, status))
  const choice = (value as { choices?: readonly WireChoice[] } | undefined)?.choices?.[0]
  const content = choice?.message?.content
  if (choice === undefined || typeof content !== 'string') {
    throw new RefrainError('engine_failed', 'the backend answered without a message')
  }
  const first = choice.logprobs?.content?.[0]?.top_logprobs
  const { promptTokens = 0, completionTokens = 0, cachedTokens } = usage ?? ({} as Partial<ForwardUsage>)
  return {
    text: content,
    cut: choice.finish_reason === 'length',
    ...(Array.isArray(first) && { first }),
    ...{ promptTokens, completionTokens },
    ...(cachedTokens !== undefined && { cachedTokens }),
  }
}

interface WireChoice {
  readonly message?: { readonly content?: unknown }
  readonly finish_reason?: string
  readonly logprobs?: {
    readonly content?: readonly { readonly top_logprobs?: readonly { token: string; logprob: number }[] }[]
  } | null
}

function refusalIn(value: unknown, status: number): string {
  const { error, message, detail } = (value ?? {}) as {
    error?: { message?: unknown }
    message?: unknown
    detail?: unknown
  }
  const said = [error?.message, message, detail].find((each) => typeof each === 'string')
  return said === undefined ? `the backend answers ${status}` : String(said)
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}

/** What all questions have in common is counted once: the shortest of them. */
function summed(questions: readonly AsideQuestion[], answers: readonly Answered[]): QuickForwarded {
  const good = answers.flatMap((answer) => ('fault' in answer ? [] : [answer]))
  const base = good.length === 0 ? 0 : Math.min(...good.map(({ promptTokens }) => promptTokens))
  const results = questions.map((question, i) => {
    const answer = answers[i] as Answered
    return 'fault' in answer ? asideFault(question, answer.fault) : asideResult(question, answer, base)
  })
  const [leader] = good
  const usage: ForwardUsage = {
    promptTokens: base + results.reduce((sum, result) => sum + result.usage.promptTokens, 0),
    completionTokens: results.reduce((sum, result) => sum + result.usage.completionTokens, 0),
    ...(leader?.cachedTokens !== undefined && { cachedTokens: Math.min(base, leader.cachedTokens) }),
  }
  return { kind: 'results', results, usage }
}
