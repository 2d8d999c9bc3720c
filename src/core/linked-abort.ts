// One abort made of an outer signal and of an own one. In place of AbortSignal.any: Node keeps such a signal, and all
// that its listeners hold, for as long as somebody listens to it and nothing has aborted, which is the lifetime of the
// process for a request that ends well.

export interface LinkedAbort {
  /** Aborts with the outer signal's reason, or by `abort`. */
  readonly signal: AbortSignal
  abort(reason: unknown): void
  /** The work is over: the outer signal is not listened to any more. */
  unlink(): void
}

export function linkAbort(outer: AbortSignal): LinkedAbort {
  const own = new AbortController()
  const relay = () => own.abort(outer.reason)
  if (outer.aborted) relay()
  else outer.addEventListener('abort', relay, { once: true })
  return {
    signal: own.signal,
    abort: (reason) => own.abort(reason),
    unlink: () => outer.removeEventListener('abort', relay),
  }
}
