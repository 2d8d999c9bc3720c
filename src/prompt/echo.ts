// Completions' `echo`: an answer that begins with its prompt. Invariant: the prompt's text counts as no token.

import type { GenerateEvent } from '../core/events.js'

/** The events, with the prompt's text in front of every choice. */
export async function* echoing(
  events: AsyncIterable<GenerateEvent>,
  n: number,
  text: string,
): AsyncGenerator<GenerateEvent> {
  for await (const event of events) {
    yield event
    if (event.type !== 'start') continue
    for (let choice = 0; choice < n; choice++) yield { type: 'token', choice, ids: [], text }
  }
}
