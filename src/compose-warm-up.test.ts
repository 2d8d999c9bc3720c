import { expect, test } from 'vitest'
import { warmUp } from './compose-warm-up.js'
import { makeConfig } from './config.js'
import { apartSignals, attemptSettled, note, requestBegun, requestSettled, turnMissed } from './core/signals.js'

const config = makeConfig({})

/** What the warm-up is told of its own requests, and what everybody else is told meanwhile. */
function listening() {
  const heard = { own: [] as number[], others: 0 }
  const other = () => {
    heard.others++
  }
  const stops = [
    apartSignals().requestSettled.subscribe(({ status }) => heard.own.push(status)),
    ...[requestBegun, requestSettled, attemptSettled, turnMissed, note].map((signal) => signal.subscribe(other)),
  ]
  const stop = () => {
    for (const each of stops) each()
  }
  return { heard, stop }
}

const servers = () => process.getActiveResourcesInfo().filter((name) => name === 'TCPServerWrap').length

test('it runs the path of real requests, which nobody hears of, and leaves nothing behind', async () => {
  const { heard, stop } = listening()
  const before = servers()
  await warmUp(config, { inFlight: () => 0, begun: () => 0, isOver: () => heard.own.length >= 100 })
  stop()
  expect(heard.own.length).toBeGreaterThanOrEqual(100)
  expect(new Set(heard.own)).toEqual(new Set([200]))
  expect(heard.others).toBe(0)
  expect(servers()).toBe(before)
})

test('it waits for as long as requests come', async () => {
  // What the one above was told last.
  await new Promise((resolve) => setTimeout(resolve, 50))
  const { heard, stop } = listening()
  let looks = 0
  let begun = 0
  await warmUp(config, { inFlight: () => 0, begun: () => ++begun, isOver: () => ++looks > 100 })
  stop()
  expect(heard.own).toEqual([])
})
