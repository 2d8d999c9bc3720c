// Rules that take out of a conversation what clients put in front of it and change from request to request. Invariant of
// every rule: it is a pure function of one message list, it takes out only what says nothing to the model, and what it
// leaves is the same whatever the part that changes was. They run before the template, step 4 of a request's path.

import type { Kind } from '../../core/kind.js'
import type { ChatMessage } from '../../core/request.js'

export interface HygieneRule {
  /** The very same list where there is nothing to take out. */
  apply(messages: readonly ChatMessage[]): readonly ChatMessage[]
}

export type HygieneKind = Kind<Readonly<Record<string, never>>, undefined, HygieneRule>
