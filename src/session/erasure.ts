// Takes away what is kept of a session, of a tenant, or of turns whose sources were revoked: running turns first, then
// cached blocks, replies, explanations, the log last. Invariant: whoever is told that it is done finds none of it anywhere;
// where a step fails the log still stands, and asking again goes on.

import type { BlockHash } from '../core/block.js'
import { RefrainError } from '../core/errors.js'
import type { SessionPorts, SourceView } from './contract.js'
import type { SessionLog } from './log/contract.js'
import type { OpenSession, OpenSessions, Whose } from './open-session.js'
import { planRevocation } from './revocation-plan.js'
import type { SourcePolicy } from './sources.js'

export interface ErasureDeps {
  readonly log: SessionLog
  readonly open: OpenSessions
  readonly ports: SessionPorts
  readonly sources: SourcePolicy
}

export class Erasure {
  readonly #log: SessionLog
  readonly #open: OpenSessions
  readonly #ports: SessionPorts
  readonly #sources: SourcePolicy

  constructor({ log, open, ports, sources }: ErasureDeps) {
    this.#sources = sources
    this.#log = log
    this.#open = open
    this.#ports = ports
  }

  /** @throws RefrainError `conflict` where it has forks. */
  async session(whose: Whose): Promise<void> {
    const { tenant, session } = whose
    const forks = await this.#log.forksOf(tenant, session)
    if (forks.length > 0)
      throw new RefrainError('conflict', `'${session}' has forks that are not erased: ${forks.slice(0, 8).join(', ')}`)
    await this.#end(whose, `session '${session}' is being erased`)
    await this.#eraseBlocks(whose)
    await this.#ports.forget(whose)
    await this.#log.erase(whose)
    this.#open.forget(whose)
  }

  async tenant(tenant: string): Promise<void> {
    await this.#end({ tenant }, `tenant '${tenant}' is being erased`)
    await this.#eraseBlocks({ tenant })
    await this.#ports.forget({ tenant })
    await this.#log.erase({ tenant })
    this.#sources.forget(tenant)
    for (const open of await this.#open.inMemory({ tenant })) this.#open.forget(open.whose)
  }

  /** Of each session that rests on the source: what was made of it is gone, and the log says so. */
  async revoke(tenant: string, source: string, ids: readonly string[]): Promise<SourceView['sessions']> {
    const told: { session: string; cleanLayer?: string }[] = []
    for (const session of ids) {
      const open = await this.#open.open({ tenant, session })
      const hold = await open.takeOver(new RefrainError('source_revoked', `the source '${source}' was revoked`))
      try {
        const cleanLayer = await this.revokeHeld(open, [source])
        told.push({ session, ...(cleanLayer !== undefined && { cleanLayer }) })
      } finally {
        hold.release()
      }
    }
    return told
  }

  /** The same of one session, which is held. The newest layer that rests on none of what is revoked. */
  async revokeHeld(open: OpenSession, sources: readonly string[]): Promise<string | undefined> {
    const { whose, fold } = open
    const revoked = new Set([...sources, ...(fold.policy?.revoked ?? [])])
    const shared = fold.shared.size === 0 ? [] : await this.#log.sharedMemory(whose.tenant)
    const plan = planRevocation(open.events, revoked, shared)
    const { cleanLayer, locators } = plan
    const cleaned = cleanLayer !== undefined && { cleanLayer }
    await open.append([{ body: { kind: 'revocation', sources: [...sources].sort(), ...cleaned } }])
    await this.#log.eraseEvents(whose, { positions: [], locators })
    for (const block of shared.filter(({ id }) => plan.shared.includes(id)))
      await this.#log.setSharedMemory(whose.tenant, { ...block, value: '', sources: [] })
    // What it shares with forks is in their hands too, and they rest on the source as it does.
    await this.#eraseBlocks({ ...whose, which: 'all' })
    await this.#ports.revoked(whose)
    return cleanLayer
  }

  async #end(whose: { readonly tenant: string; readonly session?: string }, why: string): Promise<void> {
    for (const open of await this.#open.inMemory(whose)) {
      open.close()
      await open.interrupt(new RefrainError('erased', why))
    }
  }

  async #eraseBlocks(whose: Parameters<SessionLog['blocksOf']>[0]): Promise<void> {
    const names = await this.#log.blocksOf(whose)
    const hashes = names.map((name) => Buffer.from(name).toString('hex') as BlockHash)
    if (hashes.length > 0) await this.#ports.eraseBlocks(hashes)
  }
}
