// Where each message stands in the text that a template rendered. The interpreter tells what every iteration of every loop
// wrote; one that was about a message's own value is that message's place. Invariant: spans are in the order of the text
// and do not overlap, and nothing here changes what is rendered.

import type { MessageSpan } from './contract.js'
import { Loop, Namespace, type Scope, type Value, type Watch } from './jinja/index.js'

/** `direct`: loops write to the output. `gathered`: they write to a namespace that is printed at the end. */
export type Writing = 'direct' | 'gathered'

export interface SpanWatch extends Watch {
  /** Of the rendered `text`. */
  spans(text: string): MessageSpan[]
}

/** A watch for one rendering of `values`; `origins[i]` is the message that `values[i]` was made from. */
export function watchSpans(
  values: readonly Value[],
  origins: readonly (number | undefined)[],
  writing: Writing,
): SpanWatch {
  const messages = new Map<Value, number>()
  for (const [i, value] of values.entries()) {
    const origin = origins[i]
    if (origin !== undefined) messages.set(value, origin)
  }
  return writing === 'direct' ? watchOutput(messages) : watchNamespaces(messages)
}

function watchOutput(messages: ReadonlyMap<Value, number>): SpanWatch {
  const found: MessageSpan[] = []
  return {
    enter: () => undefined,
    leave(scope, start, end) {
      const message = end > start ? messageOf(scope, messages) : undefined
      if (message !== undefined) found.push({ message, start, end })
    },
    spans: () => disjoint(found),
  }
}

type Lengths = ReadonlyMap<Namespace, ReadonlyMap<string, number>>

function watchNamespaces(messages: ReadonlyMap<Value, number>): SpanWatch {
  const before: Lengths[] = []
  const found = new Map<Namespace, Map<string, MessageSpan[]>>()
  return {
    enter(scope) {
      before.push(lengths(scope))
    },
    leave(scope) {
      const earlier = before.pop()
      const message = messageOf(scope, messages)
      if (message === undefined || earlier === undefined) return
      for (const [namespace, names] of earlier) {
        for (const [name, start] of names) {
          const text = namespace.values.get(name)
          if (typeof text !== 'string' || text.length <= start) continue
          const byName = found.get(namespace) ?? new Map<string, MessageSpan[]>()
          found.set(namespace, byName.set(name, [...(byName.get(name) ?? []), { message, start, end: text.length }]))
        }
      }
    },
    spans(text) {
      for (const [namespace, names] of found) {
        for (const [name, spans] of names) {
          const base = text.indexOf(String(namespace.values.get(name)))
          if (base < 0) continue
          return disjoint(spans).map(({ message, start, end }) => ({ message, start: start + base, end: end + base }))
        }
      }
      return []
    },
  }
}

function lengths(scope: Scope): Lengths {
  const found = new Map<Namespace, Map<string, number>>()
  for (let at: Scope | undefined = scope; at !== undefined; at = at.parent) {
    for (const value of at.own()) {
      if (!(value instanceof Namespace)) continue
      const texts = [...value.values].filter(([, text]) => typeof text === 'string')
      found.set(value, new Map(texts.map(([name, text]) => [name, (text as string).length])))
    }
  }
  return found
}

/** The message that an iteration is about: its item, or where the loop counts positions the one that its body named. */
function messageOf(scope: Scope, messages: ReadonlyMap<Value, number>): number | undefined {
  let counts: boolean | undefined
  for (const value of scope.own()) {
    if (value instanceof Loop) continue
    const message = value instanceof Map ? messages.get(value) : undefined
    if (message !== undefined) return message
    counts ??= typeof value === 'number'
    if (!counts) return undefined
  }
  return undefined
}

/**
 * `found`, inner iterations before the one that they ran in, as spans side by side: an outer one ends where the first
 * other message inside of it begins.
 */
function disjoint(found: readonly MessageSpan[]): MessageSpan[] {
  const spans: MessageSpan[] = []
  for (const span of found) {
    const inner: MessageSpan[] = []
    while (spans.length > 0 && spans.at(-1)!.start >= span.start) inner.unshift(spans.pop()!)
    const others = inner.filter(({ message }) => message !== span.message)
    const [first, last] = [others[0], others.at(-1)]
    if (first === undefined || last === undefined) spans.push(span)
    else if (first.start > span.start) spans.push({ ...span, end: first.start }, ...others)
    else spans.push(...others, ...(last.end < span.end ? [{ ...span, start: last.end }] : []))
  }
  const longest = new Map<number, MessageSpan>()
  for (const span of spans) {
    const known = longest.get(span.message)
    if (known === undefined || span.end - span.start > known.end - known.start) longest.set(span.message, span)
  }
  return longest.size === spans.length ? spans : spans.filter((span) => longest.get(span.message) === span)
}
