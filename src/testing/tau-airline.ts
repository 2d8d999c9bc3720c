// Tool-use conversations of ../shared/data/tau-airline as lines that an agent client can hold. Tests that need them are
// skipped where they are absent. Nothing of them is copied in here.

import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageModels } from '../model/card.js'
import type { Line } from './agent-client.js'

// From the package's root, wherever this was compiled to.
const FILE = join(packageModels(), '..', '..', 'shared', 'data', 'tau-airline', 'sessions_40.jsonl')

/** False: the conversations do not lie beside this repository. */
export const hasTauAirline = existsSync(FILE)

interface Message {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string | null
  readonly tool_calls?: readonly { readonly function: { readonly name: string; readonly arguments: string } }[]
}

/** How the model thinks in front of each answer. */
export type Thinks = (session: number, answer: number) => string | undefined

/** All sessions, or the first `count`. Answers get white space and spellings that clients do not keep. */
export function tauAirline(count = Number.POSITIVE_INFINITY, thinks: Thinks = () => undefined): Line[][] {
  const rows = readFileSync(FILE, 'utf8').trim().split('\n')
  return rows.slice(0, count).map((row, session) => {
    const { messages } = JSON.parse(row) as { messages: readonly Message[] }
    return messages.map((message, i) => lineOf(message, () => thinks(session, i)))
  })
}

function lineOf({ role, content, tool_calls: calls = [] }: Message, thinks: () => string | undefined): Line {
  if (role === 'tool') return { role, content: content ?? '', call: 0 }
  if (role !== 'assistant') return { role, content: content ?? '' }
  const reasoning = thinks()
  const said = content ?? ''
  return {
    role,
    content: said === '' ? '' : `${said}\n\n`,
    ...(reasoning !== undefined && { reasoning }),
    ...(calls.length > 0 && {
      calls: calls.map(({ function: { name, arguments: json } }) => ({ id: '', name, arguments: odd(json) })),
    }),
  }
}

/** Valid JSON as models write it and nothing prints it: blanks, numbers and escapes. */
function odd(json: string): string {
  return json
    .replace(/^\{/, '{ "limit": 20.0,  "far": 1e3, "where": "\\/caf\\u00e9", ')
    .replace(/, }$/, '}')
    .replace(/":/g, '" :  ')
}

/** Reasoning of about `tokens` tokens of the scripted tokenizer (1.5 bytes each), other for every answer. */
export function thoughtOf(tokens: number): Thinks {
  return (session, answer) => {
    const words = `Session ${session}, answer ${answer}: what do the rules say of it? `
    return words.repeat(Math.ceil((tokens * 1.5) / words.length)).slice(0, Math.ceil(tokens * 1.5))
  }
}
