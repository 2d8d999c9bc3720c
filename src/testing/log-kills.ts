// Kills a process that writes the session log, again and again at random moments, and holds what is found against what was
// acknowledged. For the test (a few times) and bench/session-log.ts (200 times).

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import type { LogHouse } from './log-house.js'
import { seeded } from './random.js'

export interface KillOutcome {
  readonly kills: number
  /** Appends that were acknowledged, all processes together. */
  readonly acknowledged: number
  /** Those that the next process did not find, as `session position`. */
  readonly lost: readonly string[]
}

interface Killing {
  readonly folder: string
  readonly durability: 'process' | 'power'
  readonly kills: number
  readonly seed: number
}

/** @throws Error where a process finds a torn event, a part of an append, or another text than was written. */
export async function killAgainAndAgain(
  house: Pick<LogHouse, 'program' | 'workerUrl'>,
  { folder, durability, kills, seed }: Killing,
): Promise<KillOutcome> {
  const chance = seeded(seed)
  const kept = new Map<string, number>()
  const lost: string[] = []
  let acknowledged = 0
  for (let kill = 0; kill <= kills; kill++) {
    const args = [house.program('log-writer'), house.workerUrl.href, folder, durability, '8']
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    let said = ''
    child.stderr.on('data', (data) => {
      said += data
    })
    const ended = once(child, 'exit')
    const found = new Map<string, number>()
    const wanted = 1 + chance.below(60)
    let answered = 0
    for await (const line of createInterface({ input: child.stdout })) {
      const [word, session = '', position] = line.split(' ')
      if (word === 'found') found.set(session, Number(position))
      if (word === 'ready') {
        for (const [id, at] of kept) if ((found.get(id) ?? 0) < at) lost.push(`${id} ${at}`)
        // The last process is there to look.
        if (kill === kills) child.kill('SIGKILL')
      }
      if (word !== 'kept') continue
      acknowledged++
      // In the midst of its work, and anywhere in it.
      if (++answered === wanted) setTimeout(() => child.kill('SIGKILL'), chance.next() * 20)
      kept.set(session, Math.max(kept.get(session) ?? 0, Number(position)))
    }
    const [, signal] = await ended
    if (signal !== 'SIGKILL') throw new Error(`the writer ended by itself: ${said}`)
  }
  return { kills, acknowledged, lost }
}
