// Series over time, drawn by uPlot: hit rate, tokens by where they came from, how full tiers are and what was evicted.
// Invariant: a chart that can't be seen is not drawn, and all share one cursor.

import { card, el, empty, fill, say } from './dom.js'
import { count, minute, percent, size, tierName, time } from './format.js'
import { binned, FIELD, store } from './store.js'

const WINDOWS = /** @type {const} */ ([
  ['5 min', 300_000],
  ['15 min', 900_000],
  ['1 h', 3_600_000],
])
const BINS = 180
const HEIGHT = 190

let windowMs = 900_000

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

/** @param {string} name @param {string} [alpha] of `#rrggbb` */
const ink =
  (name, alpha = '') =>
  () =>
    colour(name) + alpha

const axis = () => ({
  stroke: ink('--muted'),
  grid: { stroke: ink('--line'), width: 1 },
  ticks: { stroke: ink('--line'), width: 1 },
  font: '11px system-ui, sans-serif',
})

/** @type {Set<Chart>} */
const charts = new Set()

/** One chart that fills its place's width. */
class Chart {
  /**
   * @param {string} label
   * @param {() => { series: any[], scales?: any, axes?: any[], bands?: any[] }} options made once it is known what is shown
   */
  constructor(label, options) {
    this.options = options
    this.element = el('div', { class: 'chart', role: 'img', 'aria-label': label })
    /** @type {any} */
    this.plot = undefined
    this.width = 0
    new ResizeObserver(([entry]) => {
      const width = Math.floor(entry?.contentRect.width ?? 0)
      if (width === 0 || width === this.width) return
      this.width = width
      this.plot?.setSize({ width, height: HEIGHT })
    }).observe(this.element)
    charts.add(this)
  }

  /** @param {(number | null)[][]} data @param {string} label */
  draw(data, label) {
    this.element.setAttribute('aria-label', label)
    if (this.plot !== undefined) {
      this.plot.setData(data)
      this.#tellLast(data)
      return
    }
    const width = Math.floor(this.element.clientWidth)
    if (width === 0) return
    this.width = width
    const { series, scales = {}, axes = [], bands = [] } = this.options()
    this.plot = new uPlot(
      {
        ...{ width, height: HEIGHT, bands, padding: [8, 8, 0, 0] },
        cursor: { sync: { key: 'refrain' }, points: { size: 6 }, y: false },
        legend: { live: true },
        scales: { x: { time: true }, ...scales },
        series: [
          { value: (/** @type {any} */ _, /** @type {number} */ at) => (at ? time(at * 1000) : '–') },
          ...series,
        ],
        axes: [
          {
            ...axis(),
            ...{ space: 60, size: 30 },
            values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((at) => minute(at * 1000)),
          },
          ...axes.map((each) => ({ ...axis(), size: 54, ...each })),
        ],
      },
      /** @type {any} */ (data),
      this.element,
    )
    // It is drawn in a task of its own, which clears the legend.
    setTimeout(() => this.#tellLast(data), 0)
  }

  /** Where nobody points, the legend says what was there last. @param {(number | null)[][]} data */
  #tellLast(data) {
    if ((this.plot.cursor.left ?? -1) >= 0) return
    const [at = [], ...columns] = data
    let idx = Math.max(0, at.length - 2)
    while (idx > 0 && !columns.some((column) => column[idx])) idx--
    this.plot.setLegend({ idx: idx || Math.max(0, at.length - 2) }, false)
  }

  recolour() {
    this.plot?.redraw(false, true)
  }
}

export function recolourCharts() {
  for (const chart of charts) chart.recolour()
}

/**
 * Each column on top of the ones before it.
 * @param {readonly (number | null)[][]} columns
 */
function stacked(columns) {
  const sums = new Array(columns[0]?.length ?? 0).fill(0)
  return columns.map((column) => column.map((value, i) => (sums[i] += value ?? 0)))
}

