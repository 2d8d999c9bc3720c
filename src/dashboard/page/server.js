// What the page asks of the server, with the key that was typed in. Invariant: the key lives in this tab's session storage
// and in headers, never in an address.

const KEY = 'refrain.key'

export const key = {
  get() {
    return sessionStorage.getItem(KEY) ?? ''
  },
  /** @param {string} value */
  set(value) {
    if (value === '') sessionStorage.removeItem(KEY)
    else sessionStorage.setItem(KEY, value)
  },
}

/** An answer that is none: its status (0: nobody answers) and the server's sentence. */
export class Refusal extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message)
    this.status = status
  }
}

/** A server that is silent for so long is taken to be gone. */
const PATIENCE_MS = 15_000

/**
 * @param {string} path below the server's address
 * @returns {Promise<any>}
 * @throws {Refusal}
 */
export async function ask(path) {
  const sent = key.get()
  /** @type {Response} */
  let response
  try {
    response = await fetch(path, {
      headers: sent === '' ? {} : { authorization: `Bearer ${sent}` },
      signal: AbortSignal.timeout(PATIENCE_MS),
      cache: 'no-store',
      credentials: 'omit',
    })
  } catch {
    throw new Refusal(0, 'The server does not answer.')
  }
  const body = await response.json().catch(() => undefined)
  if (response.ok && body !== undefined) return body
  throw new Refusal(response.status, body?.error?.message ?? `The server answers ${response.status}.`)
}
