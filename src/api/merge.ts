// Several prompts of one request, answered side by side, seen as one stream of events. Invariant: one `start` first and
// one `finish` last, each the sum of all; choices are counted through, `n` per prompt; the first failure ends them all.

import type { CacheUsage } from '../core/block.js'
import { Channel } from '../core/channel.js'
import type { GenerateEvent } from '../core/events.js'
import { linkAbort } from '../core/linked-abort.js'

type Run = (signal: AbortSignal) => AsyncIterable<GenerateEvent>
type Ending = Extract<GenerateEvent, { type: 'finish' }>

/** Events are held back until every prompt has started, because the sum of the starts comes first. */
export async function* merge(
  runs: readonly Run[],
  n: number,
  signal: AbortSignal,
): AsyncGenerator<GenerateEvent, void> {
  const stop = linkAbort(signal)
  const channel = new Channel<{ prompt: number; event: GenerateEvent }>()
  const pump = async (run: Run, prompt: number) => {
    for await (const event of run(stop.signal)) channel.push({ prompt, event })
  }
  Promise.all(runs.map(pump)).then(
    () => channel.end(),
    (error) => channel.fail(error),
  )
  const held: GenerateEvent[] = []
  const starts: GenerateEvent[] = []
  const endings: Ending[] = []
  try {
    for await (const { prompt, event } of channel) {
      if (event.type === 'finish') endings.push(event)
      else if (event.type === 'token' || event.type === 'end') {
        held.push({ ...event, choice: prompt * n + event.choice })
      } else if (event.type === 'quick') held.push(event)
      else if (starts.push(event) === runs.length) yield sumStarts(starts)
      if (starts.length === runs.length) yield* held.splice(0)
    }
    yield sumEndings(endings)
  } finally {
    stop.unlink()
    stop.abort(new Error('another prompt of this request has failed'))
  }
}

function sumStarts(events: readonly GenerateEvent[]): GenerateEvent {
  const starts = events.filter((event) => event.type === 'start')
  return {
    type: 'start',
    promptTokens: starts.reduce((sum, start) => sum + start.promptTokens, 0),
    cache: starts.map((start) => start.cache).reduce(addUsage),
    committedTokens: starts.reduce((sum, start) => sum + start.committedTokens, 0),
  }
}

function sumEndings(endings: readonly Ending[]): Ending {
  return endings.reduce((a, b) => ({
    type: 'finish',
    promptTokens: a.promptTokens + b.promptTokens,
    completionTokens: a.completionTokens + b.completionTokens,
    cache: addUsage(a.cache, b.cache),
    committedTokens: a.committedTokens + b.committedTokens,
  }))
}

function addUsage(a: CacheUsage, b: CacheUsage): CacheUsage {
  return {
    working: a.working + b.working,
    memory: a.memory + b.memory,
    disk: a.disk + b.disk,
    computed: a.computed + b.computed,
  }
}
