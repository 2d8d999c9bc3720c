// The files that operators load into Prometheus and Grafana, held to what /metrics really shows in both modes: every name,
// label and matched value is there, and every metric of ours is looked at somewhere.

import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { parse } from 'yaml'
import type { Program } from '../compose.js'
import { sharedCounts } from '../compose-sharing.js'
import {
  type CacheMoved,
  cacheAlarm,
  cacheMoved,
  hedgeSettled,
  type KvTurned,
  kvHeard,
  kvTurned,
  quickAnswered,
  stepDone,
  turnMissed,
} from '../core/signals.js'
import type { Reason } from '../explain/contract.js'
import type { Shared } from '../router/shared.js'
import { type FleetHouse, fleetHouse } from '../testing/fleet-house.js'
import { type Query, readQuery } from '../testing/promql.js'
import { chat, post, scriptedProgram } from '../testing/scripted-program.js'
import { startMetrics } from './metrics.js'

/** Metrics that neither file looks at, and why not. */
const LEFT_OUT: Readonly<Record<string, string>> = {
  refrain_session_log_sessions: 'how much is kept, not how well it is served',
  refrain_session_log_events: 'the same',
  refrain_session_log_bytes: 'the same',
}

/** What Prometheus itself adds. */
const OTHERS: Readonly<Record<string, readonly string[]>> = { up: ['job', 'instance'] }
const TARGET_LABELS = ['job', 'instance']

/** Metric -> label -> values, as they are shown. */
type Shown = Map<string, Map<string, Set<string>>>

let embedded: Program
let house: FleetHouse
const shown: Shown = new Map()
const families = new Set<string>()

beforeAll(async () => {
  embedded = await scriptedProgram({ 'log.level': 'silent', 'limits.queuedRequests': 0 })
  house = await fleetHouse()
  await post(embedded, '/v1/chat/completions', chat('word '.repeat(100), { max_tokens: 4 }))
  await post(embedded, '/v1/chat/completions', chat('word '.repeat(100), { max_tokens: 4 }))
  expect((await house.chat({ stream: true })).status).toBe(200)
  for (const stub of house.stubs) {
    stub.answer = (_request, response) => {
      response.writeHead(500)
      response.end('{}')
    }
  }
  expect((await house.chat()).status).toBe(500)
  const [first] = house.stubs
  await house.post(`/v1/backends/${encodeURIComponent(first?.url ?? '')}/drain`, {})
  tellTheRest()
  // A store that routers share is nowhere here.
  const shared = sharedCounts({ counts: { sent: 1, heard: 1, lost: 1, outages: 1 }, isUp: true } as Shared)
  const fleet = { backends: () => [], slots: () => ({}), shared: () => ({ ...shared, told: 1, heard: 1, bad: 1 }) }
  const sharing = startMetrics(() => ({ running: 0, waiting: 0 }), { fleet })
  read((await sharing.scrape()).text)
  sharing.close()
  read((await embedded.server.app.inject('/metrics')).body)
  read(await (await fetch(`${house.url}/metrics`)).text())
})

afterAll(async () => {
  await embedded.stop(0)
  await house.close()
})

