// The part of the fleet's composition root that says who its members are: by the config, a watched file and names that
// resolve to many, by operators' requests, and in one of several processes by their owner. Invariant: where there is an
// owner, members come and go by its word, and what an operator changes in one process is changed in all.

import { join } from 'node:path'
import { parse } from 'yaml'
import type { FleetDesk } from './api/fleet-routes.js'
import type { RemoteOptions } from './backend/remote/contract.js'
import { LlamaSlots } from './backend/remote/llama-slots.js'
import { SlotRecords } from './backend/remote/slot-records.js'
import { type Config, ConfigError, makeConfig } from './config.js'
import type { Clock } from './core/clock.js'
import { RefrainError } from './core/errors.js'
import { note } from './core/signals.js'
import { Discovery } from './router/discovery.js'
import { DrainedIds } from './router/drained-ids.js'
import type { Fleet } from './router/fleet.js'
import type { DeskChange, OwnerLink } from './router/owner-link.js'

export interface Membership {
  start(): Promise<void>
  stop(): void
}

export interface MembershipParts {
  readonly fleet: Pick<Fleet, 'add' | 'assign'>
  readonly clock: Clock
  /** Reads the config again. @throws ConfigError */
  readonly again?: (() => Config) | undefined
}

/** The source of members that the config names. */
const CONFIGURED = 'config'

/** Members by the config and by what it names; on SIGHUP it is read again. @throws ConfigError */
export function createMembership(config: Config, { fleet, clock, again }: MembershipParts): Membership {
  const { watch: file, watchMs: everyMs } = config.fleet
  const discovery = new Discovery({ everyMs, ...(file !== undefined && { file }) }, { fleet, clock, parse: backendsIn })
  const backends = config.backends as readonly RemoteOptions[]
  for (const entry of backends) if (!entry.resolve) addConfigured(fleet, entry)
  const reload = () => configureAgain(discovery, again)
  return {
    async start() {
      await discovery.configure(CONFIGURED, backends)
      discovery.start()
      process.on('SIGHUP', reload)
    },
    stop() {
      process.off('SIGHUP', reload)
      discovery.stop()
    },
  }
}

/** Members by the owner's word alone. @throws Error where one cannot be opened. */
export function ownedMembership({ welcome }: OwnerLink, fleet: Fleet): Membership {
  for (const { options, source, drained } of welcome.members) {
    const { id } = fleet.add(options, source)
    if (drained) fleet.drain(id)
  }
  // The owner reads the config again; without a listener the signal would end this process.
  const pass = () => undefined
  return {
    async start() {
      process.on('SIGHUP', pass)
    },
    stop: () => void process.off('SIGHUP', pass),
  }
}

/** The fleet as operators hold it: with an owner, whatever is changed in it is told. */
export function deskOf(fleet: Fleet, owner: OwnerLink | undefined): FleetDesk {
  if (owner === undefined) return fleet
  const both = (what: 'drain' | 'undrain') => (id: string) => {
    fleet[what](id)
    owner.changed({ what, id })
  }
  return {
    reports: () => fleet.reports(),
    report: (id) => fleet.report(id),
    add(options, source) {
      const member = fleet.add(options, source)
      owner.changed({ what: 'add', options, source })
      return member
    },
    async remove(id) {
      const left = fleet.remove(id)
      owner.changed({ what: 'remove', id })
      await left
    },
    drain: both('drain'),
    undrain: both('undrain'),
  }
}

/** What an operator changed in another process. */
export function applyChange(fleet: Fleet, change: DeskChange): void {
  try {
    if (change.what === 'add') fleet.add(change.options, change.source)
    else if (change.what === 'remove') fleet.remove(change.id).catch(passKnown)
    else fleet[change.what](change.id)
  } catch (error) {
    passKnown(error)
  }
}

/** Two operators did the same at once: it is so already. */
function passKnown(error: unknown): void {
  if (!(error instanceof RefrainError)) throw error
}

/** What operators drained, over restarts. */
export function openDrains({ dataDir }: Config): DrainedIds {
  return new DrainedIds(join(dataDir, 'fleet', 'drained.json'))
}

export function createSlots(config: Config, fleet: Fleet, clock: Clock): LlamaSlots {
  const { slotSaveMs, slotFiles } = config.fleet
  return new LlamaSlots(
    { waitMs: config.limits.queueMs, saveAfterMs: slotSaveMs },
    {
      remotes: () => fleet.remotes(),
      records: new SlotRecords(join(config.dataDir, 'fleet', 'llama-slots.json'), slotFiles),
      clock,
    },
  )
}

/** @throws ConfigError */
function addConfigured(fleet: Pick<Fleet, 'add'>, entry: RemoteOptions): void {
  try {
    fleet.add(entry, CONFIGURED)
  } catch (error) {
    throw new ConfigError(`backends: ${(error as Error).message}`)
  }
}

/** What a watched file lists: entries as in the config, or URLs. @throws ConfigError */
function backendsIn(text: string): readonly RemoteOptions[] {
  const value: unknown = parse(text) ?? []
  const list = typeof value === 'string' ? value.split(/\s+/) : Array.isArray(value) ? value : undefined
  if (list === undefined) throw new ConfigError('it must be a list of backends, or a URL a line')
  const backends = list.map((each: unknown) => (typeof each === 'string' ? { url: each } : each))
  return makeConfig({ flags: { backends } }).backends as readonly RemoteOptions[]
}

function configureAgain(discovery: Discovery, again: (() => Config) | undefined): void {
  if (again === undefined) return
  try {
    void discovery.configure(CONFIGURED, again().backends as readonly RemoteOptions[])
    note.publish({ level: 'info', text: 'the backends of the config were read again' })
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    note.publish({ level: 'error', text: `the config is not taken: ${error.message}` })
  }
}

/** As an entry of the config's `backends`, complete. @throws RefrainError */
export function backendOf(value: unknown): RemoteOptions {
  try {
    return makeConfig({ flags: { backends: [value] } }).backends[0] as RemoteOptions
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    // `backends.0.kind: must be one of ...`
    const [path = '', ...rest] = error.message.split(': ')
    const param = path.replace(/^backends\.0\.?/, '')
    const what = rest.join(': ')
    throw new RefrainError('invalid_request', `${param}: ${what}`, { ...(param !== '' && { param }) })
  }
}
