// What is known of the files in which llama-servers keep sessions: whose, how many tokens, of which model. Kept in one JSON
// file of the data folder. Invariant: a name belongs to one session of one member at a time, and names are reused, because
// that server deletes no files; a list that is lost or unreadable costs a prefill.

import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { mkdir, rename, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { note } from '../../core/signals.js'

export interface SlotRecord {
  readonly member: string
  readonly key: string
  /** Bare name below the server's --slot-save-path. */
  readonly file: string
  readonly tokens: number
  /** Of the model, its context and its server's build. */
  readonly fingerprint: string
  /** Hash of the session's last prompt, as a chain of segments. */
  readonly tail: string
}

const VERSION = 1

export class SlotRecords {
  readonly #path: string | undefined
  readonly #perMember: number
  /** By member and key; least recently used first. */
  readonly #records = new Map<string, SlotRecord>()
  #writing: Promise<void> = Promise.resolve()
  #isDirty = false

  /** `path` undefined: they do not outlive the process. `perMember`: files that a member's server may hold of ours. */
  constructor(path: string | undefined, perMember: number) {
    this.#path = path
    this.#perMember = perMember
    for (const record of path === undefined ? [] : read(path)) this.#records.set(idOf(record), record)
  }

  get(member: string, key: string): SlotRecord | undefined {
    return this.#records.get(idOf({ member, key }))
  }

  /** Of the session that a prompt with these hashes goes on from. */
  following(member: string, hashes: readonly string[]): SlotRecord | undefined {
    const known = new Set(hashes)
    const all = [...this.#records.values()].filter((record) => record.member === member && known.has(record.tail))
    return all.reduce<SlotRecord | undefined>(
      (best, each) => (best === undefined || each.tokens > best.tokens ? each : best),
      undefined,
    )
  }

  /** A name to save `key` under; where there are as many as may be, that of the session that was used longest ago. */
  nameFor(member: string, key: string): string {
    const own = this.get(member, key)
    if (own !== undefined) return own.file
    const used = [...this.#records.values()].filter((record) => record.member === member)
    const [oldest] = used
    if (used.length >= this.#perMember && oldest !== undefined) {
      this.forget(oldest)
      return oldest.file
    }
    const names = new Set(used.map(({ file }) => file))
    const prefix = `refrain-${createHash('sha256').update(member).digest('hex').slice(0, 12)}`
    for (let i = 0; ; i++) if (!names.has(`${prefix}-${i}.bin`)) return `${prefix}-${i}.bin`
  }

  put(record: SlotRecord): void {
    this.#records.delete(idOf(record))
    this.#records.set(idOf(record), record)
    this.#write()
  }

  forget(record: Pick<SlotRecord, 'member' | 'key'>): void {
    if (this.#records.delete(idOf(record))) this.#write()
  }

  /** Resolves when all is written. */
  async settled(): Promise<void> {
    while (this.#isDirty) await this.#writing
    await this.#writing
  }

  #write(): void {
    const path = this.#path
    if (path === undefined || this.#isDirty) return
    this.#isDirty = true
    this.#writing = this.#writing.then(async () => {
      this.#isDirty = false
      const text = JSON.stringify({ version: VERSION, records: [...this.#records.values()] })
      try {
        await mkdir(dirname(path), { recursive: true })
        await writeFile(`${path}.new`, text, { mode: 0o600 })
        await rename(`${path}.new`, path)
      } catch (error) {
        note.publish({ level: 'warn', text: `${path} cannot be written: ${(error as Error).message}` })
      }
    })
  }
}

function idOf({ member, key }: Pick<SlotRecord, 'member' | 'key'>): string {
  return `${member}\0${key}`
}

function read(path: string): SlotRecord[] {
  let value: unknown
  try {
    value = JSON.parse(readFileSync(path, 'utf8'))
  } catch (error) {
    if ((error as { code?: string }).code !== 'ENOENT') {
      note.publish({ level: 'warn', text: `${path} is not read: ${(error as Error).message}` })
    }
    return []
  }
  const { version, records } = (value ?? {}) as { version?: unknown; records?: unknown }
  return version === VERSION && Array.isArray(records) ? records.filter(isRecord) : []
}

function isRecord(value: unknown): value is SlotRecord {
  const record = (value ?? {}) as Record<string, unknown>
  const texts = ['member', 'key', 'file', 'fingerprint', 'tail'].every((name) => typeof record[name] === 'string')
  return texts && Number.isSafeInteger(record['tokens'])
}
