// How soon does the page show 500 live sessions, and how long does its main thread ever hold while they scroll?
//
// Method: the built server with the scripted backend and SESSIONS conversations of 8 turns; 50 further turns a second while
// the page is looked at in headless Chromium at 1280 x 900. Loads: a fresh tab each, from navigation to the first contentful
// paint and to the first row of the list. Scrolling: the wheel runs over the list and over the page for 10 s while the feed
// goes on; tasks of the renderer's main thread come from the browser's own trace, in wall time and in CPU time of that thread
// (a machine that does other work too adds to the first alone). Baseline in the same run: a list that puts all rows into the
// document anew with each feed. Goals: first paint <= 1 s, longest task <= 50 ms. Ceiling: one frame, 16.7 ms.
// Run: npm run bench -- dashboard [sessions]

import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import type { CDPSession, Page } from 'playwright-core'
import { chromiumPath, openBrowser } from '../src/testing/browser.js'

const SESSIONS = Number(process.argv[2] ?? 500)
const TURNS = 8
const LIVE_PER_SECOND = 50
const SCROLL_MS = 10_000
const LOADS = 5

const words = (i: number, count: number) =>
  Array.from({ length: count }, (_, k) => `${(i * 7919 + k * k * 31) % 9973}`).join(' ')
const say = (text: string) => process.stderr.write(`${text}\n`)
const median = (values: readonly number[]) => [...values].sort((a, b) => a - b)[values.length >> 1] as number
const round = (value: number) => Math.round(value * 10) / 10

async function serve(folder: string): Promise<{ child: ChildProcess; url: string }> {
  const config = join(folder, 'config.yaml')
  writeFileSync(
    config,
    'backend: { kind: scripted, options: { answer: All is well. } }\nlimits: { queuedRequests: 4096 }\n',
  )
  const args = [resolve('dist/main.js'), 'serve', '--port', '0', '--config', config, '--data-dir', join(folder, 'data')]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] })
  const url = await new Promise<string>((done, fail) => {
    let log = ''
    const read = (chunk: Buffer) => {
      if (log.length > 100_000) return
      log += chunk
      const found = /"url":"(http:[^"]+)"/.exec(log)?.[1]
      if (found !== undefined) done(found)
    }
    child.stdout?.on('data', read)
    child.stderr?.on('data', read)
    child.once('exit', () => fail(new Error(`the server ended: ${log.slice(-1000)}`)))
  })
  return { child, url }
}

/** The conversations; each call adds a turn. */
function talker(url: string): (i: number) => Promise<void> {
  const said = new Map<number, { role: string; content: string }[]>()
  return async (i) => {
    const messages = said.get(i) ?? [{ role: 'system', content: `You are agent ${i % 9}. ${words(i % 9, 300)}` }]
    said.set(i, messages)
    messages.push({ role: 'user', content: words(i + messages.length * 1000, 40) })
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-refrain-session': `session-${i}` },
      body: JSON.stringify({ messages }),
    })
    const body = (await response.json()) as { choices: { message: { content: string } }[] }
    messages.push({ role: 'assistant', content: body.choices[0]?.message.content ?? '' })
  }
}

async function seed(goOn: (i: number) => Promise<void>): Promise<void> {
  for (let turn = 0; turn < TURNS; turn++) {
    for (let i = 0; i < SESSIONS; i += 10) {
      await Promise.all(Array.from({ length: Math.min(10, SESSIONS - i) }, (_, k) => goOn(i + k)))
    }
  }
}

interface Load {
  readonly paintMs: number
  readonly rowMs: number
}

async function load(page: Page, url: string): Promise<Load> {
  await page.goto(`${url}/dashboard`)
  await page.waitForSelector('.row')
  return page.evaluate<Load>(`({
    paintMs: performance.getEntriesByName('first-contentful-paint')[0].startTime,
    rowMs: performance.getEntriesByName('refrain-first-row')[0].startTime,
  })`)
}

interface TraceEvent {
  readonly name: string
  readonly ph: string
  readonly pid: number
  readonly tid: number
  readonly dur?: number
  readonly tdur?: number
  readonly args?: { readonly name?: string }
}

