// A real process, a real disk, kill -9 at random moments under load: the next owner finds every append that was acknowledged,
// whole, and nothing torn. Ten kills here; bench/session-log.ts does two hundred.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { type LogHouse, openLogHouse } from '../../testing/log-house.js'
import { killAgainAndAgain } from '../../testing/log-kills.js'

let house: LogHouse
beforeAll(async () => {
  house = await openLogHouse(['log-writer'])
})
afterAll(() => house.close())

test.each([
  ['process', 5],
  ['power', 5],
] as const)('durable to the %s, %i kills', async (durability, kills) => {
  const outcome = await killAgainAndAgain(house, { folder: house.folder(), durability, kills, seed: kills })
  expect(outcome.lost).toEqual([])
  expect(outcome.acknowledged).toBeGreaterThan(kills)
})
