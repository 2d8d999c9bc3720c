// The smaller parts: figures at the top, backends, quick questions, alarms. Invariant: each is drawn anew only where what it
// shows has changed.

import { card, el, empty, fill, say } from './dom.js'
import { ago, count, duration, percent, plural, time, words } from './format.js'
import { FIELD, recent, serverNow, store } from './store.js'

const FIGURES_MS = 300_000

/** @returns {View} */
export function figuresView() {
  const names = ['hit rate', 'computed', 'reused', 'generated', 'requests', 'to first token', 'sessions']
  const values = names.map(() => el('strong', { text: '–' }))
  const notes = names.map(() => el('span', { class: 'hint' }))
  const element = el(
    'section',
    { class: 'figures', 'aria-label': 'The last five minutes' },
    ...names.map((name, i) =>
      el('div', { class: 'figure' }, el('span', { class: 'figure-name', text: name }), values[i], notes[i]),
    ),
  )
  return {
    element,
    update() {
      const sums = recent(FIGURES_MS)
      const reused = sums[FIELD.working] + sums[FIELD.memory] + sums[FIELD.disk]
      const all = reused + sums[FIELD.computed]
      const load = store.feed?.backends?.reduce(
        (sum, { running, waiting }) => ({ running: sum.running + running, waiting: sum.waiting + waiting }),
        { running: 0, waiting: 0 },
      )
      const shown = [
        [percent(reused, all), 'last 5 min'],
        [count(sums[FIELD.computed]), 'prompt tokens'],
        [count(reused), 'prompt tokens'],
        [count(sums[FIELD.generated]), 'tokens'],
        [
          count(sums[FIELD.requests]),
          sums[FIELD.failed] > 0
            ? `${count(sums[FIELD.failed])} failed`
            : load === undefined
              ? 'last 5 min'
              : `${count(load.running)} running, ${count(load.waiting)} waiting`,
        ],
        [sums[FIELD.ttftCount] > 0 ? duration(sums[FIELD.ttftSum] / sums[FIELD.ttftCount]) : '–', 'on average'],
        [count(store.sessions.size), 'known'],
      ]
      shown.forEach(([value = '', note = ''], i) => {
        say(/** @type {HTMLElement} */ (values[i]), value)
        say(/** @type {HTMLElement} */ (notes[i]), note)
      })
    },
  }
}

/**
 * Draws `make()` where `mark` is another one than at the last time.
 * @param {HTMLElement} place
 */
function whenChanged(place) {
  let last = ''
  return (/** @type {unknown} */ of, /** @type {() => readonly (Node | undefined)[]} */ make) => {
    const mark = JSON.stringify(of)
    if (mark === last) return
    last = mark
    fill(place, ...make())
  }
}

/** @returns {View} */
export function backendsView() {
  const body = el('div', { class: 'backends-body' })
  const element = card({ id: 'backends', title: 'Backends' }, body)
  const draw = whenChanged(body)
  return {
    element,
    update() {
      const { feed } = store
      const { backends } = feed ?? {}
      draw([backends, feed?.viewer.admin], () => {
        if (backends === undefined)
          return [empty('Backends are shown to admins.', 'Sign in with the key of a tenant that has admin: true.')]
        if (backends.length === 0)
          return [empty('There is no backend.', 'Name some under backends in the config, or POST one to /v1/backends.')]
        const most = Math.max(1, ...backends.map(({ running, waiting }) => running + waiting))
        return backends.map((backend) => backendElement(backend, most))
      })
    },
  }
}

/** @param {Backend} backend @param {number} most */
function backendElement(backend, most) {
  const { id, kind, state, notes, models, running, waiting, overlap } = backend
  const facts = [
    `${count(running)} running, ${count(waiting)} waiting`,
    backend.queued_prefill_tokens !== undefined && `${count(backend.queued_prefill_tokens)} tokens to prefill`,
    backend.sessions !== undefined && plural(backend.sessions, 'session'),
    backend.knowledge !== undefined && `cache known: ${backend.knowledge}`,
    backend.capacity_tokens !== undefined && `holds about ${count(backend.capacity_tokens)} tokens`,
    backend.prediction_error !== undefined && `predicted within ${percent(backend.prediction_error, 1)}`,
  ].filter((fact) => fact !== false)
  return el(
    'div',
    { class: 'backend' },
    el(
      'div',
      { class: 'line' },
      el('span', {
        class: `dot ${state === 'up' ? 'good' : state === 'down' ? 'bad' : 'warn'}`,
        'aria-hidden': 'true',
      }),
      el('strong', { text: id }),
      el('span', { class: 'hint', text: kind === id ? state : `${kind} · ${state}` }),
    ),
    el('p', { class: 'hint', text: models.join(', ') }),
    bar('load', running + waiting, most, `${count(running + waiting)}`, 'accent'),
    overlap !== undefined &&
      overlap.prompt_tokens > 0 &&
      bar(
        'overlap',
        overlap.cached_tokens,
        overlap.prompt_tokens,
        `${percent(overlap.cached_tokens, overlap.prompt_tokens)} of ${count(overlap.prompt_tokens)} tokens were there, ${percent(overlap.predicted_tokens, overlap.prompt_tokens)} expected`,
        'memory',
      ),
    el('p', { class: 'hint', text: facts.join(' · ') }),
    ...notes.map((note) => el('p', { class: 'bad', text: note })),
  )
}

