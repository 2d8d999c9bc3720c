// Another Refrain: salts, and the headers by which it learns what this one knows of the request already.

import type { RemoteKind } from './contract.js'
import { waitingGauge } from './gauges.js'
import { saltSetting, usageSetting } from './settings.js'

export const refrain: RemoteKind = {
  kind: 'refrain',
  owner: 'refrain',
  salted: true,
  waiting: [waitingGauge('refrain_requests_waiting')],
  settings: (sending) => [...saltSetting(sending), ...usageSetting(sending)],
  // It gets all questions at once, as they came.
  aside: () => undefined,
  headers: ({ session, priority }) => ({
    'x-refrain-priority': priority,
    ...(session !== undefined && /^[!-~]{1,256}$/.test(session) && { 'x-refrain-session': session }),
  }),
}