/** What does not happen without a model, a disk and engines that publish. */
function tellTheRest(): void {
  const moves: Record<CacheMoved['what'], CacheMoved['tier'][]> = {
    ...{ commit: ['memory'], evict: ['memory', 'disk'], restore: ['disk'], write: ['disk'], corrupt: ['disk'] },
    ...{ collision: ['memory'], 'dropped-write': ['disk'], expired: ['memory'] },
  }
  for (const [what, tiers] of Object.entries(moves)) {
    for (const tier of tiers) {
      cacheMoved.publish({ what: what as CacheMoved['what'], tier, blocks: 1, bytes: 1, durationMs: 1 })
    }
  }
  const reasons: Record<Reason, true> = {
    ...{ first_seen: true, model_changed: true, template_changed: true, tools_changed: true, system_changed: true },
    ...{ messages_changed: true, reasoning_dropped: true, retokenized: true, expired: true, evicted: true },
    ...{ restored_slower_than_recomputed: true, other_backend: true, tenant: true, compaction: true, revocation: true },
  }
  for (const reason of Object.keys(reasons)) turnMissed.publish({ reason, missedTokens: 64 })
  const turns: Record<KvTurned['what'], true> = {
    ...{ gap: true, restart: true, 'late-join': true, reconnect: true, replayed: true, 'replay-failed': true },
  }
  for (const what of Object.keys(turns)) {
    kvTurned.publish({ member: 'up', rank: 0, what: what as KvTurned['what'] })
  }
  const heard = { stored: 1, removed: 1, duplicates: 1, orphans: 1, ignored: 1, cleared: 1, bad: 1, unknown: 1 }
  kvHeard.publish({ member: 'up', ...heard, broken: 1, lagMs: 1 })
  stepDone.publish({ prefillTokens: 1, decodeTokens: 1, running: 1, waiting: 0, durationMs: 1 })
  hedgeSettled.publish({ id: 'late', outcome: 'won', why: undefined })
  hedgeSettled.publish({ id: 'late', outcome: 'refused', why: 'share' })
  const quick = { task: 'title', form: 'native', tenant: 'default', promptTokens: 1, completionTokens: 1 }
  quickAnswered.publish({ ...quick, error: undefined })
  const whose = { tenant: 'default', session: 's', turn: 2 }
  const lost = { what: 'unscheduled_invalidation', expectedTokens: 64, cachedTokens: 0, reason: 'unknown' } as const
  cacheAlarm.publish({ ...whose, ...lost })
  cacheAlarm.publish({ ...whose, what: 'hit_rate', hitRate: 0.1, turns: 10 })
}

function read(text: string): void {
  for (const line of text.split('\n')) {
    const family = /^# TYPE (\S+)/.exec(line)?.[1]
    if (family !== undefined) families.add(family)
    const [, name, labels = ''] = /^(\w+)(?:\{(.*)\})? \S+$/.exec(line) ?? []
    if (name === undefined) continue
    const known = shown.get(name) ?? new Map<string, Set<string>>()
    shown.set(name, known)
    for (const [, label = '', value = ''] of labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      known.set(label, (known.get(label) ?? new Set()).add(value))
    }
  }
}

function familyOf(metric: string): string {
  return families.has(metric) ? metric : metric.replace(/_(bucket|sum|count)$/, '')
}

interface Expression {
  readonly where: string
  readonly text: string
  /** Texts with names of labels in them. */
  readonly shows: readonly string[]
}

interface Panel {
  readonly id: number
  readonly title: string
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number }
  readonly targets?: readonly { readonly expr: string; readonly legendFormat: string }[]
}

const file = (path: string) => readFileSync(new URL(`../../ops/${path}`, import.meta.url), 'utf8')
const dashboard = JSON.parse(file('grafana/refrain.json')) as { panels: Panel[]; templating: { list: Variable[] } }
type Variable = { readonly name: string; readonly definition?: string }
interface Rule {
  readonly alert: string
  readonly expr: string
  readonly labels: { readonly severity: string }
  readonly annotations: Readonly<Record<string, string>>
}
const alerts = parse(file('prometheus/alerts.yaml')) as { groups: { name: string; rules: Rule[] }[] }
const rules = alerts.groups.flatMap((group) => group.rules)

const panels = dashboard.panels.flatMap(({ title, targets = [] }) =>
  targets.map(({ expr, legendFormat }): Expression => ({ where: title, text: expr, shows: [legendFormat] })),
)
const alerting = rules.map(
  ({ alert, expr, annotations }): Expression => ({ where: alert, text: expr, shows: Object.values(annotations) }),
)
const all = [...panels, ...alerting]

const labelsOf = (metric: string) => OTHERS[metric] ?? [...TARGET_LABELS, ...(shown.get(metric)?.keys() ?? [])]

/** What in `query` is not there. */
function lacking({ selected, grouped }: Query): string[] {
  const missing = selected.flatMap(({ metric, matchers }) => {
    if (OTHERS[metric] === undefined && !shown.has(metric)) return [metric]
    return matchers.flatMap(({ label, values }) => {
      if (!labelsOf(metric).includes(label)) return [`${metric}{${label}}`]
      const known = shown.get(metric)?.get(label)
      // Patterns of statuses, and what Grafana or the target fills in, have no fixed values.
      if (known === undefined || label === 'status') return []
      return values.filter((value) => !known.has(value)).map((value) => `${metric}{${label}="${value}"}`)
    })
  })
  const ungrouped = grouped.flatMap(({ label, metrics }) =>
    metrics.filter((metric) => !labelsOf(metric).includes(label)).map((metric) => `${metric} by ${label}`),
  )
  return [...missing, ...ungrouped]
}

