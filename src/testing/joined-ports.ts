// Two ends of a channel between processes, in one process.

import type { Port } from '../router/dialogue.js'

/** Two ports that are joined; messages are cloned and arrive in order, a little later. */
export function joinedPorts(): [Port, Port] {
  const listeners: ((message: unknown) => void)[][] = [[], []]
  const portOf = (mine: 0 | 1): Port => ({
    post(message, done) {
      const copy = structuredClone(message)
      queueMicrotask(() => {
        done()
        for (const listener of listeners[1 - mine] ?? []) listener(copy)
      })
    },
    onMessage: (listener) => void listeners[mine]?.push(listener),
  })
  return [portOf(0), portOf(1)]
}
