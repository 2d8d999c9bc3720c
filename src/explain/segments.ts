// A turn's prompt as a list of what it is made of: tools, system texts, messages, with their lengths and places. Invariant:
// places in tokens are told only while the tokens are there: of a session's last turn, and of those that it adds to.

import type { SegmentView } from './contract.js'
import type { Session } from './session.js'
import type { Turn } from './turn.js'

export function segmentsOf(turn: Turn, session: Session): readonly SegmentView[] {
  const { marks } = turn
  if (marks === undefined) return []
  const tokens = tokenPlaces(turn, session)
  const tools = marks.tools.map((mark, index) => ({ kind: 'tool' as const, index, ...mark }))
  let isHead = true
  const messages = marks.messages.map(({ role, content, reasoning, calls, bytes, byteAt }, index): SegmentView => {
    isHead &&= role === 'system'
    return {
      kind: isHead ? 'system' : 'message',
      ...{ index, role, bytes },
      digest: [content, reasoning, calls].filter((each) => each !== '').join('.'),
      ...(byteAt !== undefined && { byteAt, ...tokens(byteAt, bytes) }),
    }
  })
  return [...tools, ...messages]
}

type Places = (byteAt: number, bytes: number) => Pick<SegmentView, 'tokenAt' | 'tokens'>

function tokenPlaces({ model, marks }: Turn, session: Session): Places {
  const latest = session.latest.get(model)
  const last = latest?.turn.marks
  if (latest === undefined || marks === undefined || last === undefined || !marks.isStartOf(last)) return () => ({})
  const { line, spellings } = latest
  return (byteAt, bytes) => {
    const tokenAt = line.tokenAt(byteAt, spellings)
    return { tokenAt, tokens: line.tokenAt(byteAt + bytes, spellings) - tokenAt }
  }
}
