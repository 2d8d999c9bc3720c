// The values of a chat template, with Python's meaning: templates are written for Jinja2, and a prompt that differs in
// one space or one digit is another prompt to the model and to the cache. Numbers from a client's JSON keep the spelling
// that they came in; everything prints as Python's str(), repr() and json.dumps() print it.

/** A value inside a template; undefined is Jinja's Undefined, null is None, a number is an int. */
export type Value =
  | undefined
  | null
  | boolean
  | number
  | bigint
  | string
  | Float
  | readonly Value[]
  | Dict
  | Namespace
  | Loop
  | Callable

/** Keys in the order in which they were first set; strings and ints. */
export type Dict = Map<Value, Value>
export type Kwargs = ReadonlyMap<string, Value>
export type Callable = (args: readonly Value[], kwargs: Kwargs) => Value

export const NO_KWARGS: Kwargs = new Map()

/** A fault of the template or of what it was given; the message is a sentence for the caller. */
export class TemplateFault extends Error {}

/** A template tried to change what it was given, which is shared between renderings. */
export class ChangeFault extends TemplateFault {}

/** A float; `spelling` is how the client wrote it. */
export class Float {
  constructor(
    readonly value: number,
    readonly spelling?: string,
  ) {}
}

/**
 * A dictionary from a client's JSON. It may be shared between renderings, so a template cannot change it; neither can it
 * change a list from there, which is frozen.
 */
export class JsonDict extends Map<Value, Value> {
  /** Texts that the outermost dictionary was printed as, by style. */
  printed: Map<string, string> | undefined
}

/** A dictionary that is the very same object wherever its content is the same; loops remember what they wrote for it. */
export class SharedDict extends JsonDict {}

export class Tuple extends Array<Value> {}

/** `namespace(...)`: the one thing whose attributes a template may set. */
export class Namespace {
  constructor(readonly values: Map<string, Value>) {}
}

/** `loop` inside a for. */
export class Loop {
  constructor(
    readonly items: readonly Value[],
    public index0: number,
    readonly depth: number,
  ) {}

  get(name: string): Value {
    const { items, index0 } = this
    switch (name) {
      case 'index':
        return index0 + 1
      case 'index0':
        return index0
      case 'revindex':
        return items.length - index0
      case 'revindex0':
        return items.length - index0 - 1
      case 'first':
        return index0 === 0
      case 'last':
        return index0 === items.length - 1
      case 'length':
        return items.length
      case 'previtem':
        return items[index0 - 1]
      case 'nextitem':
        return items[index0 + 1]
      case 'depth':
        return this.depth
      case 'depth0':
        return this.depth - 1
      case 'cycle':
        return (args) => args[index0 % args.length]
      default:
        return undefined
    }
  }
}

export function isList(value: Value): value is readonly Value[] {
  return Array.isArray(value)
}

/** Python's name of the type, for sentences. */
export function typeName(value: Value): string {
  if (value === undefined) return 'Undefined'
  if (value === null) return 'NoneType'
  if (typeof value === 'boolean') return 'bool'
  if (typeof value === 'number' || typeof value === 'bigint') return 'int'
  if (typeof value === 'string') return 'str'
  if (value instanceof Float) return 'float'
  if (value instanceof Tuple) return 'tuple'
  if (isList(value)) return 'list'
  if (value instanceof Map) return 'dict'
  return typeof value === 'function' ? 'function' : value.constructor.name
}

export function truthy(value: Value): boolean {
  if (typeof value === 'object' && value !== null) {
    if (isList(value)) return value.length > 0
    if (value instanceof Map) return value.size > 0
    if (value instanceof Float) return value.value !== 0
    return true
  }
  return Boolean(value)
}

/** The number of an int, a float or a bool; undefined for anything else. */
export function numeric(value: Value): number | undefined {
  if (typeof value === 'number') return value
  if (value instanceof Float) return value.value
  if (typeof value === 'boolean' || typeof value === 'bigint') return Number(value)
  return undefined
}

export function equals(a: Value, b: Value): boolean {
  if (a === b) return true
  const [x, y] = [numeric(a), numeric(b)]
  if (x !== undefined || y !== undefined) return x === y
  if (isList(a) && isList(b)) return a.length === b.length && a.every((item, i) => equals(item, b[i]))
  if (a instanceof Map && b instanceof Map) {
    return a.size === b.size && [...a].every(([key, value]) => b.has(key) && equals(value, b.get(key)))
  }
  return false
}

/** Negative, zero or positive; @throws TemplateFault for values that Python can't order. */
export function compare(a: Value, b: Value): number {
  const [x, y] = [numeric(a), numeric(b)]
  if (x !== undefined && y !== undefined) return x - y
  if (typeof a === 'string' && typeof b === 'string') return compareText(a, b)
  if (isList(a) && isList(b)) {
    for (let i = 0; i < Math.min(a.length, b.length); i++) {
      if (!equals(a[i], b[i])) return compare(a[i], b[i])
    }
    return a.length - b.length
  }
  throw new TemplateFault(`'${typeName(a)}' and '${typeName(b)}' cannot be ordered`)
}

/** By code points, as Python orders; UTF-16 units order astral characters elsewhere. */
export function compareText(a: string, b: string): number {
  for (let i = 0; i < a.length && i < b.length; i++) {
    if (a.charCodeAt(i) === b.charCodeAt(i)) continue
    return (a.codePointAt(i) ?? 0) - (b.codePointAt(i) ?? 0)
  }
  return a.length - b.length
}

/** Number of characters (code points), items or keys. */
export function lengthOf(value: Value): number {
  if (typeof value === 'string') {
    let length = value.length
    for (let i = 0; i < value.length - 1; i++) if (value.codePointAt(i)! > 0xffff) length--
    return length
  }
  if (isList(value)) return value.length
  if (value instanceof Map) return value.size
  if (value === undefined) return 0
  throw new TemplateFault(`object of type '${typeName(value)}' has no len()`)
}

/** What a for loop or a filter goes through. */
export function iterate(value: Value): readonly Value[] {
  if (isList(value)) return value
  if (value instanceof Map) return [...value.keys()]
  if (typeof value === 'string') return Array.from(value)
  if (value === undefined) return []
  throw new TemplateFault(`'${typeName(value)}' object is not iterable`)
}
