// Which of the members that may answer a request gets it, and why in a few words. Pure: scores and counts in, a choice
// out. A session stays at home unless that is overloaded; a new one goes where its head is, until its queue there costs
// more than the head; a new head goes where it waits least, and by rendezvous among equals.

import type { Member } from './contract.js'
import { ownerOf } from './rendezvous.js'

export interface Candidate {
  readonly member: Member
  /** Of the prompt's front, believed to be there. */
  readonly overlapTokens: number
  /** Milliseconds by scorer, unweighted; 0 where the config has it not. */
  readonly prefillMs: number
  readonly pressureMs: number
  readonly affinityMs: number
  /** Of the parts, as time to the first token: what is to be computed, waited for and shared. */
  readonly ttftMs: number
  /** All parts by their weights. */
  readonly total: number
  readonly inFlight: number
  /** Active sessions that live there. */
  readonly residents: number
  /** Heads that they have among them. */
  readonly residentHeads: number
  /** Heads that it got lately. */
  readonly heads: number
  /** It had this prompt's head before the router was started, and may have it still. */
  readonly hadHead: boolean
}

export interface Situation {
  /** What the request is: a turn of a session, or something beside one. */
  readonly isSide: boolean
  /** Where the session lives, and its parent, by id; they need not be among the candidates. */
  readonly home: string | undefined
  readonly parent: string | undefined
  /** What rendezvous goes by. */
  readonly head: string
}

export interface PickOptions {
  /** router.overload: a session leaves home where it waits so many times longer for its first token than elsewhere. */
  readonly overload: number
  /** router.replicate: a hot head is replicated where its holder's queue costs more than so many prefills of it. */
  readonly replicate: number
  /** router.rebalanceMs: what a session may compute again for a member that has nothing to do. */
  readonly rebalanceMs: number
  /** router.spread: of the heads that are a member's share, how many it may get by rendezvous. */
  readonly spread: number
}

export interface Picked {
  readonly candidate: Candidate
  readonly reason: string
}

export type Candidates = readonly [Candidate, ...Candidate[]]

export function pick(candidates: Candidates, situation: Situation, options: PickOptions): Picked {
  const [only] = candidates
  if (candidates.length === 1) return { candidate: only, reason: 'only choice' }
  if (situation.isSide) return { candidate: least(candidates, urgent), reason: 'side request' }
  const { home, parent } = situation
  const atHome = home === undefined ? undefined : candidateAt(home, candidates)
  if (atHome !== undefined) return stayOrLeave(atHome, candidates, options)
  const atParent = parent === undefined ? undefined : candidateAt(parent, candidates)
  if (atParent !== undefined && !isOverloaded(atParent, candidates, options))
    return { candidate: atParent, reason: "parent's" }
  const found = newcomer(candidates, situation, options)
  return home === undefined ? found : { ...found, reason: `home is gone, ${found.reason}` }
}

function candidateAt(id: string, candidates: Candidates): Candidate | undefined {
  for (const each of candidates) if (each.member.id === id) return each
  return undefined
}

/** What counts now, whatever comes later. */
const urgent = ({ ttftMs, affinityMs }: Candidate) => ttftMs + affinityMs
/** What counts later, whatever waits now. */
const lasting = ({ prefillMs, pressureMs }: Candidate) => prefillMs + pressureMs
const total = (candidate: Candidate) => candidate.total
const prefill = (candidate: Candidate) => candidate.prefillMs

function least(candidates: Candidates, cost: (candidate: Candidate) => number): Candidate {
  let [best] = candidates
  let lowest = cost(best)
  for (let i = 1; i < candidates.length; i++) {
    const each = candidates[i] as Candidate
    const ms = cost(each)
    if (ms < lowest) {
      best = each
      lowest = ms
    }
  }
  return best
}

function isOverloaded(home: Candidate, candidates: Candidates, { overload }: PickOptions): boolean {
  for (const each of candidates) if (each !== home && home.ttftMs > overload * urgent(each)) return true
  return false
}

