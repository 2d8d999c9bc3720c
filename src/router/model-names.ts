// Which model a client means: a model's own name, or a pattern over the names that clients send. Step 1 of a request's path.
// Invariant: an own name always means itself.

import { RefrainError } from '../core/errors.js'

/** Longer names of models than this match no alias. */
const NAME_CHARS = 256

/**
 * Finds a model by a name; undefined is the first. `aliases`: glob patterns -> own names, the first that matches counts.
 * What it gives throws RefrainError `model_not_found`.
 */
export function modelNamed<M extends { readonly name: string }>(
  models: readonly [M, ...M[]],
  aliases: Readonly<Record<string, string>>,
): (name: string | undefined) => M {
  const byName = new Map(models.map((model) => [model.name, model]))
  const patterns = Object.entries(aliases).map(([pattern, name]) => ({ matches: glob(pattern), name }))
  return (name) => {
    if (name === undefined) return models[0]
    const own = byName.get(name)
    if (own !== undefined) return own
    // Matching is quadratic at worst in the name's length, and the name is the client's.
    const alias = name.length > NAME_CHARS ? undefined : patterns.find(({ matches }) => matches.test(name))
    const model = alias && byName.get(alias.name)
    if (model !== undefined) return model
    throw new RefrainError('model_not_found', `The model '${name.slice(0, 128)}' does not exist`, { param: 'model' })
  }
}

/** `*` is any run of characters, `?` one; letters' case does not matter. */
function glob(pattern: string): RegExp {
  const source = pattern
    .replace(/[\\^$.+()[\]{}|]/g, '\\$&')
    .replaceAll('*', '.*')
    .replaceAll('?', '.')
  return new RegExp(`^${source}$`, 'is')
}
