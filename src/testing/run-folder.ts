// A folder that all files of one run of the tests share, in every worker: what one of them imported, others find (see
// shared-imports.ts). It goes with the run, so that no run sees what another importer wrote. vitest calls these itself.

import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestProject } from 'vitest/node'

declare module 'vitest' {
  export interface ProvidedContext {
    runFolder: string
  }
}

let folder: string | undefined

export async function setup(project: TestProject): Promise<void> {
  folder = await mkdtemp(join(tmpdir(), 'refrain-run-'))
  project.provide('runFolder', folder)
}

export async function teardown(): Promise<void> {
  if (folder !== undefined) await rm(folder, { recursive: true, force: true })
}
