// A chat template, compiled once and rendered many times: parsed by @huggingface/jinja, run by closures with Python's
// meaning of every operation. Stands below template.ts, which knows what a chat is.

import { parseTemplate } from './nodes.js'
import { str } from './print.js'
import { Output, Scope, type Watch } from './scope.js'
import { program } from './statements.js'
import { strftime } from './strftime.js'
import { type Callable, iterate, Namespace, numeric, TemplateFault, type Value } from './values.js'

/** Longest `range()`; the sandbox that Transformers renders in has the same limit. */
const RANGE_LIMIT = 100_000

/** Renders with the given names; @throws TemplateFault with the template's or the interpreter's sentence. */
export type Rendering = (names: Iterable<readonly [string, Value]>, watch?: Watch) => string

/** @throws SyntaxError for what is not a template. */
export function compileTemplate(source: string): Rendering {
  const run = program(parseTemplate(source))
  const globals = new Scope(undefined, new Map(globalNames))
  return (names, watch) => {
    const out = new Output(watch)
    const scope = new Scope(globals, new Map(names))
    try {
      if (run(scope, out) !== 'on') throw new TemplateFault('break or continue outside of a loop')
    } catch (error) {
      if (error instanceof RangeError) throw new TemplateFault(`the template recurses too deep: ${error.message}`)
      throw error
    }
    return out.text
  }
}

const raise: Callable = ([message]) => {
  throw new TemplateFault(str(message))
}

const namespace: Callable = ([source], kwargs) => {
  const values = new Map<string, Value>()
  if (source instanceof Map) for (const [key, value] of source) values.set(str(key), value)
  else for (const entry of iterate(source)) values.set(str(iterate(entry)[0]), iterate(entry)[1])
  for (const [key, value] of kwargs) values.set(key, value)
  return new Namespace(values)
}

const range: Callable = (args) => {
  const [a, b, c] = args.map((value) => Number(numeric(value)))
  const [start, stop, step] = b === undefined ? [0, a ?? 0, 1] : [a ?? 0, b, c ?? 1]
  if (step === 0) throw new TemplateFault('range() arg 3 must not be zero')
  const size = Math.max(0, Math.ceil((stop - start) / step))
  if (!(size <= RANGE_LIMIT)) throw new TemplateFault(`range() of ${size} is over ${RANGE_LIMIT}`)
  return Array.from({ length: size }, (_, i) => start + i * step)
}

const globalNames: readonly (readonly [string, Value])[] = [
  ['true', true],
  ['True', true],
  ['false', false],
  ['False', false],
  ['none', null],
  ['None', null],
  ['range', range],
  ['dict', (_, kwargs) => new Map(kwargs)],
  ['namespace', namespace],
  ['raise_exception', raise],
]

/** `strftime_now(format)` at a fixed time: a name to render with. */
export function strftimeAt(date: Date): Callable {
  return ([format]) => strftime(date, str(format))
}

export { parseJson } from './json.js'
export { json as printJson } from './print.js'
export type { Scope, Watch } from './scope.js'
export { ChangeFault, Loop, Namespace, SharedDict, TemplateFault, type Value } from './values.js'
