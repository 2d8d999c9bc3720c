// A session's turns as bars: what came from which tier, what was computed, what was generated, and why it was missed. A
// turn opens to say where its prompt parts from the one before. Invariant: a turn that has not changed is not drawn anew.

import { difference } from './difference.js'
import { card, el, empty, fill, say } from './dom.js'
import { ago, count, exact, percent, plural, tierName, words } from './format.js'
import { ask, Refusal } from './server.js'
import { keyOf, serverNow, store } from './store.js'

const PARTS = /** @type {const} */ (['working', 'memory', 'disk', 'computed', 'generated'])

/** @param {() => void} close @returns {View & { load(): Promise<void>, focus(): void }} */
export function turnsView(close) {
  const back = el('button', { type: 'button', class: 'back', text: 'All sessions', on: { click: close } })
  const head = el('div', { class: 'session-head' })
  const legend = el('ul', { class: 'legend' })
  const list = el('ol', { class: 'turns' })
  const nothing = el('div')
  const element = card({ id: 'turns', title: 'Turns', aside: back }, nothing, head, legend, list)

  /** @type {Map<number, Row>} */
  const rows = new Map()
  let shownKey = ''
  let headMark = ''
  /** @type {string | undefined} */
  let error

  list.addEventListener('keydown', (event) => {
    const steps = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1 })
    const step = steps[event.key]
    if (step === undefined) return
    const buttons = [...rows.values()].map(({ button }) => button)
    const at = buttons.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement))
    if (at < 0) return
    event.preventDefault()
    // The latest turn stands on top.
    buttons.at(Math.min(buttons.length - 1, Math.max(0, at - step)))?.focus()
  })

  return {
    element,
    async load() {
      const { selected } = store
      const session = selected === undefined ? undefined : store.sessions.get(selected)
      if (selected === undefined || session === undefined) return
      const path = `v1/dashboard/sessions/${encodeURIComponent(session.session)}/turns?tenant=${encodeURIComponent(session.tenant)}`
      try {
        const answer = await ask(path)
        if (store.selected !== selected) return
        store.opened = { key: selected, session: answer.session, turns: answer.turns }
        error = undefined
      } catch (failure) {
        if (!(failure instanceof Refusal)) throw failure
        error = failure.message
      }
    },
    focus() {
      const latest = [...rows.values()].at(-1)
      ;(latest?.button ?? back).focus({ preventScroll: true })
    },
    update() {
      const { opened, selected } = store
      const isOpen = opened !== undefined && opened.key === selected
      element.classList.toggle('open', selected !== undefined)
      back.hidden = selected === undefined
      legend.hidden = !isOpen
      if (!isOpen) {
        rows.clear()
        shownKey = ''
        fill(list)
        fill(head)
        const what =
          selected === undefined
            ? 'No session is open.'
            : error === undefined
              ? 'Loading …'
              : `These turns can't be had: ${error}`
        fill(
          nothing,
          empty(
            what,
            selected === undefined ? 'Choose one from the list: with the pointer, or with the arrow keys.' : undefined,
          ),
        )
        return
      }
      fill(nothing, error !== undefined && el('p', { class: 'bad', text: `As it was: ${error}` }))
      const { session, turns } = opened
      if (shownKey !== opened.key) {
        rows.clear()
        fill(list)
        shownKey = opened.key
        headMark = ''
        fill(legend, ...legendItems())
      }
      const mark = JSON.stringify(session)
      if (mark !== headMark) fill(head, ...headOf(session, turns))
      headMark = mark
      const most = Math.max(1, ...turns.map((turn) => turn.prompt_tokens + turn.completion_tokens))
      const kept = new Set(turns.map(({ turn }) => turn))
      for (const [number, row] of rows) {
        if (kept.has(number)) continue
        row.element.remove()
        rows.delete(number)
      }
      for (const turn of turns) {
        const row = rows.get(turn.turn) ?? new Row(session)
        if (!rows.has(turn.turn)) {
          rows.set(turn.turn, row)
          list.prepend(row.element)
        }
        row.fill(turn, most)
      }
    },
  }
}

function legendItems() {
  const isFleet = store.feed?.server.kind === 'fleet'
  return PARTS.filter((part) => !isFleet || (part !== 'working' && part !== 'disk')).map((part) =>
    el('li', {}, el('span', { class: `swatch ${part}` }), tierName(part)),
  )
}

