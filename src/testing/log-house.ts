// The session log's thread built from the sources, as Node 20 runs no TypeScript and dist/ may be older; and logs over it in
// folders of their own. Built below build/, from where the thread finds its packages.

import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { build } from 'vite'
import type { SessionLog } from '../session/log/contract.js'
import { openSqliteLog, type SqliteLogOptions } from '../session/log/sqlite.js'
import { HOUSE_LIMITS } from './log-limits.js'

export interface LogHouse {
  /** Of the built sqlite-worker.js. */
  readonly workerUrl: URL
  /** Of what else was built, by its name without the ending. */
  program(name: string): string
  folder(): string
  open(folder: string, more?: Partial<SqliteLogOptions>): Promise<SessionLog>
  /** Removes all of it. */
  close(): void
}

const ROOT = fileURLToPath(new URL('../..', import.meta.url))

/** `programs`: files of testing/ that are built with it. */
export async function openLogHouse(programs: readonly string[] = []): Promise<LogHouse> {
  mkdirSync(join(ROOT, 'build'), { recursive: true })
  const built = mkdtempSync(join(ROOT, 'build', 'session-log-'))
  const root = mkdtempSync(join(tmpdir(), 'refrain-log-'))
  const inputs = programs.map((name) => [name, join(ROOT, 'src', 'testing', `${name}.ts`)])
  await build({
    ...{ configFile: false, logLevel: 'silent', root: ROOT },
    build: {
      ...{ ssr: true, outDir: built, emptyOutDir: true, target: 'node20' },
      rollupOptions: {
        input: { worker: join(ROOT, 'src', 'session', 'log', 'sqlite-worker.ts'), ...Object.fromEntries(inputs) },
        output: { entryFileNames: '[name].mjs', chunkFileNames: '[name]-[hash].mjs' },
      },
    },
  })
  const workerUrl = pathToFileURL(join(built, 'worker.mjs'))
  let count = 0
  return {
    workerUrl,
    program: (name) => join(built, `${name}.mjs`),
    folder: () => join(root, String(count++)),
    open: (folder, more) =>
      openSqliteLog({
        ...{ workerUrl, folder, durability: 'process', keys: { oldKeyFiles: [] } },
        ...{ maxBytes: 2 ** 30, limits: HOUSE_LIMITS, ...more },
      }),
    close: () => {
      for (const each of [built, root]) rmSync(each, { recursive: true, force: true })
    },
  }
}
