// The chat templates of real models, where ../shared/tools/get-templates has put them; tests skip without them.

import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'

const PEERS = join(homedir(), '.cache', 'refrain-peers')

/** Sources by name, without the ending; undefined: they are not here. */
export function realTemplates(): ReadonlyMap<string, string> | undefined {
  if (!existsSync(PEERS)) return undefined
  const folder = readdirSync(PEERS)
    .filter((name) => name.startsWith('llama-models-'))
    .map((name) => join(PEERS, name, 'templates'))
    .find((path) => existsSync(path))
  if (folder === undefined) return undefined
  const files = readdirSync(folder).filter((name) => name.endsWith('.jinja'))
  return new Map(files.map((name) => [name.slice(0, -'.jinja'.length), readFileSync(join(folder, name), 'utf8')]))
}
