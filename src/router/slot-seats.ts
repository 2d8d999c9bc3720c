// Who gives seats in the slots of a llama-server, as the router's processes ask for them; backend/remote/llama-slots.ts is one.

import type { RemoteUsage, Setting } from '../backend/remote/contract.js'
import type { RouteQuery } from './contract.js'

export interface SlotSeats {
  /** Undefined: the member has no slots. @throws RefrainError `queue_timeout`; the signal's reason. */
  take(
    member: string,
    query: RouteQuery,
    signal: AbortSignal,
  ): Promise<{ readonly settings: readonly Setting[]; leave(usage: RemoteUsage | undefined): void }> | undefined
}
