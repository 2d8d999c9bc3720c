// Traces: what the program says of requests anyway, as spans that go to a collector (OTLP over HTTP). The only file that
// imports @opentelemetry, and loaded only where config `telemetry.trace.endpoint` is set. Invariant: nothing waits for the
// collector; a dead one costs spans and a note, and at the end CLOSE_MS.
//
//   request ─┬─ queue, restore, prefill, decode        embedded engine
//            └─ route, upstream (one a backend tried)  fleet; `traceparent` goes on to the backend

import { Agent as HttpAgent } from 'node:http'
import { Agent as HttpsAgent } from 'node:https'
import {
  type Context,
  createTraceState,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  type Tracer,
  trace,
} from '@opentelemetry/api'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { resourceFromAttributes } from '@opentelemetry/resources'
import {
  BasicTracerProvider,
  BatchSpanProcessor,
  ParentBasedSampler,
  type SpanExporter,
  TraceIdRatioBasedSampler,
} from '@opentelemetry/sdk-trace-base'
import {
  type AttemptBegun,
  type AttemptSettled,
  attemptBegun,
  attemptSettled,
  machineMs,
  note,
  type PhasesTimed,
  phasesTimed,
  type RequestBegun,
  type RequestSettled,
  requestBegun,
  requestSettled,
} from '../core/signals.js'
import {
  attempt,
  attemptOutcome,
  beginning,
  failureOf,
  outcome,
  phaseSpans,
  routing,
  type ServerAddress,
  spanName,
} from './trace-attributes.js'
import { readTraceParent, writeTraceParent } from './trace-context.js'

export interface TraceOptions {
  /** The collector's base (`http://127.0.0.1:4318`), or the whole URL that ends in /v1/traces. */
  readonly endpoint: string
  /** Of requests without a decision of their own. */
  readonly sampleRatio: number
  readonly headers: Readonly<Record<string, string>>
  readonly serviceName: string
  readonly version: string
  readonly server: ServerAddress
  /** Tests. Absent: DELAY_MS, CLOSE_MS. */
  readonly delayMs?: number
  readonly closeMs?: number
}

export interface Tracing {
  /** Sends what is left, for CLOSE_MS at most. */
  close(): Promise<void>
}

/** Spans wait so long for others to go with. */
const DELAY_MS = 2000
/** That wait to be sent, some 2 kB each; more are dropped. */
const QUEUED_SPANS = 2048
/** One export, all its tries. */
const EXPORT_MS = 5000
const CLOSE_MS = 2000
/** Requests that are over, whose phases the engine's thread may still tell. */
const SETTLED = 1024

export function startTrace(options: TraceOptions): Tracing {
  const { serviceName, version, sampleRatio } = options
  const agents = new Set<HttpAgent>()
  const processor = new BatchSpanProcessor(noted(exporterOf(options, agents), nameOf(options)), {
    scheduledDelayMillis: options.delayMs ?? DELAY_MS,
    maxQueueSize: QUEUED_SPANS,
    maxExportBatchSize: QUEUED_SPANS / 4,
    exportTimeoutMillis: EXPORT_MS,
  })
  const provider = new BasicTracerProvider({
    resource: resourceFromAttributes({ 'service.name': serviceName, 'service.version': version }),
    sampler: new ParentBasedSampler({ root: new TraceIdRatioBasedSampler(sampleRatio) }),
    spanProcessors: [processor],
  })
  const spans = new Spans(provider.getTracer('refrain', version), options.server)
  const stops = [
    requestBegun.subscribe((begun) => spans.begin(begun)),
    requestSettled.subscribe((settled) => spans.settle(settled)),
    phasesTimed.subscribe((phases) => spans.phases(phases)),
    attemptBegun.subscribe((begun) => spans.attempt(begun)),
    attemptSettled.subscribe((settled) => spans.attempted(settled)),
  ]
  return {
    async close() {
      for (const stop of stops) stop()
      let timer: NodeJS.Timeout | undefined
      const bound = new Promise<void>((resolve) => {
        timer = setTimeout(resolve, options.closeMs ?? CLOSE_MS)
      })
      // A collector that does not take them was told of when it began.
      await Promise.race([provider.shutdown().catch(() => undefined), bound])
      clearTimeout(timer)
      for (const agent of agents) agent.destroy()
    },
  }
}

function exporterOf({ endpoint, headers }: TraceOptions, agents: Set<HttpAgent>): SpanExporter {
  const url = new URL(endpoint)
  if (!url.pathname.endsWith('/v1/traces')) url.pathname = `${url.pathname.replace(/\/$/, '')}/v1/traces`
  return new OTLPTraceExporter({
    url: url.href,
    headers: { ...headers },
    timeoutMillis: EXPORT_MS,
    httpAgentOptions: (protocol) => {
      const agent = protocol === 'https:' ? new HttpsAgent({ keepAlive: true }) : new HttpAgent({ keepAlive: true })
      agents.add(agent)
      return agent
    },
  })
}

/** Without credentials. */
function nameOf({ endpoint }: TraceOptions): string {
  return new URL(endpoint).host
}

