// The page: asks the feed again and again, puts its changes together, and has the parts drawn that can be seen, each in a
// task of its own. Invariant: a server that is silent or refuses is said so, with what to do, and what was there stays.

import { recolourCharts, tiersView, timeView } from './charts.js'
import { el, empty, fill, say } from './dom.js'
import { duration, time } from './format.js'
import { treeView } from './icicle.js'
import { alarmsView, backendsView, figuresView, quickView } from './panels.js'
import { ask, key, Refusal } from './server.js'
import { sessionsView } from './sessions.js'
import { forget, keyOf, merge, store } from './store.js'
import { turnsView } from './turns.js'

const POLL_MS = 1000
/** A page that nobody sees asks seldom, but often enough that counting goes on. */
const HIDDEN_MS = 10_000
const TREE_MS = 3000
const RETRY_MS = [1000, 2000, 4000, 8000, 15_000]

// --- parts -----------------------------------------------------------------------------------------------------------

const figures = figuresView()
const over = timeView(() => drawSoon([over, tiers]))
const tree = treeView(openByName)
const sessions = sessionsView(select)
const turns = turnsView(() => select(undefined))
const tiers = tiersView()
const backends = backendsView()
const quick = quickView()
const alarms = alarmsView(openByName)
/** In the order of the page. */
const views = [figures, over, tree, sessions, turns, tiers, backends, quick, alarms]

/** @type {[id: string, name: string][]} */
const SECTIONS = [
  ['time', 'Time'],
  ['tree', 'Tree'],
  ['sessions', 'Sessions'],
  ['tiers', 'Tiers'],
  ['backends', 'Backends'],
  ['quick', 'Quick'],
  ['alarms', 'Alarms'],
]

// --- drawing ---------------------------------------------------------------------------------------------------------

/** @type {Set<View>} */
const due = new Set()
let isDrawing = false
/** @type {Set<Element>} */
const inSight = new Set()

/** Parts out of sight are drawn when they come into it. @param {Iterable<View>} changed */
function drawSoon(changed) {
  for (const view of changed) due.add(view)
  if (!isDrawing) void draw()
}

/** One part a task, so that scrolling and typing come in between. */
async function draw() {
  isDrawing = true
  for (const view of due) {
    if (!inSight.has(view.element)) continue
    due.delete(view)
    await nextTask()
    view.update()
  }
  isDrawing = false
}

const channel = new MessageChannel()
/** @type {(() => void)[]} */
const resumed = []
channel.port1.onmessage = () => resumed.shift()?.()
function nextTask() {
  return new Promise((/** @type {(value?: undefined) => void} */ resolve) => {
    resumed.push(resolve)
    channel.port2.postMessage(undefined)
  })
}

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) inSight.add(target)
      else inSight.delete(target)
    }
    drawSoon([])
  },
  { rootMargin: '200px' },
)

// --- frame -----------------------------------------------------------------------------------------------------------

const dot = el('span', { class: 'dot', 'aria-hidden': 'true' })
const status = el('span', { class: 'status', role: 'status' })
const model = el('span', { class: 'model' })
const alarmCount = el('span', { class: 'badge', hidden: true })
const signOut = el('button', { type: 'button', text: 'Sign out', hidden: true, on: { click: () => enter('') } })
const colours = el('button', { type: 'button', on: { click: toggleTheme } })
const help = el(
  'dialog',
  { 'aria-labelledby': 'help-title' },
  el('h2', { id: 'help-title', text: 'Keys' }),
  el(
    'dl',
    {},
    ...[
      ['1 to 7', 'to a part of the page'],
      ['/', 'filter sessions'],
      ['arrow keys', 'walk the list of sessions, turns and the tree'],
      ['Enter', 'open a turn, go into a node of the tree'],
      ['Escape', 'back'],
      ['t', 'dark or light'],
      ['?', 'this'],
    ].flatMap(([keys, what]) => [el('dt', {}, el('kbd', { text: keys ?? '' })), el('dd', { text: what ?? '' })]),
  ),
  el('form', { method: 'dialog' }, el('button', { text: 'Close' })),
)
const links = el(
  'nav',
  { 'aria-label': 'Parts' },
  ...SECTIONS.map(([id, name], i) =>
    el('a', { href: `#${id}`, title: `Key ${i + 1}` }, name, id === 'alarms' && alarmCount),
  ),
)
const notice = el('div', { class: 'notice', role: 'alert', hidden: true })
const frame = el('div', { class: 'parts', hidden: true }, ...views.map(({ element }) => element))

