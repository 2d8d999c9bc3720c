// Imported models that all tests of a run share: to import real weights takes seconds and a hundred megabytes. For tests
// that don't look at an import itself. Workers may import the same file at once: an import bears that.

import { mkdir, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import { inject } from 'vitest'
import type {} from './run-folder.js'

/** Makes `dataDir`, a folder that is not there yet and whose models are those of this run. Resolves with its path. */
export async function sharesImports(dataDir: string): Promise<string> {
  const models = join(inject('runFolder'), 'models')
  await mkdir(models, { recursive: true })
  await mkdir(dataDir, { recursive: true })
  await symlink(models, join(dataDir, 'models'))
  return dataDir
}
