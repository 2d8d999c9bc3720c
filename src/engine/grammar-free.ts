// Free text in a grammar: any text without some strings in it, or up to the first of a string. Invariant: as in text that
// nothing constrains, any bytes may stand there, broken characters too. What stands between is decided by the
// automaton that looks for all the strings at once (Aho and Corasick, 1975); a text may end in the middle of a string.
//
//   without "ab":   s0 ::= "" | [^a] s0 | [a] s1      s1 ::= "" | [^ab] s0 | [a] s1

import { byteClass, type GrammarText, literal, type Ranges, union } from './grammar-text.js'

// NUL would end the grammar's text where xgrammar reads it.
const NUL = 0

/**
 * Any text that has none of `without` in it. A rule a state: masks cost the same as for other text, compiling 30 to 50 ms
 * a state over 49k tokens.
 */
export function freeText(text: GrammarText, without: readonly string[]): string {
  const states = automaton(without)
  const names = states.map(() => text.open())
  for (const [state, next] of states.entries()) {
    const bytes = new Map<number, number[]>()
    for (const [byte, to] of next.entries()) {
      if (byte !== NUL && to !== DEAD) bytes.set(to, [...(bytes.get(to) ?? []), byte])
    }
    const steps = Array.from(bytes, ([to, of]) => `${byteClass(rangesOf(of))} ${names[to]}`)
    text.close(names[state]!, ['""', ...steps].join(' | '))
  }
  return names[0]!
}

/**
 * The same language where each of `without` may begin what stands behind it: then a text that has one of them is still
 * possible, as what follows. xgrammar's own automaton compiles at once; a string of `without` leads it into a rule that
 * nothing matches.
 */
export function freeTextBefore(text: GrammarText, without: readonly string[]): string {
  const nothing = text.rule(`${byteClass([[0xff, 0xff]])} ${byteClass([[0xff, 0xff]])}`)
  const tags = without.map((each) => `(${literal(each)}, ${nothing})`)
  return text.rule(`TagDispatch(${tags.join(', ')}, stop_eos=true, loop_after_dispatch=false)`)
}

/** Any text up to the first `stop`, and that. */
export function textUntil(text: GrammarText, stop: string): string {
  return text.rule(`TagDispatch(stop_eos=false, stop_str=(${literal(stop)}), loop_after_dispatch=false)`)
}

const DEAD = -1

/** For each state the next one by byte; `DEAD` where one of the strings would be complete. State 0 is the start. */
function automaton(strings: readonly string[]): readonly Int32Array[] {
  const children: Map<number, number>[] = [new Map()]
  const complete = new Set<number>()
  for (const string of strings) {
    let at = 0
    for (const byte of Buffer.from(string)) {
      let to = children[at]!.get(byte)
      if (to === undefined) {
        to = children.push(new Map()) - 1
        children[at]!.set(byte, to)
      }
      at = to
    }
    complete.add(at)
  }
  const next = children.map(() => new Int32Array(256))
  const fallback = new Int32Array(children.length)
  // Breadth first: the state that a longer beginning falls back to is ready before it.
  const queue = [0]
  for (const state of queue) {
    if (complete.has(fallback[state]!)) complete.add(state)
    for (let byte = 0; byte < 256; byte++) {
      const child = children[state]!.get(byte)
      const otherwise = state === 0 ? 0 : next[fallback[state]!]![byte]!
      next[state]![byte] = child ?? otherwise
      if (child === undefined) continue
      fallback[child] = otherwise
      queue.push(child)
    }
  }
  return compacted(next, complete)
}

/** Without the states that are complete, and those behind them. */
function compacted(next: readonly Int32Array[], complete: ReadonlySet<number>): readonly Int32Array[] {
  const numbers = new Map<number, number>()
  const queue = [0]
  for (const state of queue) {
    if (numbers.has(state)) continue
    numbers.set(state, numbers.size)
    for (const to of next[state]!) if (!complete.has(to) && !numbers.has(to)) queue.push(to)
  }
  return Array.from(numbers.keys(), (state) => next[state]!.map((to) => numbers.get(to) ?? DEAD))
}

function rangesOf(bytes: readonly number[]): Ranges {
  return union(bytes.map((byte) => [byte, byte] as const))
}
