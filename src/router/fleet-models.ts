// The models of a fleet: the union of what its members have, under the names that clients send. Invariant: an own name
// means itself, an alias what the config says, and an unknown name is refused before anything is sent.

import type { Remote } from '../backend/remote/contract.js'
import { RefrainError } from '../core/errors.js'
import { modelNamed } from './model-names.js'

export interface UnionModel {
  readonly name: string
  /** The object of /v1/models as the first member that has it writes it. */
  readonly json: string
  readonly contextLength?: number
}

export function modelsOf(remotes: readonly Remote[]): UnionModel[] {
  const models = new Map<string, UnionModel>()
  for (const { facts, options } of remotes) {
    for (const { id, json, contextLength } of facts?.models ?? []) {
      const names = [id, ...Object.keys(options.models).filter((name) => options.models[name] === id)]
      for (const name of names) {
        if (models.has(name)) continue
        models.set(name, { name, json, ...(contextLength !== undefined && { contextLength }) })
      }
    }
  }
  return [...models.values()]
}

/**
 * The name that a model has at its members; undefined: the first.
 * @throws RefrainError `model_not_found`, or `engine_failed` before any has answered.
 */
export function resolveModel(
  remotes: readonly Remote[],
  aliases: Readonly<Record<string, string>>,
  name: string | undefined,
): string {
  if (name !== undefined) for (const remote of remotes) if (hasModel(remote, name)) return name
  const [first, ...rest] = modelsOf(remotes)
  if (first === undefined) throw new RefrainError('engine_failed', 'no backend has answered yet')
  return modelNamed([first, ...rest], aliases)(name).name
}

function hasModel({ facts, options }: Remote, name: string): boolean {
  if (facts !== undefined) for (const { id } of facts.models) if (id === name) return true
  return Object.hasOwn(options.models, name)
}
