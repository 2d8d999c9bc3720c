// The tables of the session log, as a list of migrations: each is run once, in order, in one transaction with what records
// it. Invariant: a migration that was released is never edited, the next one is added behind it.
//
// In the clear lies what identifies nothing: positions, times, kinds, digests of ciphertext, random ids, and the names of
// cached blocks, which the cache's own folder shows too. Names of tenants, sources, layers, calls and results are keyed
// hashes; everything else is sealed: tenants' keys with the master key, sessions' keys with their tenant's, the rest with those.

import type { SqliteDatabase } from './sqlite-database.js'

interface Migration {
  readonly version: number
  readonly name: string
  readonly sql: string
}

/** 'RFRN': the file is one of ours. */
export const APPLICATION_ID = 0x5246524e

const MIGRATIONS: readonly Migration[] = [
  {
    version: 1,
    name: 'log of sessions',
    sql: `
      CREATE TABLE fact (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID, STRICT;
      CREATE TABLE tenant (id INTEGER PRIMARY KEY, mac BLOB NOT NULL UNIQUE, wrapped BLOB NOT NULL) STRICT;
      CREATE TABLE session (
        row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tenant INTEGER NOT NULL,
        created INTEGER NOT NULL, used INTEGER NOT NULL,
        parent INTEGER, at INTEGER NOT NULL,
        position INTEGER NOT NULL, digest BLOB NOT NULL, bytes INTEGER NOT NULL, mark BLOB NOT NULL,
        wrapped BLOB NOT NULL, about BLOB NOT NULL) STRICT;
      CREATE INDEX session_by_tenant ON session (tenant, created);
      CREATE INDEX session_by_parent ON session (parent) WHERE parent IS NOT NULL;
      CREATE TABLE event (
        session INTEGER NOT NULL, position INTEGER NOT NULL, id BLOB NOT NULL, at INTEGER NOT NULL, kind TEXT NOT NULL,
        digest BLOB NOT NULL, erased INTEGER NOT NULL, content BLOB NOT NULL) STRICT;
      CREATE UNIQUE INDEX event_by_position ON event (session, position);
      CREATE TABLE name (
        session INTEGER NOT NULL, mac BLOB NOT NULL, position INTEGER NOT NULL, number INTEGER NOT NULL,
        PRIMARY KEY (session, mac, position)) WITHOUT ROWID, STRICT;
      CREATE TABLE sources (
        session INTEGER NOT NULL, number INTEGER NOT NULL, content BLOB NOT NULL,
        PRIMARY KEY (session, number)) WITHOUT ROWID, STRICT;
      CREATE TABLE rests (
        session INTEGER NOT NULL, position INTEGER NOT NULL, content BLOB NOT NULL,
        PRIMARY KEY (session, position)) WITHOUT ROWID, STRICT;
      CREATE TABLE touched (
        tenant INTEGER NOT NULL, source BLOB NOT NULL, session INTEGER NOT NULL, position INTEGER NOT NULL,
        PRIMARY KEY (tenant, source, session)) WITHOUT ROWID, STRICT;
      CREATE INDEX touched_by_session ON touched (session);
      CREATE TABLE result (session INTEGER NOT NULL, mac BLOB NOT NULL, content BLOB NOT NULL) STRICT;
      CREATE UNIQUE INDEX result_by_mac ON result (session, mac);
      CREATE TABLE block (session INTEGER NOT NULL, hash BLOB NOT NULL, PRIMARY KEY (session, hash)) WITHOUT ROWID, STRICT;
      CREATE INDEX block_by_hash ON block (hash);
      CREATE TABLE source_grant (
        tenant INTEGER NOT NULL, mac BLOB NOT NULL, content BLOB NOT NULL, PRIMARY KEY (tenant, mac)) WITHOUT ROWID, STRICT;
      CREATE TABLE shared (
        tenant INTEGER NOT NULL, mac BLOB NOT NULL, content BLOB NOT NULL, PRIMARY KEY (tenant, mac)) WITHOUT ROWID, STRICT;
      CREATE TABLE tombstone (id TEXT PRIMARY KEY, tenant BLOB NOT NULL) WITHOUT ROWID, STRICT;`,
  },
  {
    version: 2,
    name: 'tombs under blinded names',
    sql: `
      DROP TABLE tombstone;
      CREATE TABLE tombstone (number INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, mac BLOB NOT NULL) STRICT;
      CREATE INDEX tombstone_by_mac ON tombstone (tenant, mac);`,
  },
]

export const SCHEMA_VERSION = MIGRATIONS.at(-1)!.version

/** Brings the tables up to date. Returns the version that was there before; 0: none. */
export function migrate(db: SqliteDatabase): number {
  const before = db.pragma('user_version')
  db.exec('CREATE TABLE IF NOT EXISTS migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, at INTEGER NOT NULL)')
  for (const { version, name, sql } of MIGRATIONS) {
    if (version <= before) continue
    db.transaction(() => {
      db.exec(sql)
      db.run('INSERT INTO migration (version, name, at) VALUES (?, ?, ?)', version, name, Date.now())
      db.exec(`PRAGMA user_version = ${version}`)
    })
  }
  return before
}
