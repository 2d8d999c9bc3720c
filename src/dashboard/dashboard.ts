// The page's side of the server: what has changed since a cursor, the tree of what is cached, a session's turns. Invariant:
// a question never waits for the engine longer than for what it asks of it: how full tiers are is asked behind its back and
// told as last heard. When nobody has asked for a while, everything is dropped.

import { randomBytes } from 'node:crypto'
import type { CacheStatus } from '../backend/backend.js'
import type { SessionTold, Viewer } from '../explain/contract.js'
import { AlarmBook } from './alarm-book.js'
import { readAssets } from './assets.js'
import type { Asset, Dashboard, DashboardSources, FeedPage, TreePage } from './contract.js'
import { treeView } from './tree-view.js'
import { SERIES, Watch } from './watch.js'

/** Nobody looks any more when nobody has asked for so long; a page in the background asks every 10 s. */
export const WATCH_MS = 60_000
/** Between two looks at all sessions, and at the tiers, however many pages ask. */
const FRESH_MS = 500
const STATUS_MS = 1000
/** A tree is made anew after so long, and after so many times what the last one took: it is the engine's thread that reads. */
const TREE_MS = 2000
const TREE_REST = 20
const MAX_TREE_MS = 60_000
export const TREE_NODES = 300
/** Sessions in one answer, the latest. */
const SESSIONS = 2000
const ALARMS = 100

/** One whose turns are here. */
export interface OwnDashboard extends Dashboard {
  turns(viewer: Viewer, session: string, tenant?: string): SessionTold | undefined
}

export function createDashboard(sources: DashboardSources, now: () => number = Date.now): OwnDashboard {
  return new Desk(sources, now)
}

interface KeptTree {
  readonly at: number
  readonly value: Promise<TreePage>
  /** How long it is good for. */
  goodMs: number
}

class Desk implements OwnDashboard {
  readonly #sources: DashboardSources
  readonly #now: () => number
  #watch: { readonly epoch: string; readonly watch: Watch; readonly ready: Promise<void> } | undefined
  #askedAt = 0
  #cancel: () => void = () => undefined
  /** When the sessions that a viewer sees were looked at last. */
  readonly #looked = new Map<string, number>()
  readonly #trees = new Map<string, KeptTree>()
  #status: { at: number; value: CacheStatus | undefined } = { at: Number.NEGATIVE_INFINITY, value: undefined }
  #assets: ReadonlyMap<string, Asset> | undefined
  readonly #alarms: AlarmBook

  constructor(sources: DashboardSources, now: () => number) {
    this.#sources = sources
    this.#now = now
    this.#alarms = new AlarmBook(now)
  }

