// The prefix tree as an icicle that lies on its side: from left to right the tokens of prompts, a node as high as what goes
// through it, coloured by where its blocks lie. Drawn on a canvas, walked with the keyboard or the pointer. Invariant: what
// is shown is what was told; the node at hand stays the same one over updates, as long as it is there.

import { card, el, empty, fill } from './dom.js'
import { count, exact, plural } from './format.js'
import { ask, Refusal } from './server.js'
import { store } from './store.js'

const GAP = 1
const LABEL_PX = 54

/**
 * @typedef {{ node: TreeNode, parent: Placed | undefined, children: Placed[], weight: number, hiddenWeight: number,
 *   x: number, y: number, w: number, h: number }} Placed
 */

/** @param {(session: string, tenant?: string) => void} open @returns {View & { load(): Promise<void> }} */
export function treeView(open) {
  const canvas = el('canvas', {
    class: 'icicle',
    tabindex: 0,
    role: 'img',
    'aria-label': 'Prefix tree',
    'aria-describedby': 'tree-node',
  })
  const crumbs = el('nav', { class: 'crumbs', 'aria-label': 'Where in the tree' })
  const details = el('div', { class: 'node', id: 'tree-node', 'aria-live': 'polite' })
  const nothing = el('div', {}, el('p', { class: 'hint', text: 'Loading …' }))
  const legend = el(
    'ul',
    { class: 'legend' },
    ...[
      ['working', 'working set'],
      ['memory', 'memory'],
      ['disk', 'disk'],
      ['more', 'branches not shown'],
    ].map(([name, text]) => el('li', {}, el('span', { class: `swatch ${name}` }), text)),
  )
  const body = el('div', { hidden: true }, crumbs, canvas, legend, details)
  const element = card(
    {
      id: 'tree',
      title: 'Prefix tree',
      hint: 'Who shares what: left to right the tokens of prompts, as high as what goes through.',
    },
    nothing,
    body,
  )

  const drawing = new Drawing(canvas)
  /** @type {string | undefined} */
  let error

  const details_ = () => {
    const at = drawing.at ?? drawing.focus
    fill(
      details,
      ...(at === undefined
        ? [
            el('p', {
              class: 'hint',
              text: 'Point at a node, or walk with the arrow keys; Enter goes into it, Escape back.',
            }),
          ]
        : describe(at, open)),
    )
    crumbsOf(crumbs, drawing, refresh)
  }
  const refresh = () => {
    drawing.layout()
    drawing.paint()
    details_()
  }
  canvas.addEventListener('pointermove', (event) => {
    if (drawing.hover(event.offsetX, event.offsetY)) {
      drawing.paint()
      details_()
    }
  })
  canvas.addEventListener('click', (event) => {
    drawing.hover(event.offsetX, event.offsetY)
    drawing.enter()
    refresh()
  })
  canvas.addEventListener('keydown', (event) => {
    if (!drawing.key(event.key)) return
    event.preventDefault()
    refresh()
  })
  canvas.addEventListener('focus', () => {
    drawing.at ??= drawing.top[0]
    drawing.paint()
    details_()
  })
  new ResizeObserver(() => {
    drawing.layout()
    drawing.paint()
  }).observe(canvas)

  let isLoading = false
  return {
    element,
    async load() {
      if (isLoading || store.feed?.server.has_tree !== true) return
      isLoading = true
      try {
        store.tree = await ask('v1/dashboard/tree')
        error = undefined
      } catch (failure) {
        if (!(failure instanceof Refusal)) throw failure
        error = failure.message
      } finally {
        isLoading = false
      }
    },
    update() {
      const { tree, feed } = store
      const nodes = tree?.nodes ?? []
      body.hidden = nodes.length === 0
      if (nodes.length === 0) {
        drawing.set([])
        const said = whyNothing(feed, error)
        fill(nothing, empty(said.what, said.todo))
        return
      }
      fill(nothing, error !== undefined && el('p', { class: 'bad', text: `As it was: ${error}` }))
      drawing.set(nodes)
      const height = `${Math.round(Math.min(340, Math.max(72, 22 * drawing.weight)))}px`
      if (canvas.style.height !== height) canvas.style.height = height
      canvas.setAttribute('aria-label', `Prefix tree of ${exact(tree?.tokens ?? 0)} cached tokens`)
      refresh()
    },
    recolour: () => drawing.paint(),
  }
}

/** @param {Feed | undefined} feed @param {string | undefined} error */
function whyNothing(feed, error) {
  if (error !== undefined) return { what: `The tree can't be had: ${error}`, todo: 'It is asked for again by itself.' }
  if (feed !== undefined && !feed.server.has_tree) {
    return feed.server.kind === 'fleet'
      ? {
          what: 'A fleet has no cache of its own.',
          todo: 'Each backend keeps its prefixes; how much of each request they had is under Backends.',
        }
      : {
          what: 'This backend does not tell what it caches.',
          todo: 'The embedded engine does (backend.kind: embedded).',
        }
  }
  return {
    what: 'Nothing is cached yet.',
    todo: 'Prompts are kept in blocks of 64 tokens: send one that is longer. If this stays, see cache.enabled in the config.',
  }
}

