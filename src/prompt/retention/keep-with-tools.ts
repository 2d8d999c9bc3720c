// DeepSeek-V4's rule: with tools all reasoning stays, over user turns too; without them a new user turn drops what is
// before it. Whether there are tools is a matter of the chat, not of one request: compaction requests send none.

import { lastUserTurn, withoutReasoningBefore } from './drop-at-user-turn.js'
import type { Retention } from './retention.js'

export const keepWithTools: Retention = {
  retain: (messages, { tools }) => (tools ? messages : withoutReasoningBefore(lastUserTurn(messages), messages)),
  beyondTemplate: true,
}
