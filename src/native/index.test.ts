// The choice between native and fallback, and the one note about it.

import { expect, test, vi } from 'vitest'
import { type Note, note } from '../core/signals.js'
import { loadAddon } from './addon.js'
import { chooseKernels, kernels } from './index.js'

const addon = loadAddon()

test('auto takes the native kernels exactly when they load', () => {
  expect(kernels.name).toBe('forms' in addon ? 'native' : 'fallback')
  expect(chooseKernels('auto').name).toBe(kernels.name)
})

test('the fallback can be asked for', () => {
  expect(chooseKernels('fallback').name).toBe('fallback')
})

test('native is given or refused with the reason', () => {
  if ('forms' in addon) expect(chooseKernels('native').name).toBe('native')
  else expect(() => chooseKernels('native')).toThrow(addon.reason)
})

test('the choice is announced once', async () => {
  // As a process has it that has announced nothing.
  vi.resetModules()
  const { announceKernels } = await import('./index.js')
  const heard: Note[] = []
  const leave = note.subscribe((payload) => heard.push(payload))
  announceKernels()
  announceKernels()
  leave()
  expect(heard).toHaveLength(1)
  expect(heard[0]!.text).toContain(kernels.name)
  expect(heard[0]!.level).toBe('forms' in addon ? 'info' : 'warn')
})
