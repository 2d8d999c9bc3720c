// Where the key comes from that wraps all others: the config (better its environment variable), a file of the operator's, or
// a file that is made beside the log the first time. Invariant: where a log is, no new key is ever made in place of a lost one.

import { randomBytes } from 'node:crypto'
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { UsageError } from '../../core/usage-error.js'
import { KEY_BYTES } from './sealing.js'

export interface MasterKeyOptions {
  /** 64 hex digits or base64 of 32 bytes. */
  readonly key?: string | undefined
  /** A file that holds the same. */
  readonly keyFile?: string | undefined
  /** Files of keys that were used before: what they wrapped is wrapped anew at the next start. */
  readonly oldKeyFiles: readonly string[]
}

export interface MasterKeys {
  readonly current: Buffer
  readonly old: readonly Buffer[]
  /** Path of the file that was made just now. */
  readonly made: string | undefined
}

const DEFAULT_FILE = 'master.key'

/** `folder`: where the log lies. @throws UsageError where a key cannot be read or is none. */
export function masterKeys(options: MasterKeyOptions, folder: string, logExists: boolean): MasterKeys {
  const old = options.oldKeyFiles.map((path) => parseKey(readKeyFile(path), path))
  if (options.key !== undefined) return { current: parseKey(options.key, 'sessions.log.key'), old, made: undefined }
  const path = options.keyFile ?? join(folder, DEFAULT_FILE)
  if (existsSync(path)) return { current: parseKey(readKeyFile(path), path), old, made: undefined }
  if (options.keyFile !== undefined) throw new UsageError(`sessions.log.keyFile: there is no file ${path}`)
  if (logExists)
    throw new UsageError(
      `the key of the session log is gone: ${path} is not there, and without it nobody can read the log beside it; put it ` +
        'back from a copy, name it with sessions.log.keyFile, or move the folder away to begin anew',
    )
  const current = randomBytes(KEY_BYTES)
  writeKeyFile(path, current)
  return { current, old, made: path }
}

function parseKey(text: string, where: string): Buffer {
  const trimmed = text.trim()
  const key = /^[0-9a-fA-F]{64}$/.test(trimmed) ? Buffer.from(trimmed, 'hex') : Buffer.from(trimmed, 'base64')
  if (key.length === KEY_BYTES) return key
  throw new UsageError(`${where}: a key is ${KEY_BYTES} bytes, as 64 hex digits or as base64`)
}

function readKeyFile(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    throw new UsageError(`the key file ${path} cannot be read: ${(error as Error).message}`)
  }
}

/** On the disk before the log is: a log whose key a loss of power took would be lost. */
function writeKeyFile(path: string, key: Buffer): void {
  const file = openSync(path, 'wx', 0o600)
  try {
    writeSync(file, `${key.toString('hex')}\n`)
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
}