function stayOrLeave(home: Candidate, candidates: Candidates, options: PickOptions): Picked {
  const idle = idleFor(home, candidates, options)
  if (idle !== undefined) return { candidate: idle, reason: 'moved to an idle backend' }
  if (!isOverloaded(home, candidates, options)) return { candidate: home, reason: 'session' }
  return { candidate: least(candidates, urgent), reason: 'moved, home is overloaded' }
}

/** Turns that a session computes its prompt again for, where it then waits for nobody. */
const WORTH_TURNS = 2

/** A member that has next to no sessions, while the session's home is crowded, or busy with several heads. */
function idleFor(home: Candidate, candidates: Candidates, { rebalanceMs }: PickOptions): Candidate | undefined {
  if (home.inFlight === 0) return undefined
  const share = candidates.reduce((sum, { residents }) => sum + residents, 0) / candidates.length
  if (home.residents <= share) return undefined
  const crowdMs = home.pressureMs * WORTH_TURNS
  const idle = candidates.filter(({ residents, inFlight, prefillMs, member }) => {
    if (residents >= share / 2 || home.residents - residents < 2) return false
    if (inFlight > 0 || member.load.reportedQueue > 0) return false
    return prefillMs <= rebalanceMs && (home.residentHeads > 1 || prefillMs < crowdMs)
  })
  return isSome(idle) ? least(idle, total) : undefined
}

function newcomer(candidates: Candidates, situation: Situation, options: PickOptions): Picked {
  const most = Math.max(...candidates.map(({ overlapTokens }) => overlapTokens))
  const holders = candidates.filter(({ overlapTokens }) => most > 0 && overlapTokens >= most / 2)
  const others = candidates.filter((each) => !holders.includes(each))
  if (!isSome(holders)) return { candidate: newHead(candidates, situation, options), reason: 'new head' }
  const holder = least(holders, total)
  if (!isSome(others)) return { candidate: holder, reason: 'overlap' }
  const other = least(others, total)
  return isWorthCopy(holders, other, options)
    ? { candidate: other, reason: 'replicated hot head' }
    : { candidate: holder, reason: 'overlap' }
}

/** Whether a newcomer is better off, now or for good, where its head has to be computed once more. */
function isWorthCopy(holders: Candidates, other: Candidate, { replicate }: PickOptions): boolean {
  const copyMs = Math.max(0, other.prefillMs - least(holders, prefill).prefillMs)
  const gainMs = least(holders, ({ ttftMs }) => ttftMs).ttftMs - other.ttftMs
  // A member that does nothing computes it for free; another one's sessions would wait meanwhile.
  if (gainMs > (other.inFlight === 0 ? 0 : replicate * copyMs)) return true
  const crowdMs = lasting(least(holders, lasting)) - lasting(other)
  return crowdMs > (replicate - 1) * copyMs
}

/** Differences below this are noise of the estimates. */
const TIE_MS = 25
const TIE_SHARE = 0.1

function newHead(candidates: Candidates, { head }: Situation, { spread }: PickOptions): Candidate {
  const best = least(candidates, total)
  const tolerance = Math.max(TIE_MS, TIE_SHARE * best.prefillMs)
  const equals = candidates.filter((each) => each.total <= best.total + tolerance)
  const bound = Math.ceil((spread * (candidates.reduce((sum, { heads }) => sum + heads, 0) + 1)) / candidates.length)
  const roomy = equals.filter(({ heads }) => heads < bound)
  const able = isSome(roomy) ? roomy : equals
  const before = able.filter(({ hadHead }) => hadHead)
  const among = isSome(before) ? before : able
  const { id } = ownerOf(head, among.map(({ member }) => member) as [Member, ...Member[]])
  return among.find(({ member }) => member.id === id) ?? best
}

function isSome(candidates: readonly Candidate[]): candidates is Candidates {
  return candidates.length > 0
}
