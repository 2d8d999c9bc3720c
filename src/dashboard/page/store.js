// What the page knows: the feed's changes put together. Invariant: a page that says `reset` replaces all of it; sessions
// and buckets of time are bounded as the server bounds them.

/** Of a row of the feed's series, in the order of SERIES_FIELDS (dashboard/contract.ts). */
export const FIELD = {
  at: 0,
  requests: 1,
  failed: 2,
  working: 3,
  memory: 4,
  disk: 5,
  computed: 6,
  generated: 7,
  ttftSum: 8,
  ttftCount: 9,
  evictedMemory: 10,
  evictedDisk: 11,
  written: 12,
  restored: 13,
  workingBytes: 14,
  memoryBytes: 15,
  diskBytes: 16,
}

/** An hour, and a little. */
const ROWS = 740

/** @param {{ tenant: string, session: string }} session */
export const keyOf = ({ tenant, session }) => `${tenant}\n${session}`

export const store = {
  /** @type {Feed | undefined} The last answer; what changes by parts is below. */
  feed: undefined,
  /** @type {Map<number, (number | null)[]>} By the start of the bucket. */
  series: new Map(),
  /** @type {Map<string, Session>} */
  sessions: new Map(),
  /** The server's clock against ours. */
  skewMs: 0,
  /** @type {TreePage | undefined} */
  tree: undefined,
  /** @type {{ key: string, session: Session, turns: Turn[] } | undefined} */
  opened: undefined,
  /** @type {string | undefined} The key of the session that is looked at. */
  selected: undefined,
}

/** Now, on the server's clock. */
export const serverNow = () => Date.now() + store.skewMs

/**
 * @param {Feed} feed
 * @returns {Set<string>} keys of sessions that have changed
 */
export function merge(feed) {
  if (feed.reset) {
    store.series.clear()
    store.sessions.clear()
  }
  for (const row of feed.series) store.series.set(/** @type {number} */ (row[FIELD.at]), row)
  while (store.series.size > ROWS) store.series.delete(/** @type {number} */ (store.series.keys().next().value))
  for (const session of feed.sessions) store.sessions.set(keyOf(session), session)
  for (const gone of feed.gone) store.sessions.delete(keyOf(gone))
  store.feed = feed
  store.skewMs = feed.at - Date.now()
  return new Set(feed.sessions.map(keyOf))
}

export function forget() {
  store.feed = undefined
  store.series.clear()
  store.sessions.clear()
  store.tree = undefined
  store.opened = undefined
  store.selected = undefined
}

/**
 * Buckets of the last `windowMs`, joined to bins of one length, empty ones too; the last is the one that is going on.
 * @param {number} windowMs
 * @param {number} bins at most
 */
export function binned(windowMs, bins) {
  const bucketMs = store.feed?.bucket_ms ?? 5000
  const binMs = Math.max(bucketMs, Math.ceil(windowMs / bins / bucketMs) * bucketMs)
  const last = Math.floor(serverNow() / binMs)
  const size = Math.ceil(windowMs / binMs)
  /** @type {(number | null)[][]} */
  const columns = Object.values(FIELD).map((field) => new Array(size).fill(field >= FIELD.workingBytes ? null : 0))
  for (let i = 0; i < size; i++) /** @type {any} */ (columns[0])[i] = ((last - size + 1 + i) * binMs) / 1000
  for (const [at, row] of store.series) {
    const i = Math.floor(at / binMs) - (last - size + 1)
    if (i < 0 || i >= size) continue
    for (let field = 1; field < row.length; field++) {
      const column = /** @type {(number | null)[]} */ (columns[field])
      const value = row[field] ?? null
      if (field >= FIELD.workingBytes) column[i] = value ?? column[i] ?? null
      else column[i] = /** @type {number} */ (column[i]) + (value ?? 0)
    }
  }
  return { columns, binMs }
}

/**
 * Sums of the last `windowMs`.
 * @param {number} windowMs
 */
export function recent(windowMs) {
  const from = serverNow() - windowMs
  const sums = new Array(Object.keys(FIELD).length).fill(0)
  for (const [at, row] of store.series) {
    if (at < from) continue
    for (let field = 1; field < FIELD.workingBytes; field++) sums[field] += row[field] ?? 0
  }
  return sums
}
