// The composition root of a fleet's owner: several router processes behind one port. It opens the data folder, follows
// events, watches members, gives seats in slots, talks to other machines, starts processes and starts those anew that die.
// Invariant: no request goes through it, so that whatever it does delays none; processes end with it.

import cluster, { type Worker } from 'node:cluster'
import { randomBytes } from 'node:crypto'
import { openRemote } from './backend/remote/open-remote.js'
import { createKnowledge } from './compose-knowledge.js'
import { applyChange, createMembership, createSlots, type MembershipParts, openDrains } from './compose-members.js'
import { keepForAll, openConfiguredShared, openLog, sharedCounts, within } from './compose-sharing.js'
import type { Config } from './config.js'
import { type Clock, systemClock } from './core/clock.js'
import { note } from './core/signals.js'
import { Dialogue, type Port } from './router/dialogue.js'
import { Fleet } from './router/fleet.js'
import { itemText, keptIn, newsText } from './router/news.js'
import { OwnerLink } from './router/owner-link.js'
import { type WorkerEars, WorkerHub } from './router/worker-hub.js'
import { joinMetrics, startMetrics } from './telemetry/metrics.js'

export interface ClusterOptions {
  readonly again?: () => Config
}

export interface Cluster {
  readonly model: string
  /** Resolves with the URL once all processes listen. @throws ProcessEnded where one of them cannot start. */
  start(): Promise<string>
  stop(drainMs?: number): Promise<void>
}

/** A process ended before it listened; it has said why. */
export class ProcessEnded extends Error {
  override readonly name = 'ProcessEnded'
  readonly exitCode: number

  constructor(exitCode: number) {
    super(`a router process ended with code ${exitCode} before it listened`)
    this.exitCode = exitCode
  }
}

/** In a router process: its way to the owner, and the config that the owner has. */
export async function connectToOwner(): Promise<{ readonly config: Config; readonly owner: OwnerLink }> {
  const dialogue = new Dialogue({
    post(message, done) {
      // Without its owner this process ends (node:cluster); until then nothing more leaves.
      process.send?.(message, undefined, {}, done)
    },
    onMessage: (listener) => void process.on('message', listener),
  })
  const config = await dialogue.ask<Config>('config')
  return { config, owner: await OwnerLink.open(dialogue) }
}

/** @throws ConfigError where a backend of the config cannot be one. */
export async function composeCluster(config: Config, options: ClusterOptions = {}): Promise<Cluster> {
  const clock = systemClock
  const { fleet: limits } = config
  const origin = randomBytes(9).toString('base64url')
  const log = await openLog(config, clock)
  const fleet: Fleet = new Fleet(limits, {
    open: (entry) => knowledge.follow(openRemote(entry, limits)),
    clock,
    onEmptied: (id) => slots.emptied(id),
    onTurned: (id) => hub.look(id),
    drains: openDrains(config),
  })
  const keep = (text: string) => {
    const { records, released } = keptIn(text)
    for (const record of records) log.put(record)
    for (const key of released) log.remove(key)
    return { records, released }
  }
  const shared = await openConfiguredShared(config, clock, {
    news(text) {
      // What this machine said itself comes back, too.
      if (text.startsWith(`["1","${origin}`)) return
      keep(text)
      hub.news(text)
    },
    sessions: (records) =>
      hub.news(
        newsText(
          origin,
          records.map((record) => itemText({ kind: 'kept', record })),
        ),
      ),
  })
  const hub: WorkerHub = new WorkerHub({
    origin,
    clock,
    welcome: () => ({
      processes: limits.processes,
      members: fleet.entries(),
      up: fleet.members().flatMap(({ id, state }) => (state === 'up' ? [id] : [])),
      records: [...log.records()],
      isWatched: kept.isWatched(),
    }),
    retell: (sink) => knowledge.index.retell(sink),
    told(text) {
      const { records, released } = keep(text)
      shared?.send(text)
      shared?.keep(records)
      shared?.forget(released)
    },
    changed: (change) => applyChange(fleet, change),
    look: (member) => fleet.look(member),
    seats: { take: (...asked) => slots.take(...asked) },
    enclosed: (origin, what) => kept.enclosed(origin, what),
    ended: (origin) => kept.ended(origin),
    answer: (question) => kept.answer(question),
    scrape: async (parts) => joinMetrics([await metrics.parts(), ...parts]),
  })
  const kept = keepForAll(config, { clock, hub, members: () => fleet.members().map(({ id }) => id) })
  const knowledge = createKnowledge(config, {
    remotes: () => fleet.remotes(),
    isUp: () => false,
    clock,
    listener: hub.kv,
  })
  const slots = createSlots(config, fleet, clock)
  const members: MembershipParts['fleet'] = {
    add: (...entry) => fleet.add(...entry),
    assign(source, wanted) {
      fleet.assign(source, wanted)
      hub.assign({ source, wanted })
      // Of those that came just now only this process knows that they were drained before.
      for (const id of fleet.drained()) hub.changed({ what: 'drain', id })
    },
  }
  const membership = createMembership(config, { fleet: members, clock, again: options.again })
  const metrics = startMetrics(() => ({ running: 0, waiting: 0 }), {
    fleet: {
      backends: () => [],
      slots: () => ({ ...slots.counts }),
      shared: () => (shared === undefined ? {} : sharedCounts(shared)),
    },
  })
  const processes = new Processes(config, hub, clock)
  return {
    model: `${config.backends.length} ${config.backends.length === 1 ? 'backend' : 'backends'}`,
    async start() {
      fleet.start()
      await membership.start()
      if (shared !== undefined) await within(shared.tried(), clock)
      return processes.start()
    },
    async stop(drainMs = config.server.drainMs) {
      membership.stop()
      await processes.stop(drainMs)
      await slots.close()
      await fleet.stop()
      await shared?.close()
      await log.close()
      metrics.close()
      kept.close()
    },
  }
}