function build() {
  const helpButton = el('button', {
    type: 'button',
    text: '?',
    title: 'Keys',
    'aria-label': 'Keys',
    on: { click: () => help.showModal() },
  })
  fill(
    /** @type {HTMLElement} */ (document.getElementById('top')),
    el('div', { class: 'brand' }, el('strong', { text: 'Refrain' }), model),
    links,
    el('div', { class: 'state' }, dot, status, colours, helpButton, signOut),
  )
  fill(/** @type {HTMLElement} */ (document.getElementById('main')), notice, frame, help)
  for (const { element } of views) watcher.observe(element)
  nameTheme()
}

function toggleTheme() {
  refrainTheme.toggle()
  recolour()
}

function recolour() {
  nameTheme()
  recolourCharts()
  for (const view of views) view.recolour?.()
}

function nameTheme() {
  say(colours, refrainTheme.isDark() ? 'Light' : 'Dark')
  colours.setAttribute('aria-label', refrainTheme.isDark() ? 'Light colours' : 'Dark colours')
}

// --- sessions --------------------------------------------------------------------------------------------------------

/** @param {string | undefined} wanted a session's key */
function select(wanted) {
  const before = store.selected
  store.selected = wanted
  document.body.classList.toggle('reading', wanted !== undefined)
  drawSoon([sessions, turns])
  if (wanted === undefined) {
    if (before !== undefined) sessions.show(before)
    return
  }
  void turns.load().then(() => drawSoon([turns]))
  // On a narrow page the turns stand in the list's place.
  if (matchMedia('(max-width: 760px)').matches) turns.element.scrollIntoView({ block: 'start' })
}

/** @param {string} session @param {string} [tenant] */
function openByName(session, tenant) {
  const found = [...store.sessions.values()].find(
    (each) => each.session === session && (tenant === undefined || each.tenant === tenant),
  )
  if (found === undefined) return
  select(keyOf(found))
  sessions.show(keyOf(found))
  turns.element.scrollIntoView({ block: 'nearest' })
}

// --- asking ----------------------------------------------------------------------------------------------------------

/** @type {string | undefined} */
let cursor
let failures = 0
let treeAt = Number.NEGATIVE_INFINITY
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer
/** Answers to what was asked before it was raised are too late. */
let round = 0

/** @param {number} afterMs */
function pollIn(afterMs) {
  clearTimeout(timer)
  timer = setTimeout(() => void poll(), afterMs)
}

async function poll() {
  const own = ++round
  /** @type {Feed} */
  let feed
  try {
    feed = await ask(`v1/dashboard/feed${cursor === undefined ? '' : `?since=${encodeURIComponent(cursor)}`}`)
  } catch (failure) {
    if (!(failure instanceof Refusal)) throw failure
    if (own === round) refused(failure)
    return
  }
  if (own !== round) return
  const changed = merge(feed)
  cursor = feed.cursor
  answered(feed)
  drawSoon(views.filter((view) => view !== tree && view !== turns))
  if (store.selected !== undefined && (changed.has(store.selected) || isRunning())) await turns.load()
  drawSoon([turns])
  const now = performance.now()
  if (now - treeAt >= TREE_MS && (treeAt < 0 || inSight.has(tree.element))) {
    treeAt = now
    void tree.load().then(() => drawSoon([tree]))
  }
  if (own === round) pollIn(document.hidden ? HIDDEN_MS : POLL_MS)
}

/** A turn that goes on changes without its session's counts doing so. */
function isRunning() {
  return store.opened?.turns.some((turn) => turn.status === 'running') === true
}

/** @param {Feed} feed */
function answered(feed) {
  failures = 0
  document.body.classList.toggle('fleet', feed.server.kind === 'fleet')
  const isFirst = frame.hidden
  frame.hidden = false
  notice.hidden = true
  document.body.classList.remove('stale')
  dot.className = 'dot good'
  say(status, `live${feed.viewer.admin ? '' : ` · ${feed.viewer.tenant}`}`)
  say(model, `${feed.server.kind === 'fleet' ? 'fleet · ' : ''}${feed.server.models.slice(0, 3).join(', ')}`)
  signOut.hidden = key.get() === ''
  alarmCount.hidden = feed.alarms.length === 0
  say(alarmCount, String(feed.alarms.length))
  document.title = feed.alarms.length === 0 ? 'Refrain' : `(${feed.alarms.length}) Refrain`
  if (!isFirst) return
  performance.mark('refrain-first-feed')
  // What is in sight is told in a while; the first picture does not wait for it.
  for (const { element } of views) inSight.add(element)
}

