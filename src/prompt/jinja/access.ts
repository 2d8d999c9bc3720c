// What `a.b`, `a[b]`, `a[b:c]` and a method call mean. Jinja2's rule: a dot looks for an attribute first and for a key
// second, brackets the other way round. A miss is Undefined, not an error; anything on Undefined is one.

import { STRING_METHODS } from './text.js'
import {
  type Callable,
  ChangeFault,
  type Dict,
  equals,
  isList,
  JsonDict,
  type Kwargs,
  Loop,
  Namespace,
  TemplateFault,
  Tuple,
  typeName,
  type Value,
} from './values.js'

type DictMethod = (dict: Dict, args: readonly Value[], kwargs: Kwargs) => Value

const DICT_METHODS: Readonly<Record<string, DictMethod>> = {
  get: (dict, [key, otherwise], kwargs) =>
    dict.has(key) ? dict.get(key) : (otherwise ?? kwargs.get('default') ?? null),
  items: (dict) => [...dict].map((entry) => Tuple.from(entry)),
  keys: (dict) => [...dict.keys()],
  values: (dict) => [...dict.values()],
  copy: (dict) => new Map(dict),
  pop(dict, [key, otherwise]) {
    const value = dict.has(key) ? dict.get(key) : otherwise
    changeable(dict).delete(key)
    return value
  },
  setdefault(dict, [key, value]) {
    if (!dict.has(key)) changeable(dict).set(key, value ?? null)
    return dict.get(key)
  },
  update(dict, [other], kwargs) {
    const changed = changeable(dict)
    if (other instanceof Map) for (const [key, value] of other) changed.set(key, value)
    for (const [key, value] of kwargs) changed.set(key, value)
    return null
  },
}

// What a client sent is shared between renderings.
function changeable<T extends Dict | readonly Value[]>(value: T): T {
  if (!(value instanceof JsonDict) && !Object.isFrozen(value)) return value
  throw new ChangeFault(`a template cannot change a ${typeName(value)} that it was given`)
}

type ListMethod = (list: Value[], args: readonly Value[]) => Value

const LIST_METHODS: Readonly<Record<string, ListMethod>> = {
  append(list, [item]) {
    changeable(list).push(item)
    return null
  },
  extend(list, [items]) {
    if (isList(items)) changeable(list).push(...items)
    return null
  },
  insert(list, [at, item]) {
    changeable(list).splice(Number(at), 0, item)
    return null
  },
  pop(list, [at]) {
    if (list.length === 0) throw new TemplateFault('pop from empty list')
    return changeable(list).splice(at === undefined ? -1 : Number(at), 1)[0]
  },
  index: (list, [item]) => list.findIndex((other) => equals(item, other)),
  count: (list, [item]) => list.filter((other) => equals(item, other)).length,
  copy: (list) => [...list],
}

/** `object.name` */
export function attribute(object: Value, name: string): Value {
  if (object instanceof Map) return methodOf(object, name) ?? object.get(name)
  if (object instanceof Namespace) return object.values.get(name)
  if (object instanceof Loop) return object.get(name)
  return methodOf(object, name)
}

/** `object[key]` */
export function item(object: Value, key: Value): Value {
  if (object instanceof Map) {
    if (object.has(key)) return object.get(key)
    return typeof key === 'string' ? methodOf(object, key) : undefined
  }
  if (isList(object) || typeof object === 'string') {
    if (typeof key === 'number') return isList(object) ? object.at(key) : charAt(object, key)
    return typeof key === 'string' ? methodOf(object, key) : undefined
  }
  return typeof key === 'string' ? attribute(object, key) : undefined
}

/** Calls `object.name(...)` without making a bound method first. */
export function callMethod(object: Value, name: string, args: readonly Value[], kwargs: Kwargs): Value {
  if (typeof object === 'string' && Object.hasOwn(STRING_METHODS, name))
    return STRING_METHODS[name]!(object, args, kwargs)
  if (object instanceof Map && Object.hasOwn(DICT_METHODS, name)) return DICT_METHODS[name]!(object, args, kwargs)
  const callee = attribute(object, name)
  if (typeof callee === 'function') return callee(args, kwargs)
  throw new TemplateFault(`'${typeName(object)}' has no method '${name}'`)
}

/** `object[start:stop:step]` */
export function slice(object: Value, start: Value, stop: Value, step: Value): Value {
  if (typeof object !== 'string' && !isList(object)) throw new TemplateFault(`'${typeName(object)}' cannot be sliced`)
  const items: readonly Value[] = typeof object === 'string' ? Array.from(object) : object
  const by = bound(step) ?? 1
  if (by === 0) throw new TemplateFault('slice step cannot be zero')
  const size = items.length
  const clamp = (at: number, low: number, high: number): number =>
    Math.min(Math.max(at < 0 ? at + size : at, low), high)
  const from = bound(start)
  const to = bound(stop)
  const picked: Value[] = []
  if (by > 0) {
    const end = to === undefined ? size : clamp(to, 0, size)
    for (let i = from === undefined ? 0 : clamp(from, 0, size); i < end; i += by) picked.push(items[i])
  } else {
    const end = to === undefined ? -1 : clamp(to, -1, size - 1)
    for (let i = from === undefined ? size - 1 : clamp(from, -1, size - 1); i > end; i += by) picked.push(items[i])
  }
  return typeof object === 'string' ? picked.join('') : picked
}

function bound(value: Value): number | undefined {
  if (value === undefined || value === null) return undefined
  if (typeof value !== 'number') throw new TemplateFault(`slice indices must be integers, not ${typeName(value)}`)
  return value
}

function charAt(text: string, at: number): string | undefined {
  return Array.from(text).at(at)
}

function methodOf(object: Value, name: string): Callable | undefined {
  if (object instanceof Map && Object.hasOwn(DICT_METHODS, name)) {
    return (args, kwargs) => DICT_METHODS[name]!(object, args, kwargs)
  }
  if (typeof object === 'string' && Object.hasOwn(STRING_METHODS, name)) {
    return (args, kwargs) => STRING_METHODS[name]!(object, args, kwargs)
  }
  if (isList(object) && Object.hasOwn(LIST_METHODS, name)) return (args) => LIST_METHODS[name]!(object as Value[], args)
  return undefined
}
