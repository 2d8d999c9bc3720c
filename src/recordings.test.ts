// Requests of real agent clients, replayed in their order against a whole server whose model answers as the recording's
// did: what of each prompt is reused, of what its content allows; and what else the recordings teach.

import { describe, expect, test } from 'vitest'
import * as dialects from './api/dialect/index.js'
import { hasRecordings, type Recording, recordings } from './testing/recordings.js'
import { openReplay, type Replayed } from './testing/replay.js'

const served = new Set<string>(Object.values(dialects).map(({ path }) => path))
const pathOf = ({ path }: Recording) => path.split('?')[0] as string
const all = recordings().filter((each) => served.has(pathOf(each)))
const answered = all.filter(({ reply_status: status, reply_fault: fault }) => status === 200 && !fault)
const clients = [...new Set(answered.map(({ client }) => client))]

describe.skipIf(!hasRecordings)('recorded runs (needs ../shared)', () => {
  test('there are some of every client', () => expect(clients.length).toBeGreaterThanOrEqual(6))

  test.each(clients)(
    '%s: hits are at least 0.99 of what the content allows, in every run and class',
    async (client) => {
      const house = await openReplay()
      const seen: Replayed[] = []
      for (const recording of answered.filter((each) => each.client === client)) {
        const replayed = await house.replay(recording)
        expect([recording.name, replayed.status]).toEqual([recording.name, 200])
        seen.push(replayed)
      }
      const sums = new Map<string, { hits: number; ideal: number; requests: number }>()
      for (const { recording, hits, ideal } of seen) {
        const key = `${recording.run} ${recording.class} ${pathOf(recording)}`
        const sum = sums.get(key) ?? { hits: 0, ideal: 0, requests: 0 }
        sums.set(key, { hits: sum.hits + hits, ideal: sum.ideal + ideal, requests: sum.requests + 1 })
      }
      for (const [key, { hits, ideal }] of sums) {
        expect([key, hits >= 0.99 * ideal ? 'enough' : `${hits} of ${ideal}`]).toEqual([key, 'enough'])
      }
      // A turn that follows another one does reuse: the yardstick is not nothing.
      const main = seen.filter(({ recording }) => recording.class === 'main')
      const [hits, total] = [sumOf(main, (each) => each.hits), sumOf(main, (each) => each.job?.tokens.length ?? 0)]
      expect(hits / total).toBeGreaterThan(0.5)
      await house.close()
    },
  )
})

function sumOf<T>(list: readonly T[], of: (each: T) => number): number {
  return list.reduce((sum, each) => sum + of(each), 0)
}