/** @param {Refusal} failure */
function refused(failure) {
  dot.className = 'dot bad'
  const { status: code, message } = failure
  if (code === 401 || code === 403) {
    say(status, 'not signed in')
    cursor = undefined
    forget()
    frame.hidden = true
    askForKey(message, code)
    return
  }
  const waitMs = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)] ?? POLL_MS
  say(status, 'not answering')
  document.body.classList.add('stale')
  notice.hidden = false
  const last = store.feed === undefined ? '' : ` What you see is of ${time(store.feed.at)}.`
  const todo = code === 0 ? 'Is it still running? Look at its log.' : 'If this stays, look at its log.'
  fill(
    notice,
    el('p', {}, el('strong', { text: message }), `${last} ${todo} It is asked again in ${duration(waitMs)}.`),
    el('button', { type: 'button', text: 'Ask now', on: { click: () => pollIn(0) } }),
  )
  pollIn(waitMs)
}

/** @param {string} message @param {number} code */
function askForKey(message, code) {
  notice.hidden = false
  if (code === 403) {
    fill(notice, empty('This server does not let this page in.', message))
    return
  }
  const input = el('input', {
    type: 'password',
    id: 'key',
    autocomplete: 'current-password',
    required: true,
    spellcheck: 'false',
  })
  const wasWrong = key.get() !== ''
  const form = el(
    'form',
    {
      class: 'key',
      on: {
        submit: (event) => {
          event.preventDefault()
          enter(input.value.trim())
        },
      },
    },
    el('h2', { text: 'A key, please' }),
    el('label', { for: 'key', text: 'This server asks for an API key: one of tenants[].key in its config.' }),
    // Keepers of passwords look for a name.
    el('input', { type: 'text', autocomplete: 'username', value: 'refrain', hidden: true, 'aria-hidden': 'true' }),
    el('div', { class: 'key-line' }, input, el('button', { type: 'submit', text: 'Open' })),
    wasWrong && el('p', { class: 'bad', text: `${message}.` }),
    el('p', {
      class: 'hint',
      text: 'It stays in this tab until that is closed. A tenant sees its own; the key of an admin shows all.',
    }),
  )
  fill(notice, form)
  input.focus()
}

/** @param {string} value '' signs out */
function enter(value) {
  key.set(value)
  cursor = undefined
  forget()
  treeAt = Number.NEGATIVE_INFINITY
  select(undefined)
  pollIn(0)
}

// --- keys ------------------------------------------------------------------------------------------------------------

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return
  const target = /** @type {HTMLElement} */ (event.target)
  if (target.matches('input, select, textarea')) {
    if (event.key === 'Escape') target.blur()
    return
  }
  const section = SECTIONS[Number(event.key) - 1]
  if (section !== undefined) {
    const element = document.getElementById(section[0])
    element?.scrollIntoView({ block: 'start' })
    const inner = /** @type {HTMLElement | null} */ (element?.querySelector('[tabindex="0"]') ?? null)
    ;(inner ?? element)?.focus({ preventScroll: true })
  } else if (event.key === '/') sessions.filter.focus()
  else if (event.key === 't') toggleTheme()
  else if (event.key === '?') help.showModal()
  else if (event.key === 'Enter' && target.closest('.list') !== null && store.selected !== undefined) turns.focus()
  else if (event.key === 'Escape' && store.selected !== undefined && target.closest('.icicle') === null) {
    select(undefined)
    sessions.list.focus()
  } else return
  event.preventDefault()
})

document.addEventListener('visibilitychange', () => {
  if (!document.hidden) pollIn(0)
})
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', recolour)

/** A fault of the page's own: what is shown may be wrong from now on. @param {unknown} fault */
function failed(fault) {
  clearTimeout(timer)
  document.body.classList.add('stale')
  dot.className = 'dot bad'
  say(status, 'stopped')
  notice.hidden = false
  const todo = ' Load it again; if this comes back, the console of the browser says where it is.'
  fill(
    notice,
    el('p', {}, el('strong', { text: `This page has a fault: ${String(fault)}.` }), todo),
    el('button', { type: 'button', text: 'Load again', on: { click: () => location.reload() } }),
  )
}
addEventListener('error', ({ message }) => {
  // Browsers say so when a size that is watched changes once more in the same frame; the next frame has it.
  if (!message.startsWith('ResizeObserver loop')) failed(message)
})
addEventListener('unhandledrejection', (event) => failed(event.reason))

build()
void poll()