// --- processes -------------------------------------------------------------------------------------------------------

/** Until one that died is started again; twice as long each time that it did not live long. */
const RESTART_MS = 100
const MAX_RESTART_MS = 10_000
const LONG_LIFE_MS = 30_000
/** After a drain's end; then it is killed. */
const GRACE_MS = 5000

interface Running {
  readonly worker: Worker
  readonly ended: Promise<void>
  stop(drainMs: number): void
}

class Processes {
  readonly #config: Config
  readonly #hub: WorkerHub
  readonly #clock: Clock
  readonly #running = new Set<Running>()
  #isStopping = false

  constructor(config: Config, hub: WorkerHub, clock: Clock) {
    this.#config = config
    this.#hub = hub
    this.#clock = clock
  }

  async start(): Promise<string> {
    cluster.setupPrimary({ serialization: 'advanced' })
    const count = this.#config.fleet.processes
    const urls = await Promise.all(Array.from({ length: count }, (_, place) => this.#startFirst(place)))
    return urls[0] as string
  }

  /** One of the first: the whole waits for it, and fails with it. */
  #startFirst(place: number): Promise<string> {
    return new Promise((resolve, reject) => {
      let hasListened = false
      this.#fork({
        name: nameOf(place),
        listening(url) {
          hasListened = true
          resolve(url)
        },
        ended: (code, livedMs) => {
          if (hasListened) this.#again({ place, livedMs, waitMs: RESTART_MS })
          else reject(new ProcessEnded(code))
        },
      })
    })
  }

  #again({ place, livedMs, waitMs }: { place: number; livedMs: number; waitMs: number }): void {
    if (this.#isStopping) return
    const ms = livedMs >= LONG_LIFE_MS ? RESTART_MS : waitMs
    this.#clock.after(ms, () => {
      if (this.#isStopping) return
      this.#fork({
        name: nameOf(place),
        listening: () => note.publish({ level: 'info', text: `${nameOf(place)} is back` }),
        ended: (_code, lived) => this.#again({ place, livedMs: lived, waitMs: Math.min(2 * ms, MAX_RESTART_MS) }),
      })
    })
  }

  #fork(on: WorkerEars & { ended(code: number, livedMs: number): void }): void {
    const worker = cluster.fork()
    const closeLimbo = watchHandover(worker)
    const startedAt = this.#clock.now()
    const end = this.#hub.add(portOf(worker), on, this.#config)
    const ended = new Promise<void>((resolve) => {
      worker.once('exit', (code, signal) => {
        end.close()
        closeLimbo()
        this.#running.delete(running)
        const how = signal === null ? `code ${code}` : signal
        if (!this.#isStopping) note.publish({ level: 'error', text: `${on.name} ended: ${how}` })
        on.ended(code ?? 1, this.#clock.now() - startedAt)
        resolve()
      })
    })
    const running: Running = { worker, ended, stop: (drainMs) => end.dialogue.tell('stop', drainMs) }
    this.#running.add(running)
  }

  /** Each ends when its last request is over, or after `drainMs`. */
  async stop(drainMs: number): Promise<void> {
    this.#isStopping = true
    const all = [...this.#running]
    for (const running of all) running.stop(drainMs)
    const cancel = this.#clock.after(drainMs + GRACE_MS, () => {
      for (const { worker } of all) worker.process.kill('SIGKILL')
    })
    await Promise.all(all.map(({ ended }) => ended))
    cancel()
  }
}

/** For people. */
const nameOf = (place: number) => `router process ${place}`

/** Messages that a process has not taken; with more it is not busy, it stands still. */
const MAX_BACKLOG = 20_000

function portOf(worker: Worker): Port {
  let backlog = 0
  return {
    post(message, done) {
      if (++backlog > MAX_BACKLOG) worker.process.kill('SIGKILL')
      // `send` throws nothing: what cannot leave is told to the callback.
      worker.send(message as object, undefined, {}, () => {
        backlog--
        done()
      })
    },
    onMessage: (listener) => void worker.on('message', listener),
  }
}

interface Handle {
  close(): void
}

/** What node:cluster says to a process when it hands a connection over, and what comes back when that has it. */
interface Handover {
  readonly act?: string
  readonly seq?: number
  readonly ack?: number
}

/**
 * A connection that is handed to a process which dies before it has taken it would stay open in this one, with a client
 * that waits for ever. The function closes those, so that the client is told.
 */
function watchHandover(worker: Worker): () => void {
  const onTheWay = new Map<number, Handle>()
  const child = worker.process
  const send = child.send.bind(child) as (...args: unknown[]) => boolean
  child.send = ((...args: unknown[]) => {
    const [message, handle] = args as [Handover | undefined, Handle | undefined]
    if (message?.act === 'newconn' && message.seq !== undefined && handle) onTheWay.set(message.seq, handle)
    return send(...args)
  }) as typeof child.send
  child.on('internalMessage' as 'message', (message: unknown) => {
    const { ack } = (message ?? {}) as Handover
    if (ack !== undefined) onTheWay.delete(ack)
  })
  return () => {
    for (const handle of onTheWay.values()) handle.close()
    onTheWay.clear()
  }
}