/** @param {any} plot @param {number} i index of the series that is stacked */
const ownPart = (plot, i, /** @type {number} */ at) => {
  const top = plot.data[i][at]
  return top === null || top === undefined ? 0 : top - (i > 1 ? plot.data[i - 1][at] : 0)
}

/** @param {(ms: number) => void} changed */
function windowChoice(changed) {
  const buttons = WINDOWS.map(([name, ms]) =>
    el('button', {
      type: 'button',
      text: name,
      'aria-pressed': String(ms === windowMs),
      on: {
        click() {
          windowMs = ms
          for (const button of buttons) button.setAttribute('aria-pressed', String(button.textContent === name))
          changed(ms)
        },
      },
    }),
  )
  return el('div', { class: 'choice', role: 'group', 'aria-label': 'How far back' }, ...buttons)
}

/** Hit rate, and tokens computed against reused. @param {() => void} redraw @returns {View} */
export function timeView(redraw) {
  const rate = new Chart('Hit rate', () => ({
    scales: { y: { range: [0, 100] } },
    axes: [{ values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => `${tick} %`) }],
    series: [
      {
        label: 'hit rate',
        stroke: ink('--accent'),
        fill: ink('--accent', '22'),
        width: 2,
        spanGaps: true,
        points: { show: true, size: 5, fill: ink('--accent'), filter: fewPoints },
        value: (/** @type {any} */ _, /** @type {number | null} */ value) =>
          value === null ? '–' : `${value.toFixed(1)} %`,
      },
    ],
  }))
  const tokens = new Chart('Tokens', () => ({
    axes: [{ values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(count) }],
    series: sources().map((part, i) => ({
      label: tierName(part),
      stroke: ink(`--${part}`),
      fill: ink(`--${part}`, 'cc'),
      width: 0,
      points: { show: false },
      paths: stepped(),
      value: (/** @type {any} */ plot, /** @type {any} */ _, /** @type {any} */ __, /** @type {number | null} */ at) =>
        at === null ? '–' : count(ownPart(plot, i + 1, at)),
    })),
    bands: sources()
      .slice(1)
      .map((_, i) => ({ series: [i + 2, i + 1] })),
  }))
  const note = el('p', { class: 'hint' })
  const nothing = el('div')
  const body = el(
    'div',
    { class: 'two' },
    figure('Hit rate', rate),
    figure('Prompt tokens, by where they came from', tokens),
  )
  const element = card({ id: 'time', title: 'Over time', aside: windowChoice(redraw) }, nothing, body, note)
  return {
    element,
    update() {
      const { columns } = binned(windowMs, BINS)
      const at = /** @type {number[]} */ (columns[FIELD.at])
      const parts = sources().map((part) => /** @type {number[]} */ (columns[FIELD[part]]))
      const [computed, ...reused] = /** @type {[number[], ...number[][]]} */ (parts)
      const rates = at.map((_, i) => {
        const hit = reused.reduce((sum, column) => sum + (column[i] ?? 0), 0)
        const all = hit + (computed[i] ?? 0)
        return all === 0 ? null : (100 * hit) / all
      })
      const all = parts.flat().reduce((sum, value) => sum + value, 0)
      const isEmpty = all === 0
      body.classList.toggle('faint', isEmpty)
      showNothing(nothing, isEmpty && store.series.size === 0)
      const hits = reused.flat().reduce((sum, value) => sum + value, 0)
      rate.draw([ending(at), ending(rates)], `Hit rate over time; ${percent(hits, all)} in all`)
      tokens.draw(
        [ending(at), ...stacked(parts).map(ending)],
        `Prompt tokens over time: ${count(all - hits)} computed, ${count(hits)} reused`,
      )
      say(note, sinceNote())
    },
  }
}

/** From the bottom on; the backends of a fleet say what they had, not where. */
function sources() {
  return store.feed?.server.kind === 'fleet'
    ? /** @type {const} */ (['computed', 'memory'])
    : /** @type {const} */ (['computed', 'disk', 'memory', 'working'])
}

