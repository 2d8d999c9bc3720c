// Picks the kernels of this process: the native ones where they load, else their twin in TypeScript. Invariant: both give
// the same bits, so the choice changes speed alone. Cache and engine import `kernels`; main announces the choice once.

import { note } from '../core/signals.js'
import { loadAddon } from './addon.js'
import type { Kernels } from './contract.js'
import { fallback } from './fallback.js'

export type { Kernels } from './contract.js'

/**
 * The kernels by wish; `auto` takes the native ones when they load.
 * @throws Error with the reason when `native` is asked for and does not load.
 */
export function chooseKernels(which: 'auto' | 'native' | 'fallback'): Kernels {
  if (which === 'fallback') return fallback
  const addon = loadAddon()
  if ('forms' in addon) return addon.forms[0]!
  if (which === 'native') throw new Error(addon.reason)
  return fallback
}

/** What `auto` gives on this machine. */
export const kernels: Kernels = chooseKernels('auto')

let announced = false

/**
 * Publishes one note that says which kernels `which` gives, and why when it is the fallback. The composition root calls it
 * once the log listens: at import time nobody does yet. Later calls say nothing.
 */
export function announceKernels(which: 'auto' | 'native' | 'fallback' = 'auto'): void {
  if (announced) return
  announced = true
  const addon = which === 'fallback' ? { reason: 'the config asks for it' } : loadAddon()
  if ('forms' in addon) note.publish({ level: 'info', text: `kernels: native (${addon.forms[0]!.instructions})` })
  else note.publish({ level: 'warn', text: `kernels: TypeScript fallback; ${addon.reason}` })
}
