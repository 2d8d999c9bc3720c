// The page in a browser without a network: it draws in both themes and at both widths, and shows what a hostile name says
// as text. Screenshots are left in build/screenshots/.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Browser, chromiumPath, openBrowser, SCREENSHOTS } from '../testing/browser.js'
import { USUAL_PRICES } from './prices.js'
import { type Report, runReport, type Sample } from './report.js'
import { pageOf } from './write-report.js'

const samples = (hit: number): Sample[] =>
  Array.from({ length: 60 }, (_, i) => ({
    ...{ at: 3 * i, turn: 1 + (i % 12), promptTokens: 5000 + 300 * (i % 12), outputTokens: 80, ttftMs: 40 + 7 * i },
    ...{ reusedTokens: i % 12 === 0 ? 0 : hit * 5000, idealTokens: i % 12 === 0 ? 0 : 4900 },
  }))
const run = (name: string, list: readonly Sample[], failures: readonly string[] = []) =>
  runReport({ name, detail: name, samples: list, failures, prices: USUAL_PRICES })
const HOSTILE = '<img src=x onerror="document.title=1">'

const replay: Report = {
  ...{ kind: 'replay', title: 'Replay of a test', subtitle: 'two servers', notes: ['One note.', HOSTILE] },
  ...{ prices: USUAL_PRICES, runs: [run('one', samples(0.9)), run(HOSTILE, samples(0.4), ['status 500: no', 'no'])] },
}
const simulation: Report = {
  ...{ kind: 'simulation', title: 'Simulation of a test', subtitle: 'two lines', notes: [], prices: USUAL_PRICES },
  runs: ['a', 'b', 'c'].map((name) =>
    run(
      name,
      samples(0.5).map((each) => ({ ...each, ttftMs: undefined })),
    ),
  ),
  capacity: {
    ...{ unit: 'bytes', ideal: 0.9 },
    lines: ['lru', 'fifo'].map((name, i) => ({
      name,
      points: [1e9, 4e9, 16e9].map((capacity, at) => ({ capacity, hitRate: 0.2 + 0.2 * at + 0.05 * i })),
    })),
  },
}
const empty: Report = { ...replay, runs: [run('silent', [], ['connect ECONNREFUSED'])], notes: [] }

describe.skipIf(chromiumPath === undefined)('a report (needs chromium)', () => {
  let browser: Browser
  let folder: string
  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'refrain-report-'))
    browser = await openBrowser()
  }, 60_000)
  afterAll(async () => {
    await browser?.close()
    rmSync(folder, { recursive: true })
  })

  /** What the page complained of, and what it asked of others. */
  async function shown(report: Report, width: number, scheme: 'light' | 'dark', check: (page: Page) => Promise<void>) {
    const path = join(folder, 'report.html')
    writeFileSync(path, pageOf(report))
    const page = await browser.context.newPage()
    const complaints: string[] = []
    page.on('pageerror', (error) => complaints.push(String(error)))
    page.on('console', (message) => {
      if (message.type() === 'error' || message.type() === 'warning') complaints.push(message.text())
    })
    page.on('request', (request) => {
      if (request.url() !== `file://${path}`) complaints.push(`asks for ${request.url()}`)
    })
    await page.emulateMedia({ colorScheme: scheme })
    await page.setViewportSize({ width, height: 900 })
    await page.goto(`file://${path}`)
    await page.locator('#notes-section').waitFor()
    expect(complaints).toEqual([])
    const over = await page.evaluate('document.documentElement.scrollWidth - innerWidth')
    expect(over).toBeLessThanOrEqual(0)
    await page.screenshot({ path: join(SCREENSHOTS, `report-${report.kind}-${width}-${scheme}.png`), fullPage: true })
    await check(page)
    await page.close()
  }

  test('of a replay: pictures, failures, a theme to switch, names as text', async () => {
    await shown(replay, 1280, 'dark', async (page) => {
      expect(await page.locator('canvas').count()).toBe(4)
      expect(await page.locator('#errors tbody tr').count()).toBe(2)
      expect(await page.locator('html').getAttribute('data-theme')).toBe('dark')
      await page.locator('#theme').click()
      expect(await page.locator('html').getAttribute('data-theme')).toBe('light')
      await page.locator('#run').selectOption('1')
      expect(await page.locator('canvas').count()).toBe(4)
      expect(await page.locator('#notes li').nth(1).textContent()).toBe(HOSTILE)
      expect(await page.locator('img').count()).toBe(0)
      expect(await page.title()).toBe('Replay of a test')
    })
  }, 60_000)

  test('of a simulation, on a phone: hit rate against capacity, no times', async () => {
    await shown(simulation, 390, 'light', async (page) => {
      expect(await page.locator('#capacity canvas').isVisible()).toBe(true)
      expect(await page.locator('#ttft-section').isVisible()).toBe(false)
      expect(await page.locator('canvas').count()).toBe(4)
    })
  }, 60_000)

  test('of nothing that was answered says so', async () => {
    await shown(empty, 1280, 'light', async (page) => {
      expect(await page.locator('#timeline').textContent()).toContain('no request was answered')
      expect(await page.locator('#errors').textContent()).toContain('ECONNREFUSED')
      expect(await page.locator('#tiles').textContent()).toContain('Failed requests')
    })
  }, 60_000)
})
