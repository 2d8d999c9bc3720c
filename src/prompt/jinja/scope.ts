// Where names live while a template runs. A for body, a macro and a call block open a scope; if does not. A name that is
// set in a scope is gone with it, which is why templates use namespace().

import type { Value } from './values.js'

export class Scope {
  readonly parent: Scope | undefined
  #names: Map<string, Value> | undefined

  constructor(parent?: Scope, names?: Map<string, Value>) {
    this.parent = parent
    this.#names = names
  }

  get(name: string): Value {
    for (let scope: Scope | undefined = this; scope !== undefined; scope = scope.parent) {
      const names = scope.#names
      if (names === undefined) continue
      const value = names.get(name)
      if (value !== undefined || names.has(name)) return value
    }
    return undefined
  }

  /** Values of the names that were set in this scope itself. */
  own(): Iterable<Value> {
    return this.#names?.values() ?? []
  }

  set(name: string, value: Value): void {
    this.#names ??= new Map()
    this.#names.set(name, value)
  }
}

/** Follows the iterations of all loops but those in macros and captured blocks, whose place in the output is not known yet. */
export interface Watch {
  /** A body is about to run; `scope` has the loop's variables. */
  enter(scope: Scope): void
  /** It wrote `[start, end)` of the output; `scope` has the names that it set, too. */
  leave(scope: Scope, start: number, end: number): void
}

/** Text that is being rendered. */
export class Output {
  readonly watch: Watch | undefined
  text = ''

  constructor(watch?: Watch) {
    this.watch = watch
  }
}
