// Side questions in a chat's own body, before servers that are no Refrain: the answer goes to the client as it comes, the
// questions go as requests of their own to the backend that gives it, once it has the prompt. Invariant: nothing of the
// answer waits for a question but its end; no question is sent before the answer has begun; a question that fails is told
// in its result, and what ends the answer ends the questions.

import type { BesideAnswer, BesideAsked, FleetQuick, Forwarded, ForwardSink } from './api/contract.js'
import { RefrainError } from './core/errors.js'
import { type AsideQuestion, asideQuestions } from './quick/asides.js'
import { catalogueOf } from './quick/catalogue.js'
import {
  type Answered,
  Asking,
  excluding,
  type FleetQuickParts,
  resultsOf,
  sent,
  shortest,
  summed,
} from './serve-quick.js'

export function createBeside(parts: FleetQuickParts): Pick<FleetQuick, 'beside'> {
  return {
    beside(asked, sink, signal) {
      const request = { asked, sink, signal }
      return asked.beside.isTask ? task(request, parts) : new Besides(request, parts).run()
    },
  }
}

const CATALOGUE = catalogueOf()
const NOBODY_WAITS = new Error('the answer is over')

interface Request {
  readonly asked: Parameters<FleetQuick['beside']>[0]
  readonly sink: ForwardSink
  readonly signal: AbortSignal
}

/** The call is the task: by the rule of POST /v1/quick, told as the answer of a chat. */
async function task({ asked, sink, signal }: Request, parts: FleetQuickParts): Promise<Forwarded> {
  const { fleet, askedAs, members } = parts
  const { id: first } = fleet.place(asked.query).member //    model_not_found, engine_failed, queue_full
  const as = askedAs(first)
  const excluded = members().filter((id) => askedAs(id) !== as)
  if (as === 'refrain') return fleet.forward(excluding(asked, excluded), sink, signal)
  const beside = asked.beside.asked() //                      invalid_request
  const questions = asideQuestions(beside.tasks, { catalogue: CATALOGUE, native: as === 'tasks' })
  const routed = (route: string) => sink.routed(route, first)
  let part = 0
  const asking = new Asking({
    chat: (question) => beside.chat(question, { part: part++ }),
    send: (each) => sent(fleet, excluding(each, excluded), { routed, signal }),
    isJoinable: beside.isJoinable,
    signal,
  })
  const { results: quick, usage: all } = summed(questions, await asking.all(questions, false))
  // What the one question answered is counted with its result.
  const usage = { ...all, completionTokens: 0 }
  const text = beside.taskAnswer(quick, usage) //             as the task failed
  const told = { quick, usage }
  if (asked.stream) {
    sink.begin({})
    sink.write(text)
    return { kind: 'stream', ...told }
  }
  const headers = { 'content-type': 'application/json; charset=utf-8' }
  return { kind: 'whole', status: 200, headers, body: Buffer.from(text), ...told }
}

/** Questions that are under way. */
interface Asked {
  /** Where. */
  readonly member: string
  readonly stop: AbortController
  readonly questions: readonly AsideQuestion[]
  readonly answers: Promise<readonly Answered[]>
}

/** One call: where its answer passes, and what is asked about it. */
class Besides implements ForwardSink {
  readonly #request: Request
  readonly #parts: FleetQuickParts
  /** Who answers; undefined: a Refrain, which answers everything itself. */
  #member: string | undefined
  #answer: BesideAnswer | undefined
  #asked: Asked | undefined
  #part = 0

  constructor(request: Request, parts: FleetQuickParts) {
    this.#request = request
    this.#parts = parts
  }

  async run(): Promise<Forwarded> {
    const { asked, signal } = this.#request
    const onAbort = () => this.#asked?.stop.abort(signal.reason)
    signal.addEventListener('abort', onAbort, { once: true })
    try {
      return await this.#with(await this.#parts.fleet.forward(asked, this, signal))
    } finally {
      signal.removeEventListener('abort', onAbort)
      this.#asked?.stop.abort(NOBODY_WAITS)
    }
  }

  // --- the answer as it passes ---------------------------------------------------------------------------------------

  routed(route: string, member: string): void {
    this.#member = this.#parts.askedAs(member) === 'refrain' ? undefined : member
    this.#request.sink.routed(route, member)
  }

  begin(headers: Readonly<Record<string, string>>): void {
    this.#request.sink.begin(headers)
  }

  failsWith(failure: (error: unknown) => string): void {
    this.#request.sink.failsWith(failure)
  }

  write(bytes: Buffer | string): void {
    const { sink } = this.#request
    if (this.#member === undefined) {
      sink.write(bytes)
      return
    }
    const passed = this.#passing.pass(typeof bytes === 'string' ? Buffer.from(bytes) : bytes)
    if (passed.length > 0) sink.write(passed)
    // Content is out, so the prompt is computed. Where another backend goes on with the answer, it is asked anew.
    if (this.#beside.at === 'user' && this.#asked?.member !== this.#member) this.#ask(this.#member)
  }

  get #beside(): BesideAsked {
    return this.#request.asked.beside.asked()
  }

  get #passing(): BesideAnswer {
    this.#answer ??= this.#beside.answer()
    return this.#answer
  }

  // --- the questions -------------------------------------------------------------------------------------------------

  /** The end of the answer, with the results. */
  async #with(forwarded: Forwarded): Promise<Forwarded> {
    const member = this.#member
    if (member === undefined || (forwarded.kind === 'whole' && forwarded.status !== 200)) return forwarded
    const body = forwarded.kind === 'whole' ? forwarded.body : undefined
    const isReply = this.#beside.at === 'reply'
    if (this.#asked?.member !== member) this.#ask(member, isReply ? this.#passing.reply(body) : undefined)
    const { questions, answers } = this.#asked as Asked
    const answered = await answers //                         the signal's reason
    const { promptTokens = 0, completionTokens = 0 } = forwarded.usage ?? {}
    const held = isReply ? promptTokens + completionTokens : promptTokens
    const quick = resultsOf(questions, answered, held === 0 ? shortest(answered) : held)
    if (forwarded.kind === 'whole') return { ...forwarded, quick, body: this.#passing.whole(forwarded.body, quick) }
    this.#request.sink.write(this.#passing.rest(quick))
    return { ...forwarded, quick }
  }

  #ask(member: string, reply?: string): void {
    const { fleet, askedAs, members } = this.#parts
    const beside = this.#beside
    this.#asked?.stop.abort(NOBODY_WAITS)
    const stop = new AbortController()
    const { signal } = stop
    const questions = asideQuestions(beside.tasks, { catalogue: CATALOGUE, native: askedAs(member) === 'tasks' })
    const others = members().filter((id) => id !== member)
    const asking = new Asking({
      chat: (question) => beside.chat(question, { part: this.#part++, reply }),
      send: (each) => sent(fleet, excluding(each, others), { routed: () => undefined, signal }),
      isJoinable: beside.isJoinable,
      signal,
    })
    const answers = asking.all(questions, beside.isSamePrompt).catch((fault: unknown) => {
      if (signal.aborted || !(fault instanceof RefrainError)) throw fault
      return questions.map(() => ({ fault }))
    })
    // Where the answer fails first, nobody waits for them.
    answers.catch(() => undefined)
    this.#asked = { member, stop, questions, answers }
  }
}
