// The program's version, as package.json says it.

import { readFileSync } from 'node:fs'

const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8')

export const VERSION = (JSON.parse(text) as { version: string }).version
