// The page's side of one of several router processes: what is shown is counted by their owner, who hears of all requests;
// how backends are every process knows, since it has the router's books whole. Invariant: an owner that does not answer is
// named, and the page keeps what it had.

import type { SessionTold, Viewer } from '../explain/contract.js'
import { readAssets } from './assets.js'
import type { Asset, BackendState, Dashboard, FeedPage } from './contract.js'
import type { OwnDashboard } from './dashboard.js'
import { SERIES } from './watch.js'

/** As structures can be cloned. */
export type DashboardQuestion =
  | { readonly what: 'feed'; readonly viewer: Viewer; readonly cursor: string | undefined }
  | { readonly what: 'turns'; readonly viewer: Viewer; readonly session: string; readonly tenant: string | undefined }

export type DashboardAnswer = { readonly page: FeedPage } | { readonly found: SessionTold | undefined }

export interface AskedDashboardParts {
  readonly version: string
  readonly processes: number
  /** Undefined: no answer in time. */
  ask(question: DashboardQuestion): Promise<DashboardAnswer | undefined>
  /** Who is asked, in words. */
  readonly owner: string
  models(): readonly string[]
  /** Shown to admins. */
  backends(): readonly BackendState[]
}

export function askedDashboard(parts: AskedDashboardParts): Dashboard {
  let assets: ReadonlyMap<string, Asset> | undefined
  return {
    async feed(viewer, cursor) {
      const answer = await parts.ask({ what: 'feed', viewer, cursor })
      const page = answer !== undefined && 'page' in answer ? answer.page : silentPage(parts, viewer, cursor)
      const overlaps = new Map(page.backends?.map(({ id, overlap }) => [id, overlap]))
      const backends = parts.backends().map((backend) => {
        const overlap = overlaps.get(backend.id)
        return { ...backend, ...(overlap && { overlap }) }
      })
      return { ...page, server: { ...page.server, models: parts.models() }, ...(viewer.admin && { backends }) }
    },
    // What backends hold is theirs to show.
    tree: async () => undefined,
    async turns(viewer, session, tenant) {
      const answer = await parts.ask({ what: 'turns', viewer, session, tenant })
      return answer !== undefined && 'found' in answer ? answer.found : undefined
    },
    asset(path) {
      assets ??= readAssets()
      return assets.get(path)
    },
    close: () => undefined,
  }
}

/** In the process that counts; `missing`: processes that did not hand over what they have. */
export async function answerDashboard(
  dashboard: OwnDashboard,
  asked: DashboardQuestion,
  missing: readonly string[],
): Promise<DashboardAnswer> {
  if (asked.what === 'turns') return { found: dashboard.turns(asked.viewer, asked.session, asked.tenant) }
  return { page: { ...(await dashboard.feed(asked.viewer, asked.cursor)), missing } }
}

/** Nothing has changed, as far as is known. */
function silentPage(
  { version, processes, owner }: AskedDashboardParts,
  { name, admin }: Viewer,
  cursor: string | undefined,
): FeedPage {
  const at = Date.now()
  return {
    ...{ cursor: cursor ?? '', reset: cursor === undefined, at, watchedSince: at },
    server: { version, kind: 'fleet', models: [], processes, explains: true, hasTree: false },
    missing: [owner],
    viewer: { tenant: name, admin },
    ...{ bucketMs: SERIES.bucketMs, series: [], sessions: [], gone: [], quick: [], alarms: [] },
  }
}
