// What a summary must not lose, taken from the events that it covers: paths, ids, open tasks, and the files used last. Pure.
// Invariant: only what users said, what calls were made with and what answers say counts; a result can be asked for again,
// and names thousands.

import type { EventBody, SessionEvent } from '../log/event.js'

export interface Facts {
  /** Files that calls were made with, the latest first; five at most. */
  readonly files: readonly string[]
  /** Tasks that nobody ticked off. */
  readonly tasks: readonly string[]
  /** Locators of stored results. */
  readonly locators: readonly string[]
  /** Paths, URLs and ids, the latest first. */
  readonly names: readonly string[]
}

const FILES = 5
/** Longer lines are no tasks, longer words no ids. */
const TASK_CHARS = 200

export function factsOf(events: readonly SessionEvent[]): Facts {
  const tasks = new Tasks()
  const files: string[] = []
  const locators: string[] = []
  const names: string[] = []
  const addAll = (list: string[], values: Iterable<string>) => {
    for (const value of values) list.push(value)
  }
  for (const { body } of events) {
    tasks.read(body)
    if (body.kind === 'tool_call') {
      for (const { key, text } of stringsIn(body.arguments)) {
        if (isFile(key, text)) files.push(text)
        addAll(names, isFile(key, text) ? [text] : namesIn(text))
      }
    } else if (body.kind === 'user' || body.kind === 'assistant') addAll(names, namesIn(body.content))
    else if (body.kind === 'tool_result' && body.spilled !== undefined) locators.push(body.spilled.locator)
  }
  return {
    files: latest(files).slice(0, FILES),
    tasks: tasks.open(),
    locators: latest(locators),
    names: latest(names),
  }
}

/** Each once, the last first. */
function latest(values: readonly string[]): string[] {
  return [...new Set(values.toReversed())]
}

// --- names ----------------------------------------------------------------------------------------------------------

const URL = /https?:\/\/[^\s<>"'`)\]}]+/g
/** Rooted or relative (`/a/b`, `./a`, `~/a`), or with a slash and an ending (`src/a.ts`). */
const PATH =
  /(?<![\w/.~:-])(?:(?:~|\.{1,2})?\/(?:[\w@+.-]+\/)*[\w@+.-]*\w|(?:[\w@+.-]+\/)+[\w@+-]+(?:\.[\w-]+)*\.\w{1,8})/g
/** A word of letters and digits, as ids are. */
const ID = /(?<![\w/.-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[A-Za-z0-9][\w-]{4,63}(?![\w/-])/g
const NUMBER = /(?<![\w.-])#?\d{5,20}(?![\w.-])/g
/** Words that look like ids and are none. */
const NO_ID =
  /^(?:utf-?\d+|sha-?\d+|\d{4}-\d{2}-\d{2}\w*|\d+(?:px|ms|kb|mb|gb|st|nd|rd|th|min|sec|hours?|days?)|python\d|[a-z]+-\d{1,2})$/i

/** Each once, in the order in which they stand. */
export function namesIn(text: string): readonly string[] {
  const found = new Set<string>()
  const rest = text.replace(URL, (url) => {
    found.add(url.replace(/[.,;:!?]+$/, ''))
    return ' '
  })
  for (const [path] of rest.matchAll(PATH)) if (path.length > 2) found.add(path)
  for (const [id] of rest.matchAll(ID)) if (!NO_ID.test(id)) found.add(id)
  for (const [number] of rest.matchAll(NUMBER)) found.add(number)
  return [...found]
}

interface Named {
  readonly key: string
  readonly text: string
}

/** Depth and count of what is looked at in one call's arguments. */
const MAX_DEPTH = 8
const MAX_STRINGS = 200

/** Strings and numbers in JSON, each with the key it stands under. */
function stringsIn(json: string): readonly Named[] {
  const found: Named[] = []
  const walk = (value: unknown, key: string, depth: number): void => {
    if (found.length >= MAX_STRINGS || depth > MAX_DEPTH) return
    if (typeof value === 'string') found.push({ key, text: value })
    else if (typeof value === 'number') found.push({ key, text: String(value) })
    else if (Array.isArray(value)) for (const item of value) walk(item, key, depth + 1)
    else if (typeof value === 'object' && value !== null) {
      for (const [name, item] of Object.entries(value)) walk(item, name, depth + 1)
    }
  }
  walk(parsed(json), '', 0)
  return found
}

/** What a model writes is not always JSON. */
function parsed(json: string): unknown {
  try {
    return JSON.parse(json)
  } catch (error) {
    if (error instanceof SyntaxError) return json
    throw error
  }
}

const FILE_KEY = /^(?:file|path|filename|notebook)|(?:file|path|filename)$/i

function isFile(key: string, text: string): boolean {
  return FILE_KEY.test(key) && text !== '' && text.length <= 400 && !text.includes('\n')
}

// --- tasks ----------------------------------------------------------------------------------------------------------

const TICK = /^\s*(?:[-*+]|\d+[.)])\s*\[([ xX])\]\s+(.+)$/gm
const DONE: ReadonlySet<string> = new Set(['completed', 'complete', 'done', 'cancelled', 'canceled', 'closed'])
const TASK_KEYS = ['content', 'title', 'task', 'step', 'text', 'description']

/** Lists of tasks as they are told: lines with boxes, and the lists that planning tools are called with. */
class Tasks {
  /** By their words -> whether it is open. */
  readonly #ticked = new Map<string, { readonly task: string; readonly isOpen: boolean }>()
  /** By tool: its last list. */
  readonly #planned = new Map<string, readonly string[]>()

  read(body: EventBody): void {
    if (body.kind === 'tool_call') {
      const list = plannedIn(parsed(body.arguments))
      if (list !== undefined) this.#planned.set(body.name, list)
    } else if (body.kind === 'user' || body.kind === 'assistant') {
      for (const [, box, words] of body.content.matchAll(TICK)) {
        const task = (words as string).trim().slice(0, TASK_CHARS)
        this.#ticked.set(plain(task), { task, isOpen: box === ' ' })
      }
    }
  }

  open(): readonly string[] {
    const ticked = [...this.#ticked.values()].flatMap(({ task, isOpen }) => (isOpen ? [task] : []))
    return [...new Set([...ticked, ...[...this.#planned.values()].flat()])]
  }
}

/** Open tasks of a planning tool's arguments; undefined: they hold no list of tasks. */
function plannedIn(args: unknown): readonly string[] | undefined {
  if (typeof args !== 'object' || args === null) return undefined
  for (const list of Object.values(args)) {
    if (!Array.isArray(list) || list.length === 0) continue
    const tasks = list.map(taskOf)
    if (tasks.some((task) => task === undefined)) continue
    return (tasks as { task: string; isOpen: boolean }[]).flatMap(({ task, isOpen }) => (isOpen ? [task] : []))
  }
  return undefined
}

function taskOf(item: unknown): { readonly task: string; readonly isOpen: boolean } | undefined {
  if (typeof item !== 'object' || item === null || !('status' in item) || typeof item.status !== 'string')
    return undefined
  const words = TASK_KEYS.map((key) => (item as Record<string, unknown>)[key]).find(
    (value) => typeof value === 'string',
  )
  if (typeof words !== 'string') return undefined
  const task = words.replace(/\s+/g, ' ').trim().slice(0, TASK_CHARS)
  return { task, isOpen: !DONE.has(item.status.toLowerCase()) }
}

/** Words only, for comparing. */
export function plain(text: string): string {
  return text
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, ' ')
    .trim()
}
