// A server with conversations in it for tests of the page: the scripted program, real requests, the real explainer. Sessions
// share a head, some edit it, so that there are hits, misses with reasons, and a tree that branches.

import type { Program } from '../compose.js'
import { post, scriptedProgram } from './scripted-program.js'

export interface Talk {
  /** Sessions that are begun. */
  readonly sessions: number
  readonly turns: number
  /** Headers of each request. */
  readonly headers?: Readonly<Record<string, string>>
}

export interface DashboardHouse {
  readonly program: Program
  readonly url: string
  talk(talk: Talk): Promise<void>
  /** One more turn of session `i`. */
  goOn(i: number, headers?: Readonly<Record<string, string>>): Promise<void>
  close(): Promise<void>
}

/** A session's words, different at every `i`. */
const words = (i: number, count: number) =>
  Array.from({ length: count }, (_, k) => `${(i * 7919 + k * k * 31) % 9973}`).join(' ')
const NAMES = ['fix-login', 'triage', 'docs', 'refactor-cache', 'review', 'release', 'research', 'ops']

export async function dashboardHouse(flags: Readonly<Record<string, unknown>> = {}): Promise<DashboardHouse> {
  const program = await scriptedProgram({
    'log.level': 'silent',
    'explain.keepText': true,
    'backend.options': { answer: 'All is well; the next step is to look at the other file.' },
    ...flags,
  })
  const url = await program.start()
  const said = new Map<number, { role: string; content: string }[]>()
  const goOn: DashboardHouse['goOn'] = async (i, headers = {}) => {
    const messages = said.get(i) ?? [
      // Every fourth has a clock in its head, which changes from turn to turn.
      { role: 'system', content: `You are agent ${i % 5}. ${words(i % 5, 200 + 60 * (i % 5))}` },
    ]
    if (i % 4 === 3) {
      messages[0] = {
        role: 'system',
        content: `It is 10:${10 + messages.length}. You are agent ${i % 5}. ${words(i % 5, 200)}`,
      }
    }
    messages.push({ role: 'user', content: words(i + messages.length * 1000, 40 + ((i * 13) % 90)) })
    said.set(i, messages)
    const session = `${NAMES[i % NAMES.length]}-${i}`
    const reply = await post(
      program,
      '/v1/chat/completions',
      { messages },
      { 'x-refrain-session': session, ...headers },
    )
    if (reply.status !== 200) throw new Error(`${reply.status} ${reply.text}`)
    messages.push({ role: 'assistant', content: reply.json().choices[0].message.content })
  }
  return {
    program,
    url,
    async talk({ sessions, turns, headers }) {
      for (let turn = 0; turn < turns; turn++) for (let i = 0; i < sessions; i++) await goOn(i, headers)
    },
    goOn,
    close: () => program.stop(0),
  }
}
