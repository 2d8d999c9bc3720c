// The door to kernels/: loads the addon that `npm run build` compiled. Invariant: whatever is wrong with the file (absent,
// of another processor, of older sources) is a reason in a sentence, never a throw; index.ts decides what that means.

import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Kernels } from './contract.js'
import type { NetworkForm } from './network.js'

/** One set of kernels that this processor runs. `instructions` names what it uses, e.g. `avx512f+sse4.2`. */
export interface NativeKernels extends Kernels {
  readonly name: 'native'
  readonly instructions: string
}

/** Every form that runs here, fastest first (never empty), or why there is none. */
export type Addon =
  | {
      readonly forms: readonly NativeKernels[]
      readonly networks: readonly NetworkForm[]
      /** Asks that memory which nobody has touched yet comes in large pages. */
      readonly askLargePages: (buffer: ArrayBuffer) => void
    }
  | { readonly reason: string }

interface ExportedForm {
  readonly name: string
  readonly packRows: Kernels['packRows']
  readonly unpackRows: Kernels['unpackRows']
  readonly crc32c: Kernels['crc32c']
}

const ADDON_PATH = join(packageFolder(), 'build', 'refrain_kernels.node')

/** Loads the addon at `path`. Node keeps a loaded one, so asking again is cheap. */
export function loadAddon(path = ADDON_PATH): Addon {
  if (!existsSync(path)) return { reason: 'the native kernels are not built; npm run build compiles them' }
  let loaded: unknown
  try {
    loaded = createRequire(import.meta.url)(path)
  } catch (error) {
    return { reason: `the native kernels do not load: ${error instanceof Error ? error.message : String(error)}` }
  }
  const { forms, networks, askLargePages } = loaded as Record<string, unknown>
  const areForms = Array.isArray(forms) && forms.length > 0 && forms.every(isForm)
  const areNetworks = Array.isArray(networks) && networks.every(isNetwork)
  if (!areForms || !areNetworks || typeof askLargePages !== 'function') {
    return { reason: 'the native kernels were built from other sources; run npm run build' }
  }
  return { forms: forms.map(native), networks, askLargePages: askLargePages as (buffer: ArrayBuffer) => void }
}

/** The nearest folder above with a package.json: sources, dist/ and what the benches compile lie at different depths. */
function packageFolder(): string {
  let folder = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(folder, 'package.json')) && dirname(folder) !== folder) folder = dirname(folder)
  return folder
}

function isForm(value: unknown): value is ExportedForm {
  const form = value as Partial<ExportedForm> | null
  return (
    typeof form?.name === 'string' &&
    typeof form.packRows === 'function' &&
    typeof form.unpackRows === 'function' &&
    typeof form.crc32c === 'function'
  )
}

function isNetwork(value: unknown): value is NetworkForm {
  const form = value as Partial<NetworkForm> | null
  return typeof form?.name === 'string' && typeof form.Network === 'function'
}

function native(form: ExportedForm): NativeKernels {
  const { packRows, unpackRows, crc32c } = form
  return { name: 'native', instructions: form.name, packRows, unpackRows, crc32c }
}
