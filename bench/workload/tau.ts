// Real tool-use sessions (tau-bench airline, MIT) as an agent would send them: each turn the whole history, one message
// longer than before; the assistant's text from the file, a tool's result as a user message.

import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

export interface Message {
  readonly role: 'system' | 'user' | 'assistant'
  readonly content: string
}

/** One turn: what is sent. */
export type Turn = readonly Message[]

interface Recorded {
  readonly messages: readonly {
    readonly role: string
    readonly content?: string | null
    readonly tool_calls?: readonly { readonly function: unknown }[]
  }[]
}

/** `turns` of each of the first `count` sessions; undefined where the file is absent. */
export function tauSessions(count: number, turns: number): Turn[][] | undefined {
  const path = ['../../../shared', '../../../../shared', '../../../../../shared']
    .map((up) => fileURLToPath(new URL(`${up}/data/tau-airline/sessions_40.jsonl`, import.meta.url)))
    .find(existsSync)
  if (path === undefined) return undefined
  const lines = readFileSync(path, 'utf8').split('\n').slice(0, count)
  return lines.map((line) => turnsOf(JSON.parse(line) as Recorded).slice(0, turns))
}

function turnsOf({ messages }: Recorded): Turn[] {
  const turns: Turn[] = []
  const history: Message[] = []
  for (const { role, content, tool_calls: calls } of messages) {
    if (role === 'assistant') {
      turns.push([...history])
      const call = calls?.[0]
      history.push({ role, content: content || (call ? JSON.stringify(call.function) : '') })
    } else if (role === 'tool') history.push({ role: 'user', content: `Tool result: ${content ?? ''}` })
    else history.push({ role: role as 'system' | 'user', content: content ?? '' })
  }
  return turns
}
