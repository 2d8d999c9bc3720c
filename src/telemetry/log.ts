// The log: one line per request and the notes of every part, as JSON on stderr. The only file that imports pino.
// Invariant: it subscribes to what the program says anyway and is never a parameter; no key, prompt or answer is written.

import { pino } from 'pino'
import { cacheAlarm, note, type RequestSettled, requestSettled } from '../core/signals.js'

export type LogLevel = 'trace' | 'debug' | 'info' | 'warn' | 'error' | 'fatal' | 'silent'

export interface Log {
  /** Says something of the program's life. */
  say(level: 'info' | 'warn' | 'error', text: string, detail?: object): void
  /** Unsubscribes and writes what is left. */
  close(): void
}

/** Starts to listen. `write` takes the lines; stderr where it is absent. */
export function startLog(level: LogLevel, write?: (line: string) => void): Log {
  const destination = write === undefined ? pino.destination({ fd: 2, sync: false }) : { write }
  const logger = pino({ level, base: null, timestamp: pino.stdTimeFunctions.isoTime }, destination)
  const stopRequests = requestSettled.subscribe((request) => {
    const as = request.status >= 500 ? 'error' : 'info'
    if (logger.isLevelEnabled(as)) logger[as](requestLine(request), 'request')
  })
  const stopNotes = note.subscribe(({ level: noteLevel, text, detail }) => logger[noteLevel](detail ?? {}, text))
  const stopAlarms = cacheAlarm.subscribe(({ session, ...alarm }) => {
    logger.warn({ ...alarm, ...(session !== undefined && { session: session.slice(0, 128) }) }, 'cache alarm')
  })
  return {
    say: (sayLevel, text, detail = {}) => logger[sayLevel](detail, text),
    close() {
      stopRequests()
      stopNotes()
      stopAlarms()
      if (write === undefined) (destination as ReturnType<typeof pino.destination>).flushSync()
    },
  }
}

/** Total, matched by tier, computed, time to the first token, tokens a second. */
function requestLine(request: RequestSettled): object {
  const { ttftMs, durationMs, completionTokens } = request
  const decodeMs = ttftMs === undefined ? 0 : durationMs - ttftMs
  return {
    id: request.id,
    tenant: request.tenant,
    route: request.route,
    model: request.model,
    ...(request.session === undefined ? {} : { session: request.session.slice(0, 128) }),
    status: request.status,
    ...(request.error === undefined ? {} : { error: request.error }),
    total: request.promptTokens,
    working: request.working,
    memory: request.memory,
    disk: request.disk,
    computed: request.computed,
    generated: completionTokens,
    ...(request.hedged === undefined ? {} : { hedged: request.hedged }),
    ...(ttftMs === undefined ? {} : { ttftMs: round(ttftMs) }),
    ...(decodeMs > 0 && completionTokens > 1 ? { tokPerS: round(((completionTokens - 1) / decodeMs) * 1000) } : {}),
    ms: round(durationMs),
  }
}

function round(value: number): number {
  return Math.round(value * 10) / 10
}
