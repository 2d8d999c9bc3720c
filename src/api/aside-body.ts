// A chat body with one side question at its end, made of the raw text of another body. Invariant: what makes the prompt
// (messages, tools, what the template is told) keeps its very text, so that a server finds the prefix that it holds; how
// the main answer is sampled, limited and told is no question's.

import { type BodyMember, type BodyScan, ROLES } from './body-scan.js'
import type { AsideWords } from './contract.js'

/** The parts of a chat body, as raw text. */
export interface ChatParts {
  /** Members beside the messages: `"key":value`. */
  readonly rest: readonly string[]
  readonly messages: readonly string[]
}

/** Members called what `keeps` says no to are left out. */
export function chatParts(scan: BodyScan, keeps: (key: string, json: string) => boolean): ChatParts {
  const { bytes, elements, members } = scan
  const { starts, ends } = elements
  const text = ({ start, end }: Pick<BodyMember, 'start' | 'end'>) => bytes.toString('utf8', start, end)
  const messages = starts.map((start, i) => text({ start, end: ends[i] as number }))
  const rest = members
    .filter((each) => each.key !== 'messages' && keeps(each.key, text(each)))
    .map((each) => `${JSON.stringify(each.key)}:${text(each)}`)
  return { rest, messages }
}

/** The whole body. */
export function withQuestion({ rest, messages }: ChatParts, { said, task, joined = false }: AsideWords): Buffer {
  const all = [...messages]
  if (task !== undefined) all.push(withMember(all.pop() as string, 'task', task))
  else if (joined) all.push(withWords(all.pop() as string, said as string))
  else all.push(JSON.stringify({ role: 'user', content: said }))
  return Buffer.from(`{${[...rest, `"messages":[${all.join(',')}]`].join(',')}}`)
}

/** Whether the last message is the user's, and a text that words can be put behind. */
export function isJoinable({ elements }: Pick<BodyScan, 'elements'>, last: string | undefined): boolean {
  return ROLES[elements.roles.at(-1) ?? 0] === 'user' && typeof contentOf(last) === 'string'
}

export function contentOf(message: string | undefined): unknown {
  return message === undefined ? undefined : (JSON.parse(message) as { content?: unknown }).content
}

/** The raw text of an object with one more member at its end. The last of two members of a name counts. */
export function withMember(json: string, key: string, value: unknown): string {
  const open = json.trimEnd().slice(0, -1).trimEnd()
  return `${open}${open.endsWith('{') ? '' : ','}${JSON.stringify(key)}:${JSON.stringify(value)}}`
}

function withWords(json: string, said: string): string {
  return withMember(json, 'content', `${contentOf(json) as string}\n\n${said}`)
}