/** @param {Session} session @param {readonly Turn[]} turns */
function headOf(session, turns) {
  const { prompt_tokens: prompt, reused_tokens: reused, missed_tokens: missed } = session
  const left = session.turns - turns.length
  return [
    el('h3', { text: session.session }),
    el(
      'p',
      {},
      `${plural(session.turns, 'turn')}, ${count(prompt)} prompt tokens: ${percent(reused, prompt)} reused, ${count(missed)} missed. `,
      session.by_content && 'Followed by what it says, for want of a key. ',
      left > 0 && `The last ${turns.length} are kept.`,
    ),
    session.repeats.length > 0 &&
      el('ul', { class: 'repeats' }, ...session.repeats.map(({ sentence }) => el('li', { text: sentence }))),
  ]
}

class Row {
  /** @param {Session} session */
  constructor(session) {
    this.session = session
    this.mark = ''
    /** @type {Turn | undefined} */
    this.turn = undefined
    this.number = el('span', { class: 'number' })
    this.parts = PARTS.map((part) => el('span', { class: `part ${part}` }))
    this.bar = el('span', { class: 'bar' }, ...this.parts)
    this.facts = el('span', { class: 'facts' })
    this.reason = el('span', { class: 'reason' })
    this.button = el(
      'button',
      { type: 'button', class: 'turn', 'aria-expanded': 'false', on: { click: () => this.toggle() } },
      this.number,
      this.bar,
      this.facts,
      this.reason,
    )
    this.details = el('div', { class: 'details', hidden: true })
    this.element = el('li', {}, this.button, this.details)
  }

  /** @param {Turn} turn @param {number} most tokens of the longest turn */
  fill(turn, most) {
    this.turn = turn
    const mark = [
      turn.status,
      turn.prompt_tokens,
      turn.completion_tokens,
      turn.cache?.computed,
      turn.miss?.reason,
      turn.miss?.missed_tokens,
      most,
    ].join()
    const age = ago(turn.at, serverNow())
    const { cache, miss } = turn
    const hit = cache === undefined ? undefined : turn.prompt_tokens - cache.computed
    const state = turn.status === 'failed' ? ' · failed' : turn.status === 'running' ? ' · running' : ''
    const side = turn.request_class === 'main' ? '' : ` · ${turn.request_class}`
    const share = hit === undefined ? 'not computed yet' : `${percent(hit, turn.prompt_tokens)} hit`
    say(
      this.facts,
      `${count(turn.prompt_tokens)} + ${count(turn.completion_tokens)} · ${share}${side}${state} · ${age}`,
    )
    if (mark === this.mark) return
    this.mark = mark
    const tokens = { working: 0, memory: 0, disk: 0, computed: 0, ...cache, generated: turn.completion_tokens }
    for (const [i, part] of PARTS.entries())
      this.parts[i]?.style.setProperty('width', `${(100 * tokens[part]) / most}%`)
    say(this.number, String(turn.turn))
    say(
      this.reason,
      miss === undefined
        ? ''
        : miss.missed_tokens > 0 && miss.reason !== 'first_seen'
          ? `${words(miss.reason)} −${count(miss.missed_tokens)}`
          : words(miss.reason),
    )
    this.reason.className = `reason ${miss === undefined ? '' : miss.reason === 'first_seen' ? 'first' : 'missed'}`
    const said = PARTS.filter((part) => tokens[part] > 0).map((part) => `${exact(tokens[part])} ${tierName(part)}`)
    this.button.setAttribute(
      'aria-label',
      `Turn ${turn.turn}: ${said.join(', ')}${miss === undefined ? '' : `; ${miss.sentence}`}`,
    )
  }

  toggle() {
    const isOpen = this.details.hidden
    this.details.hidden = !isOpen
    this.button.setAttribute('aria-expanded', String(isOpen))
    if (isOpen) void this.explain()
  }

  async explain() {
    const { turn, session, details } = this
    if (turn === undefined) return
    if (store.feed?.server.explains !== true) {
      fill(
        details,
        empty(
          `Request ${turn.request_id}${turn.backend === '' ? '' : ` on ${turn.backend}`}.`,
          'Why it missed is told by a server with its own tokenizer: by the backend, where that is a Refrain.',
        ),
      )
      return
    }
    fill(details, el('p', { class: 'hint', text: 'Loading …' }))
    const path = `v1/sessions/${encodeURIComponent(session.session)}/turns/${turn.turn}/explain?tenant=${encodeURIComponent(session.tenant)}`
    try {
      fill(details, difference(await ask(path)))
    } catch (failure) {
      if (!(failure instanceof Refusal)) throw failure
      fill(details, empty(`This turn can't be explained: ${failure.message}`, 'Open it again to ask again.'))
    }
  }
}

/** @param {{ tenant: string, session: string }} session */
export const sessionKey = keyOf
