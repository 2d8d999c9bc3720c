// A family is a folder of kinds; its index.ts re-exports each under the name that the config uses. This file looks a
// name up in such a table, so that an unknown one fails at boot with the list of known ones.

import type { TSchema } from 'typebox'

/** One member of a family: the schema of its options and how it is made. */
export interface Kind<Options, Deps, Product> {
  readonly options: TSchema
  create(options: Options, deps: Deps): Product
}

/** The kind called `name` in `table`; throws a plain Error that lists what there is. `path` is the config path. */
export function kindNamed<K>(table: Readonly<Record<string, K>>, name: string, path: string): K {
  const kind = Object.hasOwn(table, name) ? table[name] : undefined
  if (kind === undefined) {
    throw new Error(`${path}: unknown kind '${name}'; known are ${Object.keys(table).sort().join(', ')}`)
  }
  return kind
}