  async feed(viewer: Viewer, cursor: string | undefined): Promise<FeedPage> {
    const { epoch, watch, ready } = this.#watched()
    await ready
    const { sources, at } = { sources: this.#sources, at: this.#now() }
    const before = readCursor(cursor, epoch)
    const board = this.#board(viewer, watch)
    const changes = before && board.since(before.version)
    const seriesFrom = changes === undefined ? 0 : before?.at
    const { version } = sources
    return {
      cursor: [epoch, board.version, at].join('.'),
      reset: changes === undefined,
      at,
      watchedSince: watch.since,
      server: {
        ...{ version, kind: sources.kind, models: sources.models() },
        processes: sources.processes ?? 1,
        explains: sources.turns !== undefined,
        hasTree: sources.cache?.tree !== undefined,
      },
      missing: [],
      viewer: { tenant: viewer.name, admin: viewer.admin },
      bucketMs: SERIES.bucketMs,
      series: watch.series(viewer, seriesFrom ?? 0),
      sessions: changes?.sessions ?? board.all(),
      gone: changes?.gone ?? [],
      quick: watch.quick(viewer),
      alarms: (sources.alarms?.(viewer) ?? this.#alarms.of(viewer)).slice(0, ALARMS),
      ...(viewer.admin && this.#forAdmins(watch)),
    }
  }

  async tree(viewer: Viewer): Promise<TreePage | undefined> {
    const { cache, roots, clock } = this.#sources
    if (cache?.tree === undefined) return undefined
    this.#watched()
    const name = viewer.admin ? '' : viewer.name
    const kept = this.#trees.get(name)
    if (kept !== undefined && clock.now() - kept.at < kept.goodMs) return kept.value
    const own = viewer.admin ? undefined : (roots?.of(viewer.name) ?? [])
    const value = cache.tree({ nodes: TREE_NODES, ...(own && { tenants: own }) }).then((tree) =>
      treeView(tree, {
        prefixes: this.#sources.turns?.prefixes(viewer) ?? [],
        ownersOf: viewer.admin ? roots?.ownersOf.bind(roots) : undefined,
        at: this.#now(),
      }),
    )
    const at = clock.now()
    const fresh: KeptTree = { at, value, goodMs: MAX_TREE_MS }
    this.#trees.set(name, fresh)
    value.then(
      () => {
        fresh.goodMs = Math.min(MAX_TREE_MS, Math.max(TREE_MS, TREE_REST * (clock.now() - at)))
      },
      () => this.#trees.delete(name),
    )
    return value
  }

  turns(viewer: Viewer, session: string, tenant?: string) {
    const { turns: archive } = this.#sources
    const { watch } = this.#watched()
    if (archive === undefined) return watch.settled.turns(viewer, session, tenant)
    const found = archive.session(viewer, session, tenant)
    const turns = archive.turns(viewer, session, tenant)
    return found && turns && { session: found, turns }
  }

  asset(path: string): Asset | undefined {
    this.#assets ??= readAssets()
    return this.#assets.get(path)
  }

  close(): void {
    this.#cancel()
    this.#drop()
    this.#alarms.close()
  }

  /** The sessions are looked at twice a second at most, however many pages ask. */
  #board(viewer: Viewer, watch: Watch) {
    const board = watch.board(viewer)
    const name = viewer.admin ? '' : viewer.name
    const now = this.#sources.clock.now()
    if (now - (this.#looked.get(name) ?? Number.NEGATIVE_INFINITY) >= FRESH_MS) {
      this.#looked.set(name, now)
      const { turns } = this.#sources
      board.refresh((turns ?? watch.settled).sessions(viewer).slice(0, SESSIONS))
    }
    return board
  }

  #forAdmins(watch: Watch): Pick<FeedPage, 'cache' | 'backends'> {
    this.#askStatus(watch)
    const status = this.#status.value
    const backends = this.#sources.backends().map((backend) => {
      const overlap = watch.overlap(backend.id)
      return { ...backend, ...(overlap && { overlap }) }
    })
    if (status === undefined) return { backends }
    const { tiers, blockBytes, blockTokens, pins } = status
    return { backends, cache: { tiers, blockBytes, blockTokens, pins: pins.length } }
  }

  /** The engine's thread may be in a long run: what it says is there for the next question. */
  #askStatus(watch: Watch): void {
    const { cache, clock } = this.#sources
    if (cache === undefined || clock.now() - this.#status.at < STATUS_MS) return
    this.#status.at = clock.now()
    cache.status().then(
      (value) => {
        this.#status.value = value
        watch.filled(value)
      },
      // A worker that went away says so in its backend's notes.
      () => {
        this.#status.value = undefined
      },
    )
  }

  #watched() {
    this.#askedAt = this.#sources.clock.now()
    if (this.#watch !== undefined) return this.#watch
    const { turns: archive, signals } = this.#sources
    const watch = new Watch({ archive, now: this.#now, ...(signals && { signals }) })
    this.#watch = { epoch: randomBytes(6).toString('hex'), watch, ready: watch.recall() }
    this.#look(WATCH_MS)
    return this.#watch
  }

  /** Drops the watch once nobody has asked for long enough. */
  #look(afterMs: number): void {
    const { clock } = this.#sources
    this.#cancel = clock.after(afterMs, () => {
      const left = this.#askedAt + WATCH_MS - clock.now()
      if (left > 0) this.#look(left)
      else this.#drop()
    })
  }

  #drop(): void {
    this.#watch?.watch.stop()
    this.#watch = undefined
    this.#trees.clear()
    this.#looked.clear()
    this.#status = { at: Number.NEGATIVE_INFINITY, value: undefined }
  }
}

/** Undefined: of another watch, or none of ours. */
function readCursor(cursor: string | undefined, epoch: string): { version: number; at: number } | undefined {
  const [, own, version, at] = /^([0-9a-f]{12})\.(\d{1,15})\.(\d{1,15})$/.exec(cursor ?? '') ?? []
  return own === epoch ? { version: Number(version), at: Number(at) } : undefined
}
