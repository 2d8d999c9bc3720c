// The stop scanner against a plain search of the whole text, whatever the pieces.

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { createStopScanner } from './stop.js'

/** The specification: the match that ends first, of those the longest. */
function search(text: string, stops: readonly string[]): { visible: string; stopped?: string } {
  const found = stops
    .filter((stop) => stop !== '' && text.includes(stop))
    .map((stop) => ({ stop, end: text.indexOf(stop) + stop.length }))
    .sort((a, b) => a.end - b.end || b.stop.length - a.stop.length)[0]
  if (found === undefined) return { visible: text }
  return { visible: text.slice(0, found.end - found.stop.length), stopped: found.stop }
}

function scan(pieces: readonly string[], stops: readonly string[]): { visible: string; stopped?: string } {
  const scanner = createStopScanner(stops)
  let visible = ''
  for (const piece of pieces) {
    const step = scanner.push(piece)
    visible += step.visible
    if (step.stopped !== undefined) return { visible, stopped: step.stopped }
  }
  return { visible: visible + scanner.end() }
}

// Two letters make overlaps and false starts; the emoji is two UTF-16 units.
const letters = fc.constantFrom('a', 'b', '😀')
const word = (maxLength: number) => fc.array(letters, { maxLength }).map((parts) => parts.join(''))

describe('stop scanner', () => {
  test('gives what a search of the whole text gives', () => {
    fc.assert(
      fc.property(fc.array(word(6), { maxLength: 12 }), fc.array(word(5), { maxLength: 4 }), (pieces, stops) => {
        expect(scan(pieces, stops)).toEqual(search(pieces.join(''), stops))
      }),
      { numRuns: 3000 },
    )
  })

  test('holds back only what can still become a stop string', () => {
    fc.assert(
      fc.property(
        fc.array(word(6), { maxLength: 12 }),
        fc.array(word(5), { minLength: 1, maxLength: 4 }),
        (pieces, stops) => {
          const scanner = createStopScanner(stops)
          let seen = ''
          let visible = ''
          for (const piece of pieces) {
            const step = scanner.push(piece)
            if (step.stopped !== undefined) return
            seen += piece
            visible += step.visible
            const held = seen.slice(visible.length)
            expect(seen.startsWith(visible)).toBe(true)
            if (held !== '') expect(stops.some((stop) => stop.startsWith(held) && stop !== held)).toBe(true)
          }
        },
      ),
      { numRuns: 1000 },
    )
  })

  test('finds a string across pieces, and lets a false start go', () => {
    expect(scan(['Hi.\nUs', 'er', ': yes'], ['\nUser:'])).toEqual({ visible: 'Hi.', stopped: '\nUser:' })
    expect(scan(['Hi.\nUs', 'ing'], ['\nUser:'])).toEqual({ visible: 'Hi.\nUsing' })
    expect(scan(['aaa', 'ab'], ['aab'])).toEqual({ visible: 'aa', stopped: 'aab' })
  })

  test('without stop strings everything passes at once', () => {
    expect(createStopScanner([]).push('abc')).toEqual({ visible: 'abc' })
    expect(createStopScanner(['']).push('abc')).toEqual({ visible: 'abc' })
  })
})
