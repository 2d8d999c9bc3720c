// Tenants of the log and their keys. A tenant's key is wrapped by the master key and wraps the keys of its sessions; what
// blinds its names is derived from it. Invariant: with the wrapped key gone, nothing of the tenant can be opened or guessed at.

import { UsageError } from '../../core/usage-error.js'
import type { MasterKeys } from './master-key.js'
import { blindName, derivedKey, KEY_BYTES, newKey, open, seal, tryOpen } from './sealing.js'
import { blobs, numbers, type SqliteDatabase } from './sqlite-database.js'

export interface TenantKey {
  readonly id: number
  readonly name: string
  readonly key: Buffer
  /** Blinds names of its sources, layers, calls and results. */
  readonly names: Buffer
}

const CHECK = 'the master key of this log'
const WRAPPED = 'key of a tenant'

export class TenantKeys {
  readonly #db: SqliteDatabase
  readonly #master: Buffer
  readonly #macs: Buffer
  readonly #known = new Map<string, TenantKey>()

  /** Wraps anew what an old key wrapped. @throws UsageError where none of the keys is the log's. */
  constructor(db: SqliteDatabase, master: MasterKeys) {
    this.#db = db
    this.#master = master.current
    this.#macs = derivedKey(master.current, 'tenants')
    db.transaction(() => this.#check(master))
  }

  /** Undefined: it has never kept anything, or was erased. */
  of(name: string): TenantKey | undefined {
    const known = this.#known.get(name)
    if (known !== undefined) return known
    const row = this.#db.get(
      `SELECT ${numbers('id')}, ${blobs('wrapped')} FROM tenant WHERE mac = ?`,
      blindName(this.#macs, name),
    )
    if (row === undefined) return undefined
    const plain = open(this.#master, WRAPPED, row['wrapped'] as Uint8Array)
    return this.#remember(row['id'] as number, name, plain.subarray(0, KEY_BYTES))
  }

  make(name: string): TenantKey {
    const known = this.of(name)
    if (known !== undefined) return known
    const key = newKey()
    const wrapped = seal(this.#master, WRAPPED, Buffer.concat([key, Buffer.from(name)]))
    const mac = blindName(this.#macs, name)
    const id = this.#db.insert('INSERT INTO tenant (mac, wrapped) VALUES (?, ?)', mac, wrapped)
    return this.#remember(id, name, key)
  }

  erase({ id, name }: TenantKey): void {
    this.#known.delete(name)
    this.#db.run('DELETE FROM tenant WHERE id = ?', id)
  }

  /** After a transaction that was taken back. */
  forget(): void {
    this.#known.clear()
  }

  #remember(id: number, name: string, key: Buffer): TenantKey {
    const tenant = { id, name, key, names: derivedKey(key, 'names') }
    this.#known.set(name, tenant)
    return tenant
  }

  #check({ current, old }: MasterKeys): void {
    const row = this.#db.get(`SELECT ${blobs('value')} FROM fact WHERE name = 'check'`)
    const put = () => {
      const sealed = seal(current, CHECK, Buffer.alloc(0))
      this.#db.run("INSERT OR REPLACE INTO fact (name, value) VALUES ('check', ?)", sealed)
    }
    if (row === undefined) {
      put()
      return
    }
    const fits = (key: Buffer) => tryOpen(key, CHECK, row['value'] as Uint8Array) !== undefined
    if (fits(current)) return
    const former = old.find(fits)
    if (former === undefined)
      throw new UsageError(
        'the session log was written with another master key; give that one (sessions.log.keyFile, or sessions.log.key), or ' +
          'name its file in sessions.log.oldKeyFiles to go over to the new one',
      )
    this.#rewrap(former)
    put()
  }

  #rewrap(former: Buffer): void {
    for (const row of this.#db.all(`SELECT ${numbers('id')}, ${blobs('wrapped')} FROM tenant`)) {
      const plain = open(former, WRAPPED, row['wrapped'] as Uint8Array)
      const mac = blindName(this.#macs, plain.subarray(KEY_BYTES).toString())
      const wrapped = seal(this.#master, WRAPPED, plain)
      this.#db.run('UPDATE tenant SET mac = ?, wrapped = ? WHERE id = ?', mac, wrapped, row['id'] as number)
    }
  }
}
