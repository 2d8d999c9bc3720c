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

  set(name: string, value: Value): void {
    this.#names ??= new Map()
    this.#names.set(name, value)
  }
}

/** Text that is being rendered. */
export class Output {
  text = ''
}
