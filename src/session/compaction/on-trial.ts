// An event as it would stand behind a log, for compiling on trial: what would be seen if it were logged.

import type { EventBody, SessionEvent } from '../log/event.js'

export function eventBehind(events: readonly SessionEvent[], body: EventBody): SessionEvent {
  const last = events.at(-1)
  return {
    body,
    ...{ id: '', session: last?.session ?? '', tenant: last?.tenant ?? '', at: 0, sources: [], digest: '' },
    previous: last?.digest ?? '',
    position: (last?.position ?? 0) + 1,
  }
}