/** @param {Placed} placed @param {(session: string, tenant?: string) => void} open */
function describe({ node }, open) {
  const { from, tokens, uses, sessions, names, hidden, tenant } = node
  const tiers = node.tiers.map(({ tier, tokens: held }) =>
    `${count(held)} in ${tier === 'working' ? 'the working set' : tier === 'memory' ? 'memory' : 'on disk'}`.replace(
      'in on',
      'on',
    ),
  )
  const more = sessions - names.length
  return [
    el(
      'p',
      {},
      el('strong', { text: `Tokens ${exact(from)} to ${exact(from + tokens)}` }),
      `: ${tiers.join(', then ')}. `,
      `${plural(uses, 'request')} used it; ${count(node.below_tokens)} tokens follow`,
      hidden.branches > 0
        ? `, of which ${count(hidden.tokens)} in ${plural(hidden.branches, 'branch', 'branches')} that are not shown.`
        : '.',
      tenant !== undefined && ` Of ${tenant}.`,
    ),
    sessions > 0 &&
      el(
        'p',
        { class: 'names' },
        `${plural(sessions, 'session')}: `,
        ...names.map((name) =>
          el('button', { class: 'link', type: 'button', text: name, on: { click: () => open(name) } }),
        ),
        more > 0 && ` and ${count(more)} more`,
      ),
  ].filter((each) => each !== false)
}

/** @param {HTMLElement} place @param {Drawing} drawing @param {() => void} refresh */
function crumbsOf(place, drawing, refresh) {
  /** @type {(Placed | undefined)[]} */
  const path = []
  for (let at = drawing.focus; at !== undefined; at = at.parent) path.unshift(at)
  path.unshift(undefined)
  if (place.childElementCount === path.length) return
  fill(
    place,
    ...path.map((placed, i) =>
      el('button', {
        class: 'link',
        type: 'button',
        text: placed === undefined ? 'All' : `from ${count(placed.node.from)}`,
        'aria-current': i === path.length - 1 ? 'location' : undefined,
        on: {
          click: () => {
            drawing.focus = placed
            refresh()
          },
        },
      }),
    ),
  )
}