/** Longest tasks of the busiest renderer's main thread while `run` goes on, in milliseconds. */
async function longestTask(cdp: CDPSession, run: () => Promise<void>) {
  const events: TraceEvent[] = []
  const collect = ({ value }: { value: object[] }) => {
    for (const event of value) events.push(event as TraceEvent)
  }
  cdp.on('Tracing.dataCollected', collect)
  const categories = 'toplevel,__metadata'
  await cdp.send('Tracing.start', {
    transferMode: 'ReportEvents',
    traceConfig: { includedCategories: categories.split(',') },
  })
  await run()
  const complete = new Promise((done) => cdp.once('Tracing.tracingComplete', done))
  await cdp.send('Tracing.end')
  await complete
  cdp.off('Tracing.dataCollected', collect)
  const mains = new Set(
    events.filter(({ name, args }) => name === 'thread_name' && args?.name === 'CrRendererMain').map(threadOf),
  )
  const byThread = new Map<string, TraceEvent[]>()
  for (const event of events) {
    if (event.ph !== 'X' || !/RunTask$/.test(event.name) || !mains.has(threadOf(event))) continue
    byThread.set(threadOf(event), [...(byThread.get(threadOf(event)) ?? []), event])
  }
  const tasks = [...byThread.values()].sort((a, b) => b.length - a.length)[0] ?? []
  const wall = tasks.map(({ dur = 0 }) => dur / 1000).sort((a, b) => b - a)
  const cpu = tasks.map(({ tdur = 0 }) => tdur / 1000).sort((a, b) => b - a)
  return {
    tasks: tasks.length,
    wallMs: round(wall[0] ?? 0),
    cpuMs: round(cpu[0] ?? 0),
    over50: wall.filter((ms) => ms > 50).length,
  }
}

const threadOf = ({ pid, tid }: TraceEvent) => `${pid}.${tid}`

/** The wheel over what is under the pointer, down and up again. */
async function wheel(page: Page, ms: number): Promise<void> {
  const until = performance.now() + ms
  for (let i = 0; performance.now() < until; i++) {
    await page.mouse.wheel(0, i % 80 < 50 ? 240 : -400)
    await page.waitForTimeout(16)
  }
}

/** All rows anew with each feed, in a list that scrolls. */
const NAIVE = `(() => {
  const list = document.querySelector('.list')
  const row = document.querySelector('.row:not([hidden])')
  list.style.contain = 'none'
  const rows = document.querySelector('.rows')
  const build = () => rows.replaceChildren(...Array.from({ length: ${SESSIONS} }, (_, i) => {
    const copy = row.cloneNode(true)
    copy.style.position = 'static'
    copy.style.contain = 'none'
    copy.style.transform = ''
    copy.querySelector('.name').textContent = 'session ' + i + ' ' + Date.now()
    return copy
  }))
  build()
  setInterval(build, 1000)
})()`

if (chromiumPath === undefined) throw new Error('there is no chromium on the PATH: apt-get install chromium')
const folder = mkdtempSync(join(tmpdir(), 'refrain-bench-dashboard-'))
const { child, url } = await serve(folder)
const goOn = talker(url)
say(`${SESSIONS} sessions of ${TURNS} turns`)
await seed(goOn)
let next = 0
let open = 0
const live = setInterval(() => {
  for (let k = 0; k < LIVE_PER_SECOND / 10 && open < 100; k++) {
    open++
    void goOn(next++ % SESSIONS).finally(() => open--)
  }
}, 100)
const browser = await openBrowser()
const loads: Load[] = []
for (let i = 0; i <= LOADS; i++) {
  const page = await browser.context.newPage()
  const each = await load(page, url)
  // The first one starts the browser's own machinery.
  if (i > 0) loads.push(each)
  await page.close()
}
const page = await browser.context.newPage()
await load(page, url)
await page.waitForTimeout(3000)
const cdp = await page.context().newCDPSession(page)
await page.hover('.list')
const overList = await longestTask(cdp, () => wheel(page, SCROLL_MS))
await page.evaluate('scrollTo(0, 0)')
await page.mouse.move(640, 100)
const overPage = await longestTask(cdp, () => wheel(page, SCROLL_MS))
await page.evaluate(NAIVE)
await page.hover('.list')
const naive = await longestTask(cdp, () => wheel(page, SCROLL_MS))
clearInterval(live)
await browser.close()
child.kill('SIGTERM')
await new Promise((done) => child.once('exit', done))
rmSync(folder, { recursive: true, force: true })

const result = {
  bench: 'dashboard',
  sessions: SESSIONS,
  liveTurns: next,
  firstPaintMs: {
    median: round(median(loads.map(({ paintMs }) => paintMs))),
    worst: round(Math.max(...loads.map(({ paintMs }) => paintMs))),
  },
  firstRowMs: {
    median: round(median(loads.map(({ rowMs }) => rowMs))),
    worst: round(Math.max(...loads.map(({ rowMs }) => rowMs))),
  },
  longestTaskScrollingList: overList,
  longestTaskScrollingPage: overPage,
  longestTaskBaseline: naive,
}
say(
  `first paint ${result.firstPaintMs.median} ms, first row ${result.firstRowMs.median} ms; longest task ${overList.wallMs} ms over the list, ${overPage.wallMs} ms over the page, ${naive.wallMs} ms with all rows in the document`,
)
process.stdout.write(`${JSON.stringify(result)}\n`)
