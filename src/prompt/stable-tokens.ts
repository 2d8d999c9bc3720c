// How much of a prompt stands still from turn to turn: all of it but what is written anew behind the conversation each time.
// Between steps 5 and 6 of a request's path.

import type { Rendered } from './contract.js'
import type { EncodedPrompt } from './splice.js'

/** Tokens in front of the last `tail` of `messages` messages, and of what opens the answer. */
export function stableTokens(
  { rendered, prompt }: { readonly rendered: Rendered; readonly prompt: EncodedPrompt },
  { messages, tail }: { readonly messages: number; readonly tail: number },
): number {
  const first = rendered.spans.find(({ message }) => message >= messages - tail)
  return prompt.tokensBefore(tail === 0 ? rendered.tail : (first?.start ?? rendered.tail))
}