class Drawing {
  /** @type {Placed[]} At the root. */
  top = []
  /** @type {Map<string, Placed>} */
  byId = new Map()
  /** @type {Placed | undefined} The one at hand. */
  at
  /** @type {Placed | undefined} The one that is gone into. */
  focus
  from = 0
  to = 1

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas
  }

  /** Several tenants' prefixes are there. */
  hasOwners = false

  get weight() {
    return this.top.reduce((sum, { weight }) => sum + weight, 0)
  }

  /** @param {readonly TreeNode[]} nodes */
  set(nodes) {
    /** @type {Map<string, Placed>} */
    const byId = new Map()
    this.top = []
    for (const node of nodes) {
      const parent = node.parent === undefined ? undefined : byId.get(node.parent)
      const placed = { node, parent, children: [], weight: 1, hiddenWeight: 0, x: 0, y: 0, w: 0, h: 0 }
      byId.set(node.id, placed)
      ;(parent?.children ?? this.top).push(placed)
    }
    for (const placed of [...byId.values()].reverse()) {
      const shown = placed.children.reduce((sum, child) => sum + child.weight, 0)
      // What is not shown is there to be seen, but takes no more than half of the room.
      placed.hiddenWeight = Math.min(placed.node.hidden.branches, Math.max(1, shown))
      placed.weight = Math.max(1, shown + (placed.node.hidden.branches > 0 ? placed.hiddenWeight : 0))
    }
    this.hasOwners = new Set(this.top.map(({ node }) => node.tenant)).size > 1
    this.at = this.at && byId.get(this.at.node.id)
    this.focus = this.focus && byId.get(this.focus.node.id)
    this.byId = byId
    this.layout()
  }

  layout() {
    const { clientWidth: width, clientHeight: height } = this.canvas
    const shown = this.focus === undefined ? this.top : [this.focus]
    this.from = this.focus?.node.from ?? 0
    this.to = this.from + 1
    /** @param {Placed} placed */
    const reach = ({ node, children }) => {
      this.to = Math.max(
        this.to,
        node.from + node.tokens + (node.hidden.branches > 0 ? Math.min(node.hidden.tokens, node.tokens) : 0),
      )
      children.forEach(reach)
    }
    shown.forEach(reach)
    for (const placed of this.byId.values()) placed.h = 0
    const scale = width / (this.to - this.from)
    /** @param {readonly Placed[]} row @param {number} top @param {number} room @param {number} weight */
    const place = (row, top, room, weight) => {
      let y = top
      for (const placed of row) {
        const { node } = placed
        placed.x = (node.from - this.from) * scale
        placed.w = node.tokens * scale
        placed.y = y
        placed.h = (room * placed.weight) / weight
        place(placed.children, y, placed.h, placed.weight)
        y += placed.h
      }
    }
    place(shown, 0, height, shown.reduce((sum, { weight }) => sum + weight, 0) || 1)
  }

  paint() {
    const { canvas } = this
    const { clientWidth: width, clientHeight: height } = canvas
    if (width === 0) return
    const ratio = devicePixelRatio || 1
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio)
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio)
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'))
    context.setTransform(ratio, 0, 0, ratio, 0, 0)
    context.clearRect(0, 0, width, height)
    const style = getComputedStyle(canvas)
    const ink = (/** @type {string} */ name) => style.getPropertyValue(name).trim()
    const inks = {
      working: ink('--working'),
      memory: ink('--memory'),
      disk: ink('--disk'),
      more: ink('--line-strong'),
      text: ink('--on-tier'),
      mark: ink('--fg'),
    }
    context.font = '11px system-ui, sans-serif'
    context.textBaseline = 'middle'
    for (const placed of this.byId.values()) if (placed.h > 0) this.#node(context, placed, inks)
    const { at } = this
    if (at !== undefined && at.h > 0) {
      context.strokeStyle = inks.mark
      context.lineWidth = 2
      context.strokeRect(at.x + 1, at.y + 1, Math.max(2, at.w - 2), Math.max(2, at.h - 2))
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Placed} placed @param {Record<string, string>} inks */
  #node(context, { node, children, hiddenWeight, weight, x, y, w, h }, inks) {
    const gap = h > 3 ? GAP : 0
    let left = x
    for (const { tier, tokens } of node.tiers) {
      const part = (w * tokens) / node.tokens
      context.fillStyle = /** @type {string} */ (inks[tier])
      context.fillRect(left, y, Math.max(0.5, part - gap), Math.max(0.5, h - gap))
      left += part
    }
    if (node.hidden.branches > 0) {
      const high = (h * hiddenWeight) / weight
      const wide = (w * Math.min(node.hidden.tokens, node.tokens)) / node.tokens
      context.fillStyle = /** @type {string} */ (inks['more'])
      context.fillRect(x + w, y + h - high, Math.max(2, wide), Math.max(0.5, high - gap))
    }
    if (w < LABEL_PX || h < 13) return
    const shared = children.length + node.hidden.branches > 1 || node.sessions > 1
    const owner = this.hasOwners && node.tenant !== undefined ? `${node.tenant} · ` : ''
    const text = `${owner}${count(node.tokens)}${shared && node.sessions > 0 ? ` · ${plural(node.sessions, 'session')}` : ''}`
    context.fillStyle = /** @type {string} */ (inks['text'])
    context.save()
    context.beginPath()
    context.rect(x, y, w - 4, h)
    context.clip()
    context.fillText(text, x + 5, y + Math.min(h, 400) / 2)
    context.restore()
  }

  /** @param {number} x @param {number} y @returns {boolean} whether another one is at hand */
  hover(x, y) {
    const found = [...this.byId.values()].find(
      (placed) =>
        placed.h > 0 &&
        x >= placed.x &&
        x < placed.x + Math.max(2, placed.w) &&
        y >= placed.y &&
        y < placed.y + placed.h,
    )
    if (found === this.at) return false
    this.at = found
    this.canvas.style.cursor = found === undefined ? '' : 'pointer'
    return true
  }

  /** Into the node at hand; out of it when it is gone into already. */
  enter() {
    this.focus = this.at === this.focus ? this.focus?.parent : this.at
  }

  /** @param {string} key @returns {boolean} whether it meant something */
  key(key) {
    const { at } = this
    const siblings = at?.parent?.children ?? this.top
    const i = at === undefined ? -1 : siblings.indexOf(at)
    /** @type {Record<string, () => Placed | undefined>} */
    const steps = {
      ArrowRight: () => (at === undefined ? this.top[0] : at.children[0]),
      ArrowLeft: () => at?.parent,
      ArrowDown: () => siblings[i + 1],
      ArrowUp: () => siblings[i - 1],
      Home: () => this.top[0],
    }
    const step = steps[key]
    if (step !== undefined) {
      this.at = step() ?? at
      // What is walked to is in sight.
      if (this.at !== undefined && this.at.h === 0) this.focus = this.at.parent
      this.layout()
      if (this.at !== undefined && this.at.h === 0) this.focus = undefined
      return true
    }
    if (key === 'Enter' || key === ' ') this.enter()
    else if (key === 'Escape' && this.focus !== undefined) this.focus = this.focus.parent
    else return false
    return true
  }
}