/**
 * One more value at the end, so that the last step has a width: times go on, other values stay.
 * @param {(number | null)[]} column
 */
function ending(column) {
  const [before = null, last = null] = column.slice(-2)
  const isTime = (last ?? 0) > 1e9
  return [...column, isTime ? 2 * /** @type {number} */ (last) - /** @type {number} */ (before) : last]
}

/** Points that stand alone, and all where there are few. @param {any} plot @param {number} i */
function fewPoints(plot, i) {
  const values = /** @type {(number | null)[]} */ (plot.data[i]).slice(0, -1)
  const known = values.flatMap((value, at) => (value === null ? [] : [at]))
  return known.length <= 30
    ? known
    : known.filter((at) => (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null)
}

/** Bars without gaps. */
function stepped() {
  return (/** @type {any} */ plot, /** @type {number} */ i, /** @type {number} */ from, /** @type {number} */ to) =>
    uPlot.paths.stepped?.({ align: 1 })(plot, i, from, to) ?? null
}

function sinceNote() {
  const { feed } = store
  if (feed === undefined) return ''
  const { explains } = feed.server
  const silent = `No answer from ${feed.missing.join(', ')}: what came there since is not counted yet. `
  const since = `Counted since ${time(feed.watched_since)}, when somebody began to look; nothing is counted while nobody does.`
  return `${feed.missing.length > 0 ? silent : ''}${explains ? '' : since}`
}

/** @param {string} caption @param {Chart} chart */
function figure(caption, chart) {
  return el('figure', {}, el('figcaption', { text: caption }), chart.element)
}

/** @param {HTMLElement} place @param {boolean} isEmpty */
function showNothing(place, isEmpty) {
  if (isEmpty === place.hasChildNodes()) return
  if (!isEmpty) {
    fill(place)
    return
  }
  const model = store.feed?.server.models[0] ?? 'MODEL'
  const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] })
  const base = location.href.replace(/\/dashboard.*$/, '')
  const auth = sessionStorage.getItem('refrain.key') === null ? '' : " -H 'authorization: Bearer KEY'"
  const command = `curl ${base}/v1/chat/completions${auth} \\\n  -H 'content-type: application/json' -d '${body}'`
  fill(place, empty('No request has come yet.', 'Send one, and this page fills while you look:', command))
}

/** How full tiers are, and what left them. @returns {View} */
export function tiersView() {
  const tiers = /** @type {const} */ (['working', 'memory', 'disk'])
  const chart = new Chart('Tiers', () => ({
    scales: {
      y: { range: [0, 100] },
      blocks: {
        range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ max) => [0, Math.max(4, max)],
      },
    },
    axes: [
      { values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => `${tick} %`) },
      {
        scale: 'blocks',
        side: 1,
        grid: { show: false },
        values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(count),
      },
    ],
    series: [
      ...tiers.map((tier) => ({
        label: tierName(tier),
        stroke: ink(`--${tier}`),
        width: 2,
        points: { show: false },
        spanGaps: true,
        value: (/** @type {any} */ _, /** @type {number | null} */ value) =>
          value === null ? '–' : `${value.toFixed(1)} %`,
      })),
      {
        label: 'evicted blocks',
        scale: 'blocks',
        stroke: ink('--bad'),
        fill: ink('--bad', '55'),
        width: 1,
        points: { show: false },
        paths: stepped(),
        value: (/** @type {any} */ _, /** @type {number | null} */ value) => (value === null ? '–' : count(value)),
      },
    ],
  }))
  const gauges = el('div', { class: 'gauges' })
  const nothing = el('div')
  const body = figure('How full, and blocks evicted', chart)
  const element = card({ id: 'tiers', title: 'Tiers' }, nothing, gauges, body)
  return {
    element,
    update() {
      const cache = store.feed?.cache
      body.hidden = cache === undefined
      const reason = whyNoTiers()
      if (cache === undefined) {
        fill(gauges)
        fill(nothing, empty(reason.what, reason.todo))
        return
      }
      fill(nothing)
      fill(gauges, ...cache.tiers.map((tier) => gauge(tier, tierName(tier.tier))))
      const { columns } = binned(windowMs, BINS)
      const capacity = Object.fromEntries(cache.tiers.map(({ tier, capacity_bytes }) => [tier, capacity_bytes]))
      const filled = tiers.map((tier) =>
        /** @type {(number | null)[]} */ (columns[FIELD[`${tier}Bytes`]]).map((bytes) =>
          bytes === null || !capacity[tier] ? null : (100 * bytes) / capacity[tier],
        ),
      )
      const memory = /** @type {number[]} */ (columns[FIELD.evictedMemory])
      const disk = /** @type {number[]} */ (columns[FIELD.evictedDisk])
      const evicted = memory.map((blocks, i) => blocks + (disk[i] ?? 0))
      const total = evicted.reduce((sum, blocks) => sum + blocks, 0)
      chart.draw(
        [/** @type {number[]} */ (columns[FIELD.at]), ...filled, evicted.map((blocks) => blocks || null)].map(ending),
        `How full tiers are; ${count(total)} blocks evicted`,
      )
    },
  }
}

