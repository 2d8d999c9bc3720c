// The list of sessions: as many rows as can be seen, whatever there are. Invariant: rows are made once and filled anew, so
// that scrolling costs no layout but theirs; the order is held while somebody reads further down.

import { card, el, empty, fill, say } from './dom.js'
import { ago, count, percent, plural } from './format.js'
import { keyOf, serverNow, store } from './store.js'

const ROW_PX = 58
/** Beyond what can be seen, above and below. */
const SPARE_ROWS = 4

/** @type {Record<string, (a: Session, b: Session) => number>} */
const ORDERS = {
  latest: (a, b) => b.at - a.at,
  'most missed': (a, b) => b.missed_tokens - a.missed_tokens,
  'lowest hit rate': (a, b) => rateOf(a) - rateOf(b),
  'most turns': (a, b) => b.turns - a.turns,
}

/** @param {Session} session */
const rateOf = ({ reused_tokens, prompt_tokens }) => (prompt_tokens === 0 ? 1 : reused_tokens / prompt_tokens)

/** @param {(key: string) => void} select @returns {View & { filter: HTMLInputElement, list: HTMLElement, show(key: string): void }} */
export function sessionsView(select) {
  const filter = el('input', {
    type: 'search',
    placeholder: 'Filter',
    'aria-label': 'Filter sessions',
    spellcheck: 'false',
  })
  const order = el(
    'select',
    { 'aria-label': 'Order' },
    ...Object.keys(ORDERS).map((name) => el('option', { value: name, text: name })),
  )
  const total = el('span', { class: 'hint' })
  const newer = el('button', { type: 'button', class: 'newer', hidden: true })
  const spacer = el('div', { class: 'rows', role: 'presentation' })
  const list = el('div', { class: 'list', role: 'listbox', tabindex: 0, 'aria-label': 'Sessions' }, spacer)
  const nothing = el('div')
  const aside = el('div', { class: 'tools' }, total, filter, order)
  const element = card({ id: 'sessions', title: 'Sessions', aside }, nothing, newer, list)

  /** @type {Session[]} */
  let shown = []
  /** @type {Row[]} */
  const rows = []
  let heldOrder = false

  const draw = () => {
    const from = Math.max(0, Math.floor(list.scrollTop / ROW_PX) - SPARE_ROWS)
    const needed = Math.min(shown.length - from, Math.ceil(list.clientHeight / ROW_PX) + 2 * SPARE_ROWS)
    while (rows.length < needed) {
      const row = new Row(select)
      rows.push(row)
      spacer.append(row.element)
    }
    const now = serverNow()
    const isAdmin = store.feed?.viewer.admin === true
    // Row i of the list always stands in the same element: what scrolls by is filled anew, what stays is left alone.
    for (let i = from; i < from + rows.length; i++) {
      const row = /** @type {Row} */ (rows[i % rows.length])
      const session = i < from + needed ? shown[i] : undefined
      row.fill(session, { index: i, now, isAdmin, total: shown.length })
    }
    const active = shown.findIndex((session) => keyOf(session) === store.selected)
    if (active < 0) list.removeAttribute('aria-activedescendant')
    else list.setAttribute('aria-activedescendant', `session-${active}`)
  }

  const sort = () => {
    const wanted = filter.value.trim().toLowerCase()
    const matches = [...store.sessions.values()].filter(
      ({ session, tenant }) =>
        wanted === '' || session.toLowerCase().includes(wanted) || tenant.toLowerCase().includes(wanted),
    )
    matches.sort(/** @type {any} */ (ORDERS[order.value]))
    shown = matches
  }

  /** In the order that they have, with what each is by now; new ones wait at the end. */
  const refresh = () => {
    const known = new Set()
    shown = shown.flatMap((session) => {
      const key = keyOf(session)
      known.add(key)
      return store.sessions.get(key) ?? []
    })
    return filter.value === '' ? store.sessions.size - known.size : 0
  }

  const redraw = (/** @type {boolean} */ sorted) => {
    if (sorted) sort()
    const waiting = sorted ? 0 : refresh()
    newer.hidden = waiting <= 0
    if (waiting > 0) say(newer, `${plural(waiting, 'new session')}: to the top`)
    say(
      total,
      shown.length === store.sessions.size
        ? count(shown.length)
        : `${count(shown.length)} of ${count(store.sessions.size)}`,
    )
    const height = `${shown.length * ROW_PX}px`
    if (spacer.style.height !== height) {
      spacer.style.height = height
      list.style.height = `min(${height}, var(--list))`
    }
    list.hidden = shown.length === 0
    // For those who measure how soon there is something to see.
    if (shown.length > 0 && rows.length === 0) performance.mark('refrain-first-row')
    if (shown.length === 0) fill(nothing, whyNone(filter.value))
    else if (nothing.hasChildNodes()) fill(nothing)
    draw()
  }

  let isDrawing = false
  list.addEventListener(
    'scroll',
    () => {
      heldOrder = list.scrollTop > ROW_PX
      if (isDrawing) return
      isDrawing = true
      requestAnimationFrame(() => {
        isDrawing = false
        draw()
      })
    },
    { passive: true },
  )
  const begin = () => {
    list.scrollTop = 0
    heldOrder = false
    redraw(true)
  }
  filter.addEventListener('input', begin)
  order.addEventListener('change', begin)
  newer.addEventListener('click', begin)
  list.addEventListener('keydown', (event) => {
    const page = Math.max(1, Math.floor(list.clientHeight / ROW_PX) - 1)
    const at = shown.findIndex((session) => keyOf(session) === store.selected)
    /** @type {Record<string, number>} */
    const steps = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: shown.length - 1,
    }
    const wanted = steps[event.key]
    if (wanted === undefined || shown.length === 0) return
    event.preventDefault()
    const session = /** @type {Session} */ (shown[Math.min(shown.length - 1, Math.max(0, wanted))])
    select(keyOf(session))
    view.show(keyOf(session))
  })
  new ResizeObserver(() => draw()).observe(list)

  const view = {
    element,
    filter,
    list,
    /** Scrolls to it. @param {string} key */
    show(key) {
      const at = shown.findIndex((session) => keyOf(session) === key)
      if (at < 0) return
      const top = at * ROW_PX
      if (top < list.scrollTop) list.scrollTop = top
      else if (top + ROW_PX > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_PX - list.clientHeight
      draw()
    },
    update: () => redraw(!heldOrder),
  }
  return view
}

