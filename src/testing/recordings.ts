// The requests that real agent clients sent, recorded in ../shared/fixtures/agent-clients beside this repository. Tests that
// need them are skipped where they are absent. Nothing of them is copied in here.

import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const FOLDER = fileURLToPath(new URL('../../../shared/fixtures/agent-clients', import.meta.url))

/** False: the recordings do not lie beside this repository. */
export const hasRecordings = existsSync(FOLDER)

export interface Recording {
  /** `codex/001-main.json` */
  readonly name: string
  readonly client: string
  readonly run: string
  readonly class: string
  readonly prompt: number
  readonly method: string
  readonly path: string
  /** As sent; see `lowerHeaders`. */
  readonly headers: Readonly<Record<string, string>>
  readonly body: Readonly<Record<string, unknown>>
  readonly reply_status: number
  readonly reply_fault: string | null
  /** The mock's answer, a whole event stream or a body. */
  readonly reply_body: unknown
}

/** All recordings of `client` (a folder), or of all clients, in the order of their numbers. */
export function recordings(client?: string): Recording[] {
  if (!hasRecordings) return []
  const clients =
    client === undefined
      ? readdirSync(FOLDER, { withFileTypes: true })
          .filter((entry) => entry.isDirectory())
          .map(({ name }) => name)
      : [client]
  return clients.sort().flatMap((folder) =>
    readdirSync(join(FOLDER, folder))
      .filter((name) => /^\d+-.*\.json$/.test(name))
      .sort()
      .map((name) => {
        const recording = JSON.parse(readFileSync(join(FOLDER, folder, name), 'utf8')) as Recording
        return { ...recording, name: `${folder}/${name}`, client: folder }
      }),
  )
}

/** Headers as node gives them to a server: names in lower case. */
export function lowerHeaders({ headers }: Recording): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}
