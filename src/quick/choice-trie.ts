// The tokens of a question's choices as a tree, so that every token which choices share is computed once, and those that
// nothing follows are not computed at all. Invariant: the paths' tokens are the choices' tokens, in their order.

import type { ChoiceEdge, ChoiceTrie } from '../core/quick.js'

/** The tree over `choices`, each at least one token long. @throws Error where one begins with all of another's tokens. */
export function choiceTrie(choices: readonly Int32Array[]): ChoiceTrie {
  const ids: number[] = []
  const parents: number[] = []
  const nodes = new Map<string, number>()
  const ends = new Set<string>()
  const paths = choices.map((tokens) => {
    let node = -1
    const path: ChoiceEdge[] = []
    for (const [i, id] of tokens.entries()) {
      path.push({ node, id })
      if (i === tokens.length - 1) continue
      const edge = `${node} ${id}`
      let next = nodes.get(edge)
      if (next === undefined) {
        next = ids.push(id) - 1
        parents.push(node)
        nodes.set(edge, next)
      }
      node = next
    }
    const last = path.at(-1)
    if (last === undefined) throw new Error('a choice has no tokens')
    ends.add(`${last.node} ${last.id}`)
    return path
  })
  if (ends.size < choices.length || [...ends].some((edge) => nodes.has(edge))) {
    throw new Error('a choice begins with the tokens of another')
  }
  return { ids, parents, paths }
}
