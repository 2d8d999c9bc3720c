// Where a turn's prompt parts from the one before: the sentence, the place, the two texts where they are kept, and what the
// prompt is made of. Texts are strangers' words: they become text nodes, with what is equal and what is not told apart.

import { el } from './dom.js'
import { count, exact, plural, words } from './format.js'

/** Segments that are listed; a long conversation has thousands. */
const SEGMENTS = 200

/** @param {Explanation} turn */
export function difference(turn) {
  const { miss } = turn
  return el(
    'div',
    { class: 'explained' },
    miss === null
      ? el('p', { text: 'Nothing was missed: all that could be reused was.' })
      : el('p', { class: 'sentence', text: miss.sentence }),
    miss?.repeats && el('p', { class: 'warn', text: miss.repeats.sentence }),
    miss !== null && facts(turn, miss),
    miss?.difference && texts(miss.difference),
    segments(turn),
  )
}

/** @param {Explanation} turn @param {NonNullable<Explanation['miss']>} miss */
function facts(turn, miss) {
  const { difference: place, causes } = miss
  /** @type {[string, string][]} */
  const rows = [
    [
      'reason',
      `${words(miss.reason)}${miss.missed_tokens > 0 ? `: ${exact(miss.missed_tokens)} tokens computed again` : ''}`,
    ],
  ]
  if (causes.length > 1)
    rows.push(['causes', causes.map((cause) => `${words(cause.reason)} ${count(cause.missed_tokens)}`).join(', ')])
  if (miss.compared_with !== null) rows.push(['compared with', `turn ${miss.compared_with}`])
  if (place !== undefined) {
    rows.push(['parts at', `token ${exact(place.token)}, byte ${exact(place.byte)} of the prompt`])
    const { message, tools = [] } = place
    if (message !== undefined) {
      rows.push([
        'message',
        `${message.index} (${message.role}), byte ${exact(message.byte)} of its ${words(message.part)}: ${message.change}`,
      ])
    }
    if (tools.length > 0) rows.push(['tools', tools.map(({ name, change }) => `${name} ${change}`).join(', ')])
    if (place.whitespace) rows.push(['change', 'white space alone'])
  }
  rows.push(['request', turn.id])
  return el('dl', {}, ...rows.flatMap(([name, value]) => [el('dt', { text: name }), el('dd', { text: value })]))
}

/** @param {Difference} place */
function texts({ before, after }) {
  if (before === undefined && after === undefined) {
    return el('p', {
      class: 'hint',
      text: 'The two texts are not kept; explain.keepText: true keeps 80 characters before the place and 160 bytes behind it, from then on.',
    })
  }
  const [old, now] = [before ?? '', after ?? '']
  const front = sharedFront(old, now)
  const tail = sharedTail(old.slice(front), now.slice(front))
  return el(
    'div',
    { class: 'diff' },
    side('before', 'removed', old, { front, tail }),
    side('this turn', 'added', now, { front, tail }),
  )
}

/** @param {string} name @param {string} kind @param {string} text @param {{ front: number, tail: number }} shared */
function side(name, kind, text, { front, tail }) {
  const own = text.slice(front, text.length - tail)
  return el(
    'figure',
    {},
    el('figcaption', { text: name }),
    el(
      'pre',
      { tabindex: 0 },
      text.slice(0, front),
      own !== '' && el(kind === 'removed' ? 'del' : 'ins', { text: own }),
      text.slice(text.length - tail),
    ),
  )
}

/** @param {string} a @param {string} b */
function sharedFront(a, b) {
  let i = 0
  while (i < a.length && i < b.length && a[i] === b[i]) i++
  return i
}

/** @param {string} a @param {string} b */
function sharedTail(a, b) {
  let i = 0
  while (i < a.length && i < b.length && a[a.length - 1 - i] === b[b.length - 1 - i]) i++
  return i
}

/** @param {Explanation} turn */
function segments({ segments: all, miss }) {
  if (all.length === 0) return undefined
  const at = miss?.difference?.message?.index
  const shown = all.slice(-SEGMENTS)
  return el(
    'details',
    {},
    el('summary', { text: `What the prompt is made of: ${plural(all.length, 'part')}` }),
    el(
      'table',
      {},
      el(
        'thead',
        {},
        el('tr', {}, ...['part', 'bytes', 'tokens', 'digest'].map((text) => el('th', { text, scope: 'col' }))),
      ),
      el(
        'tbody',
        {},
        ...shown.map((segment) => {
          const isPlace = segment.kind !== 'tool' && segment.index === at
          const name = segment.kind === 'tool' ? `tool ${segment.name}` : `${segment.index} ${segment.role}`
          return el(
            'tr',
            { class: isPlace ? 'place' : undefined },
            el('th', { text: name, scope: 'row' }),
            el('td', { text: exact(segment.bytes) }),
            el('td', { text: segment.tokens === undefined ? '–' : exact(segment.tokens) }),
            el('td', {}, el('code', { text: segment.digest.slice(0, 12) })),
          )
        }),
      ),
    ),
  )
}
