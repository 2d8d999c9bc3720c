// Results by their locators: those that were too long to be shown and lie in the store, and those that stand in the log and
// are shown no more. Invariant: what is erased is not found, and what it rests on comes with it.

import { positionOf } from './compile/locator.js'
import type { SessionLog, StoredResult } from './log/contract.js'
import type { OpenSession } from './open-session.js'

export async function storedResult(
  { events, whose }: Pick<OpenSession, 'events' | 'whose'>,
  log: Pick<SessionLog, 'result'>,
  locator: string,
): Promise<StoredResult | undefined> {
  const position = positionOf(locator)
  if (position !== undefined) {
    const event = events.find((each) => each.position === position)
    if (event?.body.kind !== 'tool_result') return undefined
    const { spilled, content } = event.body
    if (spilled === undefined) return { locator, text: content, sources: event.sources }
    return storedResult({ events, whose }, log, spilled.locator)
  }
  const stored = await log.result(whose, locator)
  const event = events.find(({ body }) => body.kind === 'tool_result' && body.spilled?.locator === locator)
  if (stored === undefined || event === undefined) return stored
  return { ...stored, sources: [...new Set([...stored.sources, ...event.sources])].sort() }
}