function whyNoTiers() {
  const { feed } = store
  if (feed?.viewer.admin === false) {
    return { what: 'Tiers are shown to admins.', todo: 'Sign in with the key of a tenant that has admin: true.' }
  }
  if (feed?.server.kind === 'fleet') {
    return {
      what: 'Each backend of a fleet keeps its own cache.',
      todo: 'Look at the dashboards of backends that are Refrain, or at their own metrics.',
    }
  }
  return {
    what: 'The engine has not said yet what its tiers hold.',
    todo: 'It says so between two steps; if this stays, look at /ready.',
  }
}

/** @param {Tier} tier @param {string} name */
function gauge(tier, name) {
  const { used_bytes: used, capacity_bytes: capacity } = tier
  const share = capacity > 0 ? Math.min(1, used / capacity) : 0
  const facts = [
    tier.slots !== undefined && `${count(tier.used_slots ?? 0)} of ${count(tier.slots)} slots in use`,
    tier.blocks !== undefined && `${count(tier.blocks)} blocks`,
    tier.hits !== undefined && `${percent(tier.hits, tier.hits + (tier.misses ?? 0))} of blocks hit`,
    (tier.evicted_blocks ?? 0) > 0 && `${count(tier.evicted_blocks ?? 0)} evicted`,
    (tier.pinned_blocks ?? 0) > 0 && `${count(tier.pinned_blocks ?? 0)} pinned`,
    (tier.pending_writes ?? 0) > 0 && `${count(tier.pending_writes ?? 0)} to be written`,
    tier.read_rate !== undefined && `reads ${size(tier.read_rate)}/s`,
  ].filter((fact) => fact !== false)
  return el(
    'div',
    { class: 'gauge' },
    el(
      'div',
      { class: 'gauge-head' },
      el('span', { class: `swatch ${tier.tier}` }),
      el('strong', { text: name }),
      capacity > 0 ? `${size(used)} of ${size(capacity)}` : '',
    ),
    capacity > 0 &&
      el(
        'div',
        {
          class: 'meter',
          role: 'meter',
          'aria-label': `${name}: how full`,
          'aria-valuenow': Math.round(100 * share),
          'aria-valuemin': 0,
          'aria-valuemax': 100,
        },
        el('div', { class: `meter-fill ${tier.tier}`, style: { width: `${100 * share}%` } }),
      ),
    el('p', { class: 'hint', text: facts.join(' · ') }),
    tier.healthy === false && el('p', { class: 'bad', text: tier.complaint ?? 'This tier is not well.' }),
  )
}