describe('dashboard and alerts', () => {
  test('say only what /metrics shows: metrics, labels and the values that are matched', () => {
    expect(all.length).toBeGreaterThan(60)
    for (const { where, text } of all) expect(`${where}: ${lacking(readQuery(text)).join()}`).toBe(`${where}: `)
  })

  test('name labels in legends and sentences that their expression still has', () => {
    for (const { where, text, shows } of all) {
      const { selected } = readQuery(text)
      const known = new Set(selected.flatMap(({ metric }) => labelsOf(metric)))
      const named = shows.flatMap((each) => [...each.matchAll(/\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}/g)].map(([, n]) => n))
      for (const label of named) expect(known, `${where}: ${label}`).toContain(label)
      const by = [...text.matchAll(/^(?:1 - )?(?:sum|histogram_quantile\([\d.]+, sum) by \(([^)]*)\)/g)]
      const kept = by[0]?.[1]?.split(', ')
      for (const label of kept === undefined ? [] : named) expect(kept, `${where}: ${label}`).toContain(label)
    }
  })

  test('look at every metric of ours, or say why not', () => {
    const used = new Set(all.flatMap(({ text }) => readQuery(text).selected.map(({ metric }) => familyOf(metric))))
    const unseen = [...families].filter((family) => !used.has(family) && LEFT_OUT[family] === undefined)
    expect(unseen).toEqual([])
    expect(Object.keys(LEFT_OUT).filter((family) => !families.has(family) || used.has(family))).toEqual([])
    for (const { definition } of dashboard.templating.list) {
      if (definition !== undefined) expect(families).toContain(/\((\w+),/.exec(definition)?.[1])
    }
  })

  test('and the docs name every metric and no other', () => {
    const docs = readFileSync(new URL('../../docs/operating.md', import.meta.url), 'utf8')
    const named = new Set([...docs.matchAll(/`(refrain_\w+)/g)].map(([, name]) => name as string))
    expect([...families].filter((family) => !named.has(family))).toEqual([])
    expect([...named].filter((name) => !families.has(name))).toEqual([])
  })

  test('have panels that do not lie over each other, and ids and alerts that are unique', () => {
    expect(new Set(dashboard.panels.map(({ id }) => id)).size).toBe(dashboard.panels.length)
    const cells = new Set<string>()
    for (const { title, gridPos } of dashboard.panels) {
      const { x, y, w, h } = gridPos
      expect(x + w, title).toBeLessThanOrEqual(24)
      for (let column = x; column < x + w; column++) {
        for (let line = y; line < y + h; line++) {
          expect(cells.has(`${column}/${line}`), title).toBe(false)
          cells.add(`${column}/${line}`)
        }
      }
    }
    expect(new Set(rules.map(({ alert }) => alert)).size).toBe(rules.length)
    for (const { alert, labels, annotations } of rules) {
      expect(['page', 'ticket', 'info'], alert).toContain(labels.severity)
      expect(Object.keys(annotations), alert).toEqual(['summary', 'description'])
    }
  })
})

describe('the reader of PromQL', () => {
  test.each([
    ['sum(rate(a[5m])', /should stand where/],
    ['rat(a[5m])', /no function/],
    ['rate(a)', /needs a range/],
    ['a[5m]', /has a range/],
    ['rate(a{b~"c"}[5m])', /no PromQL|matches nothing/],
    ['a / ', /cannot stand there/],
    ['a b', /should stand where/],
  ])('refuses %s', (text, complaint) => {
    expect(() => readQuery(text)).toThrow(complaint)
  })

  test('sees what is selected and grouped', () => {
    expect(
      readQuery('1 - sum by (x) (rate(a{b=~"c|d", e!="f"}[$__rate_interval])) / on (x) g offset 1d'),
    ).toMatchObject({
      selected: [
        {
          metric: 'a',
          matchers: [
            { label: 'b', values: ['c', 'd'] },
            { label: 'e', values: ['f'] },
          ],
        },
        { metric: 'g', matchers: [] },
      ],
      grouped: [
        { label: 'x', metrics: ['a'] },
        { label: 'x', metrics: ['a'] },
      ],
    })
  })
})
