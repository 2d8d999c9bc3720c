// Where members come from besides the config: a watched file, and names that resolve to many addresses. Invariant: what
// cannot be read or resolved changes nothing; a source brings and takes its own members alone.

import { lookup } from 'node:dns/promises'
import { readFile } from 'node:fs/promises'
import { isIP } from 'node:net'
import type { RemoteOptions } from '../backend/remote/contract.js'
import type { Clock } from '../core/clock.js'
import { note } from '../core/signals.js'
import type { Fleet } from './fleet.js'

export interface DiscoveryOptions {
  /** Between two looks at the file and at the names. */
  readonly everyMs: number
  /** A file that lists backends; undefined: there is none. */
  readonly file?: string
}

export interface DiscoveryParts {
  readonly fleet: Pick<Fleet, 'assign'>
  readonly clock: Clock
  /** The text of the file as entries of the config's `backends`. @throws Error that says what is wrong. */
  parse(text: string): readonly RemoteOptions[]
  /** Addresses of a name; tests set it. */
  resolve?(host: string): Promise<readonly string[]>
}

export class Discovery {
  readonly #options: DiscoveryOptions
  readonly #parts: DiscoveryParts
  /** Entries by source; of each the ones whose host is a name for many are spread. */
  readonly #entries = new Map<string, readonly RemoteOptions[]>()
  readonly #addresses = new Map<string, readonly string[]>()
  /** What was told last of each complaint, so that it is told once. */
  readonly #told = new Map<string, string>()
  #text: string | undefined
  #cancel: () => void = () => undefined
  #stopped = false

  constructor(options: DiscoveryOptions, parts: DiscoveryParts) {
    this.#options = options
    this.#parts = parts
  }

  /** Entries of the config, at the start and when it is read again. */
  async configure(source: string, entries: readonly RemoteOptions[]): Promise<void> {
    this.#entries.set(source, entries)
    await this.#apply(source)
  }

  start(): void {
    const { clock } = this.#parts
    const next = () => {
      if (!this.#stopped) this.#cancel = clock.after(this.#options.everyMs, () => void this.look().then(next))
    }
    void this.look().then(next)
  }

  stop(): void {
    this.#stopped = true
    this.#cancel()
  }

  /** Reads the file and asks for the names again. */
  async look(): Promise<void> {
    const { file } = this.#options
    if (file !== undefined) await this.#read(file)
    for (const [source, entries] of this.#entries) {
      if (entries.some(isMany)) await this.#apply(source)
    }
  }

  async #read(file: string): Promise<void> {
    try {
      const text = await readFile(file, 'utf8')
      if (text === this.#text) return
      this.#entries.set(file, this.#parts.parse(text))
      this.#text = text
      this.#told.delete(file)
    } catch (error) {
      this.#complain(file, `${file} is not taken: ${(error as Error).message}`)
      return
    }
    await this.#apply(file)
  }

  async #apply(source: string): Promise<void> {
    const entries = this.#entries.get(source) ?? []
    const spread = await Promise.all(entries.map((entry) => (isMany(entry) ? this.#spread(entry) : [entry])))
    if (!this.#stopped && this.#entries.get(source) === entries) this.#parts.fleet.assign(source, spread.flat())
  }

  /** One member an address. A name that does not resolve keeps those that it had. */
  async #spread(entry: RemoteOptions): Promise<RemoteOptions[]> {
    const url = new URL(entry.url)
    const host = url.hostname
    try {
      const found = await (this.#parts.resolve ?? addressesOf)(host)
      if (found.length > 0) this.#addresses.set(host, [...found].sort())
      this.#told.delete(host)
    } catch (error) {
      this.#complain(host, `${host} does not resolve: ${(error as Error).message}`)
    }
    return (this.#addresses.get(host) ?? []).map((address) => {
      url.hostname = isIP(address) === 6 ? `[${address}]` : address
      const { name, resolve: _, ...rest } = entry
      return {
        ...rest,
        url: url.href.replace(/\/$/, ''),
        ...(name !== undefined && { name: `${name}@${address}` }),
        // Its certificate is made out to the name.
        ...(url.protocol === 'https:' && { tls: { serverName: host, ...entry.tls } }),
      }
    })
  }

  #complain(about: string, text: string): void {
    if (this.#told.get(about) === text) return
    this.#told.set(about, text)
    note.publish({ level: 'warn', text })
  }
}

function isMany({ resolve, url }: RemoteOptions): boolean {
  return resolve === true && isIP(new URL(url).hostname.replace(/^\[|\]$/g, '')) === 0
}

async function addressesOf(host: string): Promise<string[]> {
  return (await lookup(host, { all: true })).map(({ address }) => address)
}
