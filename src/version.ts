// The program's version, as package.json says it.

import { existsSync, readFileSync } from 'node:fs'

export const VERSION = readVersion(new URL('.', import.meta.url))

/** The nearest package.json above: how deep this file lies depends on where the compiler has put it. */
function readVersion(folder: URL): string {
  const file = new URL('package.json', folder)
  if (existsSync(file)) return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version
  const above = new URL('..', folder)
  if (above.href === folder.href) throw new Error('package.json is missing')
  return readVersion(above)
}
