// AES-256-GCM over what the log keeps, and keyed names for what must be found without being read. Invariant: whatever is
// opened was sealed with this key for this very place (`aad`); else it is an error, never other text.
//
//   nonce (12) | ciphertext | tag (16)

import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto'
import { RefrainError } from '../../core/errors.js'

export const KEY_BYTES = 32
const NONCE_BYTES = 12
const TAG_BYTES = 16
const CIPHER = 'aes-256-gcm'

export function newKey(): Buffer {
  return randomBytes(KEY_BYTES)
}

/** `aad`: what it is and where it lies; not kept. */
export function seal(key: Uint8Array, aad: string, plain: Uint8Array): Buffer {
  const nonce = randomBytes(NONCE_BYTES)
  const cipher = createCipheriv(CIPHER, key, nonce).setAAD(Buffer.from(aad))
  const body = cipher.update(plain)
  return Buffer.concat([nonce, body, cipher.final(), cipher.getAuthTag()])
}

/** @throws RefrainError `log_damaged` where it was not sealed so. */
export function open(key: Uint8Array, aad: string, sealed: Uint8Array): Buffer {
  const plain = tryOpen(key, aad, sealed)
  if (plain !== undefined) return plain
  throw new RefrainError('log_damaged', `the session log holds something else than was written there: ${aad}`)
}

export function tryOpen(key: Uint8Array, aad: string, sealed: Uint8Array): Buffer | undefined {
  if (sealed.length < NONCE_BYTES + TAG_BYTES) return undefined
  const decipher = createDecipheriv(CIPHER, key, sealed.subarray(0, NONCE_BYTES)).setAAD(Buffer.from(aad))
  decipher.setAuthTag(sealed.subarray(sealed.length - TAG_BYTES))
  const body = decipher.update(sealed.subarray(NONCE_BYTES, sealed.length - TAG_BYTES))
  try {
    return Buffer.concat([body, decipher.final()])
  } catch {
    // The tag does not hold: that is the answer.
    return undefined
  }
}

/** A key for one purpose, from another. */
export function derivedKey(key: Uint8Array, purpose: string): Buffer {
  return Buffer.from(hkdfSync('sha256', key, Buffer.alloc(0), `refrain session log 1: ${purpose}`, KEY_BYTES))
}

/** 16 bytes by which a name is found that may not lie there itself. */
export function blindName(key: Uint8Array, name: string): Buffer {
  return createHmac('sha256', key).update(name).digest().subarray(0, 16)
}