/** Says once that a collector does not take spans, and once that it does again. */
function noted(exporter: SpanExporter, collector: string): SpanExporter {
  let works = true
  return {
    export(spans, done) {
      exporter.export(spans, (result) => {
        const isTaken = result.code === 0
        if (isTaken !== works) {
          works = isTaken
          const why = result.error?.message ?? 'it does not say why'
          note.publish(
            isTaken
              ? { level: 'info', text: `the collector at ${collector} takes traces again` }
              : { level: 'warn', text: `the collector at ${collector} takes no traces; they are dropped: ${why}` },
          )
        }
        done(result)
      })
    },
    forceFlush: async () => exporter.forceFlush?.(),
    shutdown: () => exporter.shutdown(),
  }
}

/** A request whose span is there. */
interface Live {
  readonly span: Span
  readonly context: Context
  readonly route: string
  /** Of the machine's clock to Unix milliseconds. */
  readonly epoch: number
  readonly startMs: number
  /** At the backends that it is at, by attempt. */
  readonly upstream: Map<object, Span>
}

class Spans {
  readonly #tracer: Tracer
  readonly #server: ServerAddress
  readonly #live = new Map<string, Live>()
  /** The oldest first. */
  readonly #settled = new Map<string, Live>()

  constructor(tracer: Tracer, server: ServerAddress) {
    this.#tracer = tracer
    this.#server = server
  }

  begin(begun: RequestBegun): void {
    const { id, route, sinceMs } = begun
    const epoch = Date.now() - machineMs()
    const startMs = machineMs() + epoch - sinceMs
    const parent = parentOf(begun)
    const options = { kind: SpanKind.SERVER, startTime: startMs }
    const span = this.#tracer.startSpan(spanName(route, ''), options, parent)
    if (span.isRecording()) span.setAttributes(beginning(begun, this.#server))
    this.#live.set(id, { span, context: trace.setSpan(parent, span), route, epoch, startMs, upstream: new Map() })
  }

  settle(settled: RequestSettled): void {
    const { id, status, error, model, ttftMs } = settled
    const live = this.#live.get(id)
    // What was refused at the door has no span.
    if (live === undefined) return
    this.#live.delete(id)
    const { span, startMs } = live
    // Of what is sampled out nobody asks any more.
    if (!span.isRecording()) return
    span.updateName(spanName(live.route, model))
    span.setAttributes(outcome(settled))
    if (ttftMs !== undefined) span.addEvent('first_token', startMs + ttftMs)
    if (status >= 500) span.setStatus({ code: SpanStatusCode.ERROR, ...(error !== undefined && { message: error }) })
    for (const upstream of live.upstream.values()) upstream.end(nowOf(live))
    span.end(nowOf(live))
    this.#settled.set(id, live)
    const [oldest] = this.#settled.keys()
    if (this.#settled.size > SETTLED && oldest !== undefined) this.#settled.delete(oldest)
  }

  /** Comes from another thread, and so when the request is over as well. */
  phases(phases: PhasesTimed): void {
    const live = this.#live.get(phases.id) ?? this.#settled.get(phases.id)
    if (live === undefined || !isSampled(live.span)) return
    const spans = phaseSpans(phases)
    let at = phases.endedAt + live.epoch - spans.reduce((sum, { ms }) => sum + ms, 0)
    for (const { name, ms, attributes } of spans) {
      this.#tracer.startSpan(name, { startTime: at, attributes }, live.context).end(at + ms)
      at += ms
    }
  }

  attempt(begun: AttemptBegun): void {
    const live = this.#live.get(begun.id)
    if (live === undefined) return
    const now = nowOf(live)
    if (!isSampled(live.span)) {
      tell(begun, live.span)
      return
    }
    const routed = { startTime: now - begun.routeMs, attributes: routing(begun) }
    this.#tracer.startSpan('route', routed, live.context).end(now)
    const options = { kind: SpanKind.CLIENT, startTime: now, attributes: attempt(begun, live.route) }
    const upstream = this.#tracer.startSpan(spanName(live.route, begun.model), options, live.context)
    live.upstream.set(begun.key, upstream)
    tell(begun, upstream)
  }

  attempted(settled: AttemptSettled): void {
    const live = this.#live.get(settled.id)
    const span = live?.upstream.get(settled.key)
    if (live === undefined || span === undefined) return
    live.upstream.delete(settled.key)
    span.setAttributes(attemptOutcome(settled))
    if (settled.outcome !== 'answered' && settled.outcome !== 'lost') {
      const message = settled.why ?? failureOf(settled)
      span.setStatus({ code: SpanStatusCode.ERROR, ...(message !== undefined && { message }) })
    }
    span.end(nowOf(live))
  }
}

function nowOf({ epoch }: Live): number {
  return machineMs() + epoch
}

function isSampled(span: Span): boolean {
  return (span.spanContext().traceFlags & 1) === 1
}

/** The backend goes on from `span`. */
function tell({ headers }: AttemptBegun, span: Span): void {
  const { traceState, ...own } = span.spanContext()
  headers['traceparent'] = writeTraceParent(own)
  // Without a parent that could be read, what came with it means nothing.
  if (traceState === undefined) delete headers['tracestate']
}

function parentOf({ traceparent, tracestate }: RequestBegun): Context {
  const parent = readTraceParent(traceparent)
  if (parent === undefined) return ROOT_CONTEXT
  const traceState = tracestate === undefined ? {} : { traceState: createTraceState(tracestate) }
  return trace.setSpanContext(ROOT_CONTEXT, { ...parent, ...traceState, isRemote: true })
}
