// The page in a browser: what people do with it, at a desk and on a telephone, with the pointer and with the keyboard; what
// it says where there is nothing, where a key is missing and where the server is gone. Leaves pictures in build/screenshots.

import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { type Browser, chromiumPath, openBrowser, SCREENSHOTS } from '../testing/browser.js'
import { type DashboardHouse, dashboardHouse } from '../testing/dashboard-house.js'
import { fleetHouse } from '../testing/fleet-house.js'
import { post } from '../testing/scripted-program.js'

const DESK = { width: 1280, height: 900 }
const TELEPHONE = { width: 390, height: 844 }

describe.skipIf(chromiumPath === undefined)('the page (needs chromium on the PATH)', () => {
  let browser: Browser
  const pages: Page[] = []
  /** What the pages complained of: errors, refused policies, addresses elsewhere. */
  const complaints: string[] = []

  beforeAll(async () => {
    browser = await openBrowser()
  })
  afterAll(async () => {
    await browser?.close()
  })
  afterEach(async () => {
    for (const page of pages.splice(0)) {
      // Colours that were chosen outlive a page.
      await page.evaluate('localStorage.clear()')
      await page.close()
    }
  })

  async function open(url: string, size = DESK): Promise<Page> {
    complaints.length = 0
    const page = await browser.context.newPage()
    pages.push(page)
    await page.setViewportSize(size)
    page.on('pageerror', (error) => complaints.push(String(error.stack)))
    page.on('console', (message) => {
      // The browser says so of each refusal; the page shows it.
      const isRefusal = /Failed to load resource/.test(message.text())
      if (message.type() === 'error' && !isRefusal) complaints.push(message.text())
    })
    page.on('request', (request) => {
      if (!request.url().startsWith(url)) complaints.push(`asks ${request.url()}`)
    })
    await page.goto(`${url}/dashboard`)
    return page
  }

  /** The whole page as a picture. */
  async function picture(page: Page, name: string): Promise<void> {
    await page.evaluate('scrollTo(0, 0)')
    await page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), fullPage: true })
  }
  /** Waits for what an expression says; the page's policy does not let it wait by itself. */
  async function until(page: Page, expression: string): Promise<void> {
    for (let i = 0; i < 300; i++) {
      if (await page.evaluate<boolean>(expression)) return
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    throw new Error(`it did not come about: ${expression}`)
  }
  /** Nothing is wider than the window. */
  const widthOf = (page: Page) => page.evaluate<number>('document.documentElement.scrollWidth')

  describe('with conversations', () => {
    let house: DashboardHouse
    beforeAll(async () => {
      house = await dashboardHouse()
      await house.talk({ sessions: 40, turns: 4 })
    })
    afterAll(() => house.close())

    test('shows figures, charts, the tree, sessions and their turns, and goes on by itself', async () => {
      const page = await open(house.url)
      await page.waitForSelector('.row')
      await page.waitForSelector('.uplot canvas')
      await until(page, "document.querySelector('.figure strong').textContent.endsWith('%')")
      const requests = () => page.textContent('.figures .figure:nth-child(5) strong')
      expect(await requests()).toBe('160')
      expect(await page.textContent('.tools .hint')).toBe('40')
      await house.goOn(0)
      await until(page, "document.querySelector('.figures .figure:nth-child(5) strong').textContent === '161'")
      // The one that spoke last stands on top.
      await until(page, "document.querySelector('#session-0 .name').textContent === 'fix-login-0'")
      await page.waitForSelector('.icicle')
      expect(await page.getAttribute('.icicle', 'aria-label')).toMatch(/^Prefix tree of [\d,]+ cached tokens$/)
      expect(await widthOf(page)).toBeLessThanOrEqual(DESK.width)
      expect(complaints).toEqual([])
    })

    test('a session opens, its turns have reasons, and a turn shows where its prompt parts', async () => {
      const page = await open(house.url)
      // Session 3 has a clock in its head.
      await page.fill('.tools input', 'refactor-cache-3')
      await page.click('.row:has-text("refactor-cache-3")')
      await page.waitForSelector('.turn')
      expect(await page.locator('.turn').count()).toBe(4)
      expect(await page.textContent('.session-head .repeats')).toMatch(
        /the system prompt contains a clock or a counter/,
      )
      expect(await page.textContent('.turn >> nth=0')).toMatch(/system changed/)
      await page.click('.turn >> nth=0')
      await page.waitForSelector('.details .diff')
      expect(await page.textContent('.details .diff del')).not.toBe(await page.textContent('.details .diff ins'))
      expect(await page.textContent('.details dl')).toMatch(/parts at\s*token \d+/)
      await picture(page, 'turn-1280-light')
      await page.keyboard.press('t')
      await until(page, "document.documentElement.dataset.theme === 'dark'")
      await page.reload()
      await until(page, "document.documentElement.dataset.theme === 'dark'")
      expect(complaints).toEqual([])
    })

    test('the keyboard reaches everything', async () => {
      const page = await open(house.url)
      await page.waitForSelector('.row')
      await page.keyboard.press('3')
      expect(await page.evaluate('document.activeElement.className')).toBe('list')
      await page.keyboard.press('ArrowDown')
      await page.keyboard.press('End')
      await until(page, `document.querySelector('[aria-selected="true"]')?.getAttribute('aria-posinset') === '40'`)
      await page.waitForSelector('.turn')
      await page.keyboard.press('Enter')
      expect(await page.evaluate('document.activeElement.className')).toBe('turn')
      await page.keyboard.press('Enter')
      await page.waitForSelector('.details:not([hidden]) .explained')
      await page.keyboard.press('ArrowDown')
      await page.keyboard.press('Escape')
      expect(await page.evaluate('document.activeElement.className')).toBe('list')
      await page.keyboard.press('2')
      expect(await page.evaluate('document.activeElement.className')).toBe('icicle')
      await page.keyboard.press('ArrowRight')
      await page.keyboard.press('Enter')
      await page.waitForSelector('.crumbs button:nth-child(2)')
      expect(await page.textContent('.node')).toMatch(/Tokens [\d,]+ to [\d,]+: .* in memory/)
      await page.keyboard.press('Escape')
      await page.keyboard.press('/')
      await page.keyboard.type('triage')
      await until(page, "document.querySelector('.tools .hint').textContent === '5 of 40'")
      await page.keyboard.press('Escape')
      await page.keyboard.press('?')
      await page.waitForSelector('dialog[open]')
      expect(complaints).toEqual([])
    })

    test.each([
      ['1280-light', DESK, 'light'],
      ['1280-dark', DESK, 'dark'],
      ['390-light', TELEPHONE, 'light'],
      ['390-dark', TELEPHONE, 'dark'],
    ] as const)('is readable: %s', async (name, size, colours) => {
      const page = await open(house.url, size)
      await page.emulateMedia({ colorScheme: colours })
      await until(page, `document.documentElement.dataset.theme === '${colours}'`)
      await page.waitForSelector('.row')
      await page.waitForSelector('.uplot canvas')
      if (size === DESK) {
        await page.click('.row >> nth=2')
        await page.waitForSelector('.turn')
      }
      // What is out of sight is not drawn.
      await page.evaluate("document.getElementById('tree').scrollIntoView()")
      await until(page, "document.querySelector('.node').textContent !== ''")
      await page.evaluate('scrollTo(0, document.body.scrollHeight)')
      await page.waitForSelector('#tiers .uplot canvas')
      await picture(page, name)
      expect(await widthOf(page)).toBeLessThanOrEqual(size.width)
      if (size === TELEPHONE) {
        await page.click('.row >> nth=2')
        await page.waitForSelector('.turn')
        expect(await page.isVisible('.list')).toBe(false)
        await page.click('.turn >> nth=0')
        await page.waitForSelector('.explained')
        await picture(page, `turns-${name}`)
        expect(await widthOf(page)).toBeLessThanOrEqual(size.width)
        await page.click('.back')
        expect(await page.isVisible('.list')).toBe(true)
      }
      expect(complaints).toEqual([])
    })
  })

  test('says where there is nothing yet, and what to do', async () => {
    const house = await dashboardHouse()
    const page = await open(house.url)
    await page.waitForSelector('#time .empty')
    expect(await page.textContent('#time .empty')).toContain(`curl ${house.url}/v1/chat/completions`)
    await page.waitForSelector('#tree .empty')
    await page.waitForSelector('#sessions .empty')
    await picture(page, 'empty-1280-light')
    await page.setViewportSize(TELEPHONE)
    await page.emulateMedia({ colorScheme: 'dark' })
    await until(page, "document.documentElement.dataset.theme === 'dark'")
    await picture(page, 'empty-390-dark')
    expect(await widthOf(page)).toBeLessThanOrEqual(TELEPHONE.width)
    await house.goOn(0)
    await page.evaluate("document.getElementById('sessions').scrollIntoView()")
    await page.waitForSelector('.row')
    expect(complaints).toEqual([])
    await house.close()
  })

  test('asks for a key, says when it is wrong, keeps it in the tab alone, and shows a tenant its own', async () => {
    const tenants = [
      { name: 'anna', key: 'key-of-anna', admin: false },
      { name: 'ops', key: 'key-of-ops', admin: true },
    ]
    const house = await dashboardHouse({ tenants })
    await house.goOn(0, { authorization: 'Bearer key-of-anna' })
    await house.goOn(1, { authorization: 'Bearer key-of-ops' })
    const page = await open(house.url)
    await page.waitForSelector('#key')
    await picture(page, 'key-1280-light')
    await page.fill('#key', 'wrong')
    await page.keyboard.press('Enter')
    await page.waitForSelector('.key .bad')
    await page.fill('#key', 'key-of-anna')
    await page.keyboard.press('Enter')
    await page.waitForSelector('.row')
    expect(await page.textContent('.rows')).not.toContain('triage-1')
    expect(await page.textContent('#backends .empty')).toContain('admin')
    expect(await page.evaluate('JSON.stringify([localStorage, sessionStorage])')).toBe(
      '[{},{"refrain.key":"key-of-anna"}]',
    )
    expect(page.url()).not.toContain('key')
    await picture(page, 'tenant-1280-light')
    await page.click('button:has-text("Sign out")')
    await page.waitForSelector('#key')
    expect(await page.isVisible('.row')).toBe(false)
    await page.fill('#key', 'key-of-ops')
    await page.keyboard.press('Enter')
    await page.waitForSelector('.row >> nth=1')
    expect(await page.textContent('#backends')).toContain('scripted')
    expect(complaints).toEqual([])
    await house.close()
  })

  test('words of strangers are text, never markup', async () => {
    const house = await dashboardHouse()
    const evil = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    const name = '<b>"\'&x'
    for (const text of [`${evil} one`, `${evil} two`]) {
      const messages = [
        { role: 'system', content: text.repeat(20) },
        { role: 'user', content: 'hello' },
      ]
      await post(house.program, '/v1/chat/completions', { messages }, { 'x-refrain-session': name })
    }
    const page = await open(house.url)
    await page.click('.row')
    await page.waitForSelector('.turn')
    await page.click('.turn >> nth=0')
    await page.waitForSelector('.details .diff')
    expect(await page.textContent('.row .name')).toBe(name)
    expect(await page.textContent('.details .diff')).toContain('<script>')
    expect(await page.locator('#main img, #main script, #main b').count()).toBe(0)
    // One turn lost what the one before had left, which is an alarm.
    expect(await page.title()).toBe('(1) Refrain')
    expect(await page.textContent('.alarm-list')).toMatch(/unscheduled invalidation.*system changed/)
    expect(await page.textContent('.alarm-list button')).toBe(name)
    expect(complaints).toEqual([])
    await house.close()
  })

  test('says that the server is gone, keeps what was there, and goes on when it is back', async () => {
    const house = await dashboardHouse()
    await house.goOn(0)
    const page = await open(house.url)
    await page.waitForSelector('.row')
    await page.context().setOffline(true)
    await page.waitForSelector('.notice:not([hidden])')
    expect(await page.textContent('.notice')).toMatch(/The server does not answer\..*asked again in/)
    expect(await page.isVisible('.row')).toBe(true)
    await picture(page, 'gone-1280-light')
    await page.context().setOffline(false)
    await page.click('.notice button')
    await page.waitForSelector('.notice', { state: 'hidden' })
    await house.close()
  })

  test('an answer that makes no sense stops it, and it says so', async () => {
    const house = await dashboardHouse()
    const page = await open(house.url)
    await page.waitForSelector('.figures')
    await page.route('**/v1/dashboard/feed*', (route) => route.fulfill({ json: { cursor: 'x' } }))
    await page.waitForSelector('.notice:not([hidden])')
    expect(await page.textContent('.notice')).toMatch(/This page has a fault: .*Load it again/)
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await page.click('.notice button')
    await page.waitForSelector('.notice', { state: 'hidden' })
    await house.close()
  })

  test('quick tasks are counted, and an alarm leads to its session', async () => {
    const house = await dashboardHouse()
    await house.goOn(0)
    const page = await open(house.url)
    await page.waitForSelector('.row')
    const tasks = [{ task: 'title' }, { task: 'custom', instruction: 'Which?', choices: ['yes', 'no'] }]
    const asked = await post(house.program, '/v1/quick', { messages: [{ role: 'user', content: 'hello' }], tasks })
    expect(asked.status).toBe(200)
    await page.evaluate("document.getElementById('quick').scrollIntoView()")
    await page.waitForSelector('#quick tbody tr >> nth=1')
    expect(await page.textContent('#quick tbody')).toMatch(/title.*1.*custom.*1/s)
    // Nobody raises alarms here: they are put into the answer on its way.
    await page.route('**/v1/dashboard/feed*', async (route) => {
      const answer = await route.fetch()
      const sentence = '<b>14 of 14 turns</b> missed: a clock stands in the system prompt.'
      const alarm = { at: Date.now(), tenant: 'default', session: 'fix-login-0', kind: 'cache_cold', sentence }
      await route.fulfill({ response: answer, json: { ...(await answer.json()), alarms: [alarm] } })
    })
    await page.waitForSelector('.alarm-list li')
    expect(await page.textContent('.alarm-list li')).toMatch(/cache cold<b>14 of 14 turns<\/b>/)
    expect(await page.textContent('.badge')).toBe('1')
    await picture(page, 'alarm-1280-light')
    await page.click('.alarm-list button')
    await page.waitForSelector('.turn')
    expect(complaints).toEqual([])
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    await house.close()
  })

  test('in front of a fleet: backends with load and overlap', async () => {
    const fleet = await fleetHouse()
    const page = await open(fleet.url)
    await page.waitForSelector('.backend >> nth=1')
    for (let i = 0; i < 6; i++) await (await fleet.chat({}, { 'x-refrain-session': `talk-${i % 2}` })).text()
    await page.waitForSelector('.row >> nth=1')
    await page.click('.row >> nth=0')
    await page.waitForSelector('.turn >> nth=2')
    expect(await page.textContent('#tree .empty')).toContain('A fleet has no cache of its own')
    await page.evaluate('scrollTo(0, document.body.scrollHeight)')
    await picture(page, 'fleet-1280-light')
    expect(complaints).toEqual([])
    await fleet.close()
  })
})
