// A process that fills a session log until it is killed, for the tests of what is left then. It first checks what it finds:
// whole appends, each with what was written at its place. Arguments: worker's URL, folder, durability, writers.
//
//   found SESSION POSITION      when it starts, of each session
//   ready                       then it writes
//   kept SESSION POSITION       of each append that was answered

import type { NewEvent } from '../session/log/event.js'
import { newSessionId } from '../session/log/ids.js'
import { openSqliteLog } from '../session/log/sqlite.js'
import type { Durability } from '../session/log/sqlite-database.js'
import { HOUSE_LIMITS } from './log-limits.js'

/** Events of one append. */
const TOGETHER = 3

const [, , workerUrl, folder, durability, writers] = process.argv as string[]
const log = await openSqliteLog({
  ...{ workerUrl: new URL(workerUrl!), folder: folder!, durability: durability as Durability },
  ...{ keys: { oldKeyFiles: [] }, maxBytes: 2 ** 30, limits: HOUSE_LIMITS },
})
const say = (line: string) => process.stdout.write(`${line}\n`)

/** What stands at a position; of different lengths, so that pages are cut at different places. */
const textAt = (session: string, position: number) =>
  `${session} ${position} ${'lorem ipsum '.repeat((position * 37) % 211)}`
const eventAt = (session: string, position: number): NewEvent => ({
  body: { kind: 'user', content: textAt(session, position) },
  ...(position % 7 === 0 && { sources: [`source ${position}`] }),
})

for (const { id, position } of await log.sessions('acme', { limit: 100_000 })) {
  const events = await log.read('acme', id, { from: 1, limit: 100_000 })
  if (events.length !== position) throw new Error(`${id} stands at ${position} and has ${events.length} events`)
  if (position % TOGETHER !== 0) throw new Error(`${id} has a part of an append: ${position}`)
  for (const { body, position: at } of events) {
    if (body.kind !== 'user' || body.content !== textAt(id, at)) throw new Error(`${id} ${at} is not what was written`)
  }
  say(`found ${id} ${position}`)
}
say('ready')

async function write(): Promise<never> {
  for (;;) {
    const { id } = await log.create({ id: newSessionId(), tenant: 'acme', model: 'toy' }, [])
    for (let position = 0; position < 60; position += TOGETHER) {
      const events = Array.from({ length: TOGETHER }, (_, i) => eventAt(id, position + i + 1))
      await log.append({ tenant: 'acme', session: id, expected: position, events })
      say(`kept ${id} ${position + TOGETHER}`)
    }
  }
}
await Promise.all(Array.from({ length: Number(writers) }, write))