/** @param {string} wanted */
function whyNone(wanted) {
  if (wanted.trim() !== '')
    return empty(`No session has '${wanted.slice(0, 40)}' in its name.`, 'Clear the filter to see all.')
  if (store.feed?.server.kind === 'fleet') {
    return empty(
      'No session has been seen since somebody began to look.',
      'Requests that name their session (x-refrain-session, or another of sessions.signals) show up here as they end.',
    )
  }
  if (store.feed?.server.explains === false)
    return empty('Turns are not taken down.', 'Set explain.turns and explain.sessions in the config to more than 0.')
  return empty('No session yet.', 'It is there with its first request; x-refrain-session names it.')
}

class Row {
  /** @param {(key: string) => void} select */
  constructor(select) {
    this.key = ''
    this.mark = ''
    this.name = el('span', { class: 'name' })
    this.tenant = el('span', { class: 'tenant' })
    this.facts = el('span', { class: 'facts' })
    this.rate = el('span', { class: 'rate' })
    this.reused = el('span', { class: 'part reused' })
    this.missed = el('span', { class: 'missed' })
    this.element = el(
      'div',
      { class: 'row', role: 'option', on: { click: () => select(this.key) } },
      el('div', { class: 'line' }, this.name, this.tenant, this.rate),
      el('div', { class: 'track', 'aria-hidden': 'true' }, this.reused),
      el('div', { class: 'line' }, this.facts, this.missed),
    )
  }

  /**
   * @param {Session | undefined} session undefined: there is none at this place
   * @param {{ index: number, now: number, isAdmin: boolean, total: number }} about
   */
  fill(session, { index, now, isAdmin, total }) {
    const { element } = this
    if (session === undefined) {
      if (!element.hidden) element.hidden = true
      this.mark = ''
      return
    }
    const key = keyOf(session)
    const isSelected = key === store.selected
    const age = ago(session.at, now)
    const mark = [
      key,
      index,
      isSelected,
      age,
      session.turns,
      session.prompt_tokens,
      session.missed_tokens,
      isAdmin,
      total,
    ].join()
    if (mark === this.mark) return
    this.mark = mark
    this.key = key
    element.hidden = false
    element.id = `session-${index}`
    element.style.transform = `translateY(${index * ROW_PX}px)`
    element.setAttribute('aria-selected', String(isSelected))
    element.setAttribute('aria-posinset', String(index + 1))
    element.setAttribute('aria-setsize', String(total))
    say(this.name, session.session)
    say(this.tenant, isAdmin ? session.tenant : '')
    say(this.rate, percent(session.reused_tokens, session.prompt_tokens))
    this.reused.style.transform = `scaleX(${rateOf(session).toFixed(3)})`
    const [repeat] = session.repeats
    say(this.facts, `${plural(session.turns, 'turn')} · ${age}${repeat === undefined ? '' : ` · ${repeat.sentence}`}`)
    this.facts.classList.toggle('warn', repeat !== undefined)
    say(this.missed, session.missed_tokens > 0 ? `−${count(session.missed_tokens)}` : '')
  }
}
