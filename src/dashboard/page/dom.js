// Elements from data. Invariant: text becomes text nodes and nothing that was sent is ever read as markup; prompts, tools'
// names and sessions' keys are strangers' words.

/**
 * @typedef {string | number | Node | undefined | false | null} Child
 * @typedef {{ class?: string, on?: Record<string, (event: any) => void>, data?: Record<string, string>, text?: string,
 *   style?: Record<string, string>, [attribute: string]: any }} Props
 */

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Props} [props] `on`: listeners; `data`: dataset; `style`: properties; else attributes, left out where undefined or false
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function el(tag, props = {}, ...children) {
  const element = document.createElement(tag)
  const { class: name, on = {}, data = {}, style = {}, text, ...attributes } = props
  if (name !== undefined) element.className = name
  if (text !== undefined) element.textContent = text
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener)
  for (const [key, value] of Object.entries(data)) element.dataset[key] = value
  for (const [key, value] of Object.entries(style)) element.style.setProperty(key, value)
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : String(value))
  }
  append(element, children)
  return element
}

/**
 * @param {Element} element
 * @param {readonly Child[]} children
 */
function append(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue
    element.append(child instanceof Node ? child : String(child))
  }
}

/**
 * Puts `children` in place of what is there.
 * @param {Element} element
 * @param {...Child} children
 */
export function fill(element, ...children) {
  element.replaceChildren()
  append(element, children)
}

/**
 * Sets the text where it is another one: an equal one would be laid out again.
 * @param {Element} element
 * @param {string} text
 */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text
}

/**
 * A card with a heading, something at its right, and a body.
 * @param {{ id: string, title: string, hint?: string, aside?: Node }} options
 * @param {...Child} children
 */
export function card({ id, title, hint, aside }, ...children) {
  const heading = el('h2', { id: `${id}-title`, text: title })
  return el(
    'section',
    { class: `card ${id}`, id, 'aria-labelledby': `${id}-title`, tabindex: -1 },
    el('div', { class: 'card-head' }, heading, hint && el('p', { class: 'hint', text: hint }), aside),
    ...children,
  )
}

/**
 * What is said where there is nothing to show: what it means, and what to do.
 * @param {string} what
 * @param {string} [todo]
 * @param {string} [code]
 */
export function empty(what, todo, code) {
  return el(
    'div',
    { class: 'empty' },
    el('p', { class: 'empty-what', text: what }),
    todo !== undefined && el('p', { text: todo }),
    code !== undefined && el('pre', { tabindex: 0 }, el('code', { text: code })),
  )
}
