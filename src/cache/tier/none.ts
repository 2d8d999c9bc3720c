// The baseline: no slow tier. What memory evicts is gone.

import Type from 'typebox'
import type { Kind } from '../../core/kind.js'
import type { SlowTier, SlowTierDeps } from './tier.js'

export const none: Kind<Readonly<Record<string, never>>, SlowTierDeps, Promise<SlowTier>> = {
  options: Type.Object({}),
  async create() {
    return {
      writable: false,
      readable: false,
      status: () => undefined,
      held: () => [],
      load: async () => 'absent',
      store: async () => false,
      drop: async () => true,
      scrub: async () => true,
      flush: async () => undefined,
      close: async () => undefined,
    }
  },
}
