// W3C Trace Context: who a request's trace was begun by, and what is sent on. https://www.w3.org/TR/trace-context/
// Invariant: what is not written as the standard says is as if it were not there, its `tracestate` too.

export interface TraceParent {
  readonly traceId: string
  readonly spanId: string
  /** Bit 0: sampled. */
  readonly traceFlags: number
}

const PARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/

export function readTraceParent(header: string | undefined): TraceParent | undefined {
  const [, version, traceId = '', spanId = '', flags = '', more] = PARENT.exec(header?.trim() ?? '') ?? []
  if (version === undefined || version === 'ff' || (version === '00' && more !== undefined)) return undefined
  if (/^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & 1 }
}

export function writeTraceParent({ traceId, spanId, traceFlags }: TraceParent): string {
  return `00-${traceId}-${spanId}-${(traceFlags & 1).toString(16).padStart(2, '0')}`
}
