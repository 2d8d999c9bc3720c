// Whose blocks are whose: which tenants' chains start from which roots. Roots that salts of requests make are learnt as they
// come, a bounded number of them. Invariant: a root that is not known is nobody's, and no tenant is shown it.

import type { Root } from '../core/block.js'

const ROOTS = 10_000

export class RootBook {
  /** Least recently noted first. */
  readonly #owners = new Map<Root, readonly string[]>()

  note(root: Root, tenant: string): void {
    const owners = this.#owners.get(root) ?? []
    this.#owners.delete(root)
    this.#owners.set(root, owners.includes(tenant) ? owners : [...owners, tenant])
    const [oldest] = this.#owners.keys()
    if (this.#owners.size > ROOTS && oldest !== undefined) this.#owners.delete(oldest)
  }

  of(tenant: string): Root[] {
    return [...this.#owners].filter(([, owners]) => owners.includes(tenant)).map(([root]) => root)
  }

  /** Several where tenants have one salt in common. */
  ownersOf(root: Root): readonly string[] {
    return this.#owners.get(root) ?? []
  }
}
