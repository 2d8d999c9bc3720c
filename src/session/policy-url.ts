// Asks the operator's policy URL whether a tenant may see sources. Invariant: it takes no longer than it may, reads no more
// than it may, and what is not an answer is a fault, never a yes.
//
//   POST { "tenant": "...", "sources": ["..."] }     ->     { "granted": ["..."], "revoked": ["..."] }

import type { AskPolicy, Verdict } from './sources.js'

export interface PolicyUrlOptions {
  readonly url: string
  readonly timeoutMs: number
}

const MAX_BYTES = 4 * 1024 * 1024

/** A source that the answer names as revoked is, whatever else it says of it. */
export function policyUrl({ url, timeoutMs }: PolicyUrlOptions): AskPolicy {
  return async (tenant, sources) => {
    const response = await fetch(url, {
      ...{ method: 'POST', headers: { 'content-type': 'application/json' }, redirect: 'error' },
      ...{ body: JSON.stringify({ tenant, sources }), signal: AbortSignal.timeout(timeoutMs) },
    })
    if (!response.ok) {
      await response.body?.cancel()
      throw new Error(`status ${response.status}`)
    }
    const { granted, revoked } = JSON.parse(await textOf(response)) as { granted?: unknown; revoked?: unknown }
    const asked = new Set(sources)
    const verdicts = new Map<string, Verdict>()
    for (const [verdict, list] of [
      ['granted', granted],
      ['revoked', revoked],
    ] as const) {
      if (list === undefined) continue
      if (!Array.isArray(list)) throw new Error(`'${verdict}' of its answer is not a list`)
      for (const source of list) if (asked.has(source)) verdicts.set(source, verdict)
    }
    return verdicts
  }
}

async function textOf(response: Response): Promise<string> {
  const parts: Uint8Array[] = []
  let bytes = 0
  for await (const part of response.body ?? []) {
    bytes += part.length
    if (bytes > MAX_BYTES) throw new Error(`an answer of over ${MAX_BYTES} bytes`)
    parts.push(part)
  }
  return Buffer.concat(parts).toString()
}