/** @param {string} name @param {number} part @param {number} whole @param {string} text @param {string} colour */
function bar(name, part, whole, text, colour) {
  return el(
    'div',
    { class: 'meter-line' },
    el('span', { class: 'meter-name', text: name }),
    el(
      'div',
      {
        class: 'meter',
        role: 'meter',
        'aria-label': name,
        'aria-valuenow': part,
        'aria-valuemin': 0,
        'aria-valuemax': whole,
        'aria-valuetext': text,
      },
      el('div', { class: `meter-fill ${colour}`, style: { width: `${(100 * part) / whole}%` } }),
    ),
    el('span', { class: 'meter-text', text }),
  )
}

/** @returns {View} */
export function quickView() {
  const body = el('div')
  const element = card({ id: 'quick', title: 'Quick tasks' }, body)
  const draw = whenChanged(body)
  return {
    element,
    update() {
      const { feed } = store
      draw([feed?.quick, feed?.server.kind], () => {
        const tallies = feed?.quick ?? []
        if (tallies.length === 0) {
          return [
            feed?.server.kind === 'fleet'
              ? empty(
                  'Side questions are answered by the backends.',
                  'Ask one that is a Refrain with an engine of its own for its dashboard.',
                )
              : empty(
                  'No side question was answered since somebody began to look.',
                  'POST /v1/quick, or `quick` in a chat, asks some on a prefix that is computed already.',
                ),
          ]
        }
        return [
          el(
            'table',
            {},
            el(
              'thead',
              {},
              el(
                'tr',
                {},
                ...['task', 'form', 'answered', 'failed', 'tokens each'].map((text) =>
                  el('th', { text, scope: 'col' }),
                ),
              ),
            ),
            el(
              'tbody',
              {},
              ...tallies.map((tally) => {
                const asked = tally.answered + tally.failed
                return el(
                  'tr',
                  {},
                  el('th', { text: words(tally.task), scope: 'row' }),
                  el('td', { text: tally.form }),
                  el('td', { text: count(tally.answered) }),
                  el('td', {
                    text: tally.failed === 0 ? '0' : `${count(tally.failed)} (${words(tally.last_error ?? '')})`,
                    class: tally.failed === 0 ? undefined : 'bad',
                  }),
                  el('td', {
                    text:
                      asked === 0
                        ? '–'
                        : `${count(tally.prompt_tokens / asked)} + ${count(tally.completion_tokens / asked)}`,
                  }),
                )
              }),
            ),
          ),
        ]
      })
    },
  }
}

/** @param {(session: string, tenant?: string) => void} open @returns {View} */
export function alarmsView(open) {
  const body = el('div')
  const element = card({ id: 'alarms', title: 'Alarms' }, body)
  const draw = whenChanged(body)
  return {
    element,
    update() {
      const { feed } = store
      const alarms = feed?.alarms ?? []
      element.classList.toggle('some', alarms.length > 0)
      const minute = Math.floor(serverNow() / 10_000)
      draw([alarms, alarms.length > 0 && minute], () => {
        if (alarms.length === 0) return [empty('No alarm.', 'What a person should look at stands here.')]
        return [
          el(
            'ul',
            { class: 'alarm-list' },
            ...alarms.map((alarm) =>
              el(
                'li',
                {},
                el('span', { class: 'kind', text: words(alarm.kind) }),
                el('span', { class: 'alarm-text', text: alarm.sentence }),
                el(
                  'span',
                  { class: 'hint' },
                  el('time', {
                    datetime: new Date(alarm.at).toISOString(),
                    title: time(alarm.at),
                    text: ago(alarm.at, serverNow()),
                  }),
                  feed?.viewer.admin === true && ` · ${alarm.tenant}`,
                ),
                alarm.session !== undefined &&
                  el('button', {
                    type: 'button',
                    class: 'link',
                    text: alarm.session,
                    on: { click: () => open(/** @type {string} */ (alarm.session), alarm.tenant) },
                  }),
              ),
            ),
          ),
        ]
      })
    },
  }
}
