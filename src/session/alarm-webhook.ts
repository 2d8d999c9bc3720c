// Tells alarms to the operator's webhook, one POST each. Invariant: it never keeps anybody waiting; what waits is bounded, each
// try is, and what is given up is said.
//
//   POST { "tenant", "session", "what", "turn", ... , "at" }        any 2xx is an answer

import { linkAbort } from '../core/linked-abort.js'
import { type CacheAlarm, cacheAlarm, note } from '../core/signals.js'

export interface WebhookOptions {
  readonly url: string
  /** Of one try. */
  readonly timeoutMs: number
  readonly tries: number
  /** Alarms that wait; further ones are dropped. */
  readonly waiting: number
  /** Before the second try; doubled before each further one. */
  readonly pauseMs?: number
}

const PAUSE_MS = 1000

export interface AlarmWebhook {
  /** Stops to listen, gives up what waits. */
  close(): Promise<void>
}

export function alarmWebhook({ url, timeoutMs, tries, waiting, pauseMs = PAUSE_MS }: WebhookOptions): AlarmWebhook {
  const ended = new AbortController()
  let [depth, dropped] = [0, 0]
  let work: Promise<void> = Promise.resolve()

  async function tell(alarm: CacheAlarm, at: number): Promise<void> {
    for (let left = tries - 1, pause = pauseMs; !ended.signal.aborted; left--, pause *= 2) {
      const fault = await post(url, { ...alarm, at }, { timeoutMs, ended: ended.signal })
      if (fault === undefined || ended.signal.aborted) return
      if (left <= 0) {
        note.publish({ level: 'warn', text: `an alarm was not taken by sessions.alarms.webhook: ${fault}` })
        return
      }
      await rest(pause, ended.signal)
    }
  }

  const stop = cacheAlarm.subscribe((alarm) => {
    if (depth >= waiting) {
      // Told for the first of a row.
      if (dropped++ === 0) note.publish({ level: 'warn', text: `${waiting} alarms wait for sessions.alarms.webhook` })
      return
    }
    depth++
    const at = Date.now()
    work = work
      .then(() => tell(alarm, at))
      .finally(() => {
        depth--
        if (depth === 0) dropped = 0
      })
  })
  return {
    async close() {
      stop()
      ended.abort()
      await work
    },
  }
}

/** Undefined: it was taken. */
async function post(
  url: string,
  body: object,
  { timeoutMs, ended }: { readonly timeoutMs: number; readonly ended: AbortSignal },
): Promise<string | undefined> {
  const { signal, abort, unlink } = linkAbort(ended)
  const timer = setTimeout(() => abort(new Error(`no answer within ${timeoutMs} ms`)), timeoutMs)
  try {
    const response = await fetch(url, {
      ...{ method: 'POST', headers: { 'content-type': 'application/json' }, redirect: 'error', signal },
      body: JSON.stringify(body),
    })
    await response.body?.cancel()
    return response.ok ? undefined : `status ${response.status}`
  } catch (error) {
    return (error as Error).message
  } finally {
    clearTimeout(timer)
    unlink()
  }
}

function rest(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    timer.unref()
    signal.addEventListener('abort', done)
  })
}
