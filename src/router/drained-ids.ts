// Ids of members that an operator drained, in one small file of the data folder, so that a router that is started anew sends
// them nothing either. Invariant: what `add` and `remove` changed is on the disk when they return, whole or as it was
// before; a file that cannot be read or written is told and keeps nothing from running.

import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs'
import { dirname } from 'node:path'
import { note } from '../core/signals.js'

const VERSION = 1

export class DrainedIds {
  readonly #path: string
  readonly #ids: Set<string>

  constructor(path: string) {
    this.#path = path
    this.#ids = new Set(read(path))
  }

  has(id: string): boolean {
    return this.#ids.has(id)
  }

  add(id: string): void {
    if (this.#ids.has(id)) return
    this.#ids.add(id)
    this.#write()
  }

  remove(id: string): void {
    if (this.#ids.delete(id)) this.#write()
  }

  /** At once: operators do it now and then, and take the answer for done. */
  #write(): void {
    try {
      mkdirSync(dirname(this.#path), { recursive: true })
      const file = openSync(`${this.#path}.new`, 'w', 0o600)
      try {
        writeSync(file, JSON.stringify({ version: VERSION, drained: [...this.#ids] }))
        fsyncSync(file)
      } finally {
        closeSync(file)
      }
      renameSync(`${this.#path}.new`, this.#path)
    } catch (error) {
      note.publish({ level: 'warn', text: `${this.#path} cannot be written: ${(error as Error).message}` })
    }
  }
}

function read(path: string): string[] {
  try {
    const { version, drained } = (JSON.parse(readFileSync(path, 'utf8')) ?? {}) as Record<string, unknown>
    return version === VERSION && Array.isArray(drained) ? drained.filter((id) => typeof id === 'string') : []
  } catch (error) {
    if ((error as { code?: string }).code !== 'ENOENT') {
      note.publish({ level: 'warn', text: `${path} is not read: ${(error as Error).message}` })
    }
    return []
  }
}
