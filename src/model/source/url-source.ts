// Weights over HTTP. A connection that breaks is continued where it stopped (Range with If-Range, so that a file which
// changed meanwhile is sent whole), a busy server is asked again, and everything else is one sentence.
//
//   200 -> starts anew   206 -> continues   408 425 429 5xx, broken or silent -> again   416 -> anew   others -> failure

import { setTimeout as sleep } from 'node:timers/promises'
import { linkAbort } from '../../core/linked-abort.js'
import { SourceFailure } from './failure.js'
import type { Origin } from './partial-file.js'
import { appendBounded, type Patience, type Transfer } from './transfer.js'

/** Retry-After is honoured up to this. */
const MAX_WAIT_MS = 60_000
/** Fewer new bytes than this do not count as progress. */
const PROGRESS_BYTES = 65_536

/** Why an attempt ended early; undefined `waitMs`: the usual backoff. */
interface Setback {
  readonly reason: string
  readonly waitMs?: number
}

/** Fills the transfer's partial file from `url`. @throws SourceFailure; the signal's reason when it is aborted. */
export async function fetchUrl(url: string, transfer: Transfer, patience: Patience): Promise<void> {
  const { partial, signal } = transfer
  await partial.resume(url)
  let failures = 0
  let furthest = partial.bytes
  for (;;) {
    const setback = await attempt(url, transfer, patience)
    if (setback === undefined) return
    signal?.throwIfAborted()
    failures = partial.bytes >= furthest + PROGRESS_BYTES ? 1 : failures + 1
    furthest = Math.max(furthest, partial.bytes)
    if (failures >= patience.attempts) throw new SourceFailure(setback.reason)
    // An abort wakes the sleep, and is then thrown with its own reason.
    await sleep(setback.waitMs ?? patience.backoffMs * 2 ** (failures - 1), undefined, { signal }).catch(
      () => undefined,
    )
    signal?.throwIfAborted()
  }
}

async function attempt(url: string, transfer: Transfer, patience: Patience): Promise<Setback | undefined> {
  const stall = linkAbort(transfer.signal ?? new AbortController().signal)
  let stalled: string | undefined
  const watch = setTimeout(() => {
    stalled = `nothing came for ${patience.stallMs} ms`
    stall.abort(new Error(stalled))
  }, patience.stallMs)
  const { signal } = stall
  try {
    const response = await fetch(url, { headers: requestHeaders(transfer), signal })
    const total = await prepare(url, response, transfer)
    if (typeof total === 'object') return total
    return await receive(response, total, { transfer, onChunk: () => watch.refresh() })
  } catch (error) {
    transfer.signal?.throwIfAborted()
    if (stalled !== undefined) return { reason: stalled }
    // What fetch throws for the wire is a TypeError with a cause. A full disk, or a fault of ours, is not for trying again.
    if (!(error instanceof TypeError && error.cause instanceof Error)) throw error
    return { reason: error.cause.message || error.message }
  } finally {
    clearTimeout(watch)
    // Ends what was not read to its end; nothing happens to an answer that was.
    stall.unlink()
    stall.abort(new Error('the answer is not read any more'))
  }
}

function requestHeaders({ partial }: Transfer): Record<string, string> {
  // Compressed bytes could not be counted against a range.
  const headers: Record<string, string> = { 'accept-encoding': 'identity' }
  if (partial.bytes > 0 && partial.origin !== undefined) {
    headers['range'] = `bytes=${partial.bytes}-`
    headers['if-range'] = partial.origin.validator
  }
  return headers
}

/** Readies the partial file for the body. Returns the whole file's length where it is known, or why to try again. */
async function prepare(url: string, response: Response, transfer: Transfer): Promise<number | undefined | Setback> {
  const { partial, expectedBytes } = transfer
  if (response.status === 200) {
    const length = response.headers.get('content-length')
    const total = length === null ? undefined : Number(length)
    refuseOtherLength(total, expectedBytes)
    await partial.restart(originOf(url, response))
    return total
  }
  if (response.status === 206) {
    const [, start, total] = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(response.headers.get('content-range') ?? '') ?? []
    const changed = originOf(url, response)?.validator
    if (Number(start) !== partial.bytes || (changed !== undefined && changed !== partial.origin?.validator)) {
      await partial.restart(undefined)
      return { reason: 'it answered another range than was asked for', waitMs: 0 }
    }
    const whole = total === '*' || total === undefined ? undefined : Number(total)
    refuseOtherLength(whole, expectedBytes)
    return whole
  }
  if (response.status === 416) {
    await partial.restart(undefined)
    return { reason: 'HTTP 416', waitMs: 0 }
  }
  if (response.status >= 500 || [408, 425, 429].includes(response.status)) {
    const seconds = Number(response.headers.get('retry-after') ?? Number.NaN)
    const reason = `HTTP ${response.status}`
    return Number.isFinite(seconds) ? { reason, waitMs: Math.min(seconds * 1000, MAX_WAIT_MS) } : { reason }
  }
  throw new SourceFailure(`HTTP ${response.status}`)
}

function refuseOtherLength(total: number | undefined, expectedBytes: number | undefined): void {
  if (total === undefined || expectedBytes === undefined || total === expectedBytes) return
  throw new SourceFailure(`it has ${total} bytes, but the card says ${expectedBytes}`)
}

interface Reception {
  readonly transfer: Transfer
  readonly onChunk: () => void
}

async function receive(
  response: Response,
  total: number | undefined,
  { transfer, onChunk }: Reception,
): Promise<Setback | undefined> {
  const { partial, expectedBytes, onProgress } = transfer
  const reader = response.body!.getReader()
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    onChunk()
    await appendBounded(transfer, value)
    onProgress(partial.bytes, total ?? expectedBytes)
  }
  const whole = total ?? expectedBytes
  if (whole !== undefined && partial.bytes < whole)
    return { reason: `it ended after ${partial.bytes} of ${whole} bytes` }
  return undefined
}

/** What lets a later request continue this answer; weak tags promise too little. */
function originOf(url: string, response: Response): Origin | undefined {
  const tag = response.headers.get('etag')
  if (tag?.startsWith('"')) return { url, validator: tag }
  const date = response.headers.get('last-modified')
  return date === null ? undefined : { url, validator: date }
}
