// A collector of traces on a loopback port, for tests: takes OTLP as JSON over HTTP and lays the spans out flat. It can be told
// to take nothing: to refuse, or to be silent.

import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'

export interface CollectedSpan {
  readonly name: string
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId: string | undefined
  /** 1 internal, 2 server, 3 client. */
  readonly kind: number
  /** Unix milliseconds. */
  readonly start: number
  readonly end: number
  readonly attributes: Readonly<Record<string, string | number | boolean>>
  readonly events: readonly { readonly name: string; readonly at: number }[]
  /** 2: an error. */
  readonly status: number
  readonly service: string
}

export interface Collector {
  readonly url: string
  readonly spans: CollectedSpan[]
  /** Of each export. */
  readonly headers: IncomingHttpHeaders[]
  /** Bodies as they came. */
  readonly bodies: string[]
  /** Connections that are open now. */
  readonly open: number
  close(): Promise<void>
}

type Answer = 'takes' | 'refuses' | 'silent'

export async function startCollector(answer: Answer = 'takes'): Promise<Collector> {
  const sockets = new Set<Socket>()
  const kept = { spans: [] as CollectedSpan[], headers: [] as IncomingHttpHeaders[], bodies: [] as string[] }
  const server = createServer((request, response) => {
    let body = ''
    request.setEncoding('utf8')
    request.on('data', (text) => {
      body += text
    })
    request.on('end', () => {
      kept.headers.push(request.headers)
      kept.bodies.push(body)
      if (answer === 'silent') return
      if (answer === 'takes' && request.url === '/v1/traces') kept.spans.push(...spansOf(JSON.parse(body)))
      response.writeHead(answer === 'takes' && request.url === '/v1/traces' ? 200 : 400)
      response.end('{}')
    })
    request.on('error', () => response.destroy())
  })
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    ...kept,
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    get open() {
      return sockets.size
    },
    async close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      for (const socket of sockets) socket.destroy()
      await closed
    },
  }
}

interface Wire {
  readonly resourceSpans: readonly {
    readonly resource: { readonly attributes: readonly Pair[] }
    readonly scopeSpans: readonly { readonly spans: readonly WireSpan[] }[]
  }[]
}
interface Pair {
  readonly key: string
  readonly value: { readonly stringValue?: string; readonly intValue?: number | string; readonly boolValue?: boolean }
}
interface WireSpan {
  readonly name: string
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId?: string
  readonly kind: number
  readonly startTimeUnixNano: string
  readonly endTimeUnixNano: string
  readonly attributes: readonly Pair[]
  readonly events?: readonly { readonly name: string; readonly timeUnixNano: string }[]
  readonly status: { readonly code: number }
}

function spansOf({ resourceSpans }: Wire): CollectedSpan[] {
  return resourceSpans.flatMap(({ resource, scopeSpans }) =>
    scopeSpans.flatMap(({ spans }) =>
      spans.map(({ name, traceId, spanId, parentSpanId, kind, events = [], ...span }) => ({
        ...{ name, traceId, spanId, parentSpanId: parentSpanId || undefined, kind },
        start: msOf(span.startTimeUnixNano),
        end: msOf(span.endTimeUnixNano),
        attributes: plain(span.attributes),
        events: events.map((event) => ({ name: event.name, at: msOf(event.timeUnixNano) })),
        status: span.status.code,
        service: String(plain(resource.attributes)['service.name']),
      })),
    ),
  )
}

function msOf(nanos: string): number {
  return Number(BigInt(nanos) / 1000n) / 1000
}

function plain(pairs: readonly Pair[]): Record<string, string | number | boolean> {
  return Object.fromEntries(
    pairs.map(({ key, value }) => [key, value.stringValue ?? value.boolValue ?? Number(value.intValue)]),
  )
}
