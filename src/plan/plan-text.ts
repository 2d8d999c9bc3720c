// A plan as a person reads it. Invariant: shows what the plan holds and names the flag that would fill in what it lacks.

import { formatBytes, formatCount, formatMs, formatTable } from '../core/units.js'
import type { Plan, TierPlan } from './plan.js'

/** Text of several lines. */
export function planText(plan: Plan): string {
  const { session } = plan
  const parts = [
    ['entries', session.entries],
    ['index', session.index],
    ['state', session.state],
  ] as const
  const shown = parts.filter(([, bytes]) => bytes > 0).map(([name, bytes]) => `${name} ${formatBytes(bytes)}`)
  const lines = [
    `${plan.model}, KV in ${plan.dtype}`,
    ...(plan.note === undefined ? [] : [`  ${plan.note}`]),
    '',
    `a token    ${formatBytes(plan.bytesPerToken)} (${formatCount(plan.bytesPerToken)} bytes) more in a long session`,
    `a session  ${formatBytes(session.total)} at ${formatCount(plan.tokens)} tokens${shown.length > 1 ? `: ${shown.join(', ')}` : ''}`,
    '',
  ]
  const layers = plan.layers.map(({ kind, count, sessionBytes }) => [kind, String(count), formatBytes(sessionBytes)])
  return `${lines.join('\n')}\n${formatTable([['layers', 'count', 'bytes a session'], ...layers])}${tiersText(plan)}${timesText(plan)}`
}

function tiersText({ tiers, tokens }: Plan): string {
  const sized = tiers.filter(({ bytes }) => bytes !== undefined)
  if (sized.length === 0) return '\nWhat fits: give --gpu, --host or --disk.\n'
  const rows = sized.map(({ tier, bytes, sessions, fitTokens }) => [
    tier,
    formatBytes(bytes!),
    formatCount(sessions!),
    formatCount(fitTokens!),
  ])
  return `\n${formatTable([['fits in', 'budget', `sessions of ${formatCount(tokens)}`, 'tokens'], ...rows])}`
}

function timesText({ tiers, recomputeMs, tokens }: Plan): string {
  const timed = tiers.filter(({ restoreMs }) => restoreMs !== undefined)
  const missing = [
    ...(recomputeMs === undefined ? ['--prefill'] : []),
    ...(timed.length === 0 ? ['--host-rate or --disk-rate'] : []),
  ]
  if (missing.length > 0) return `\nRestore against recompute: give ${missing.join(' and ')}, or --server.\n`
  const row = ({ tier, restoreMs, breakEvenTokens, overheadMs }: TierPlan) => [
    `restore from ${tier}, ${formatMs(overheadMs)} each`,
    formatMs(restoreMs!),
    `${(recomputeMs! / restoreMs!).toPrecision(3)}x`,
    breakEvenTokens === 'never' ? 'never' : `${formatCount(breakEvenTokens!)} tokens`,
  ]
  const head = [`at ${formatCount(tokens)} tokens`, 'time', 'faster', 'pays from']
  return `\n${formatTable([head, ['recompute', formatMs(recomputeMs!), '', ''], ...timed.map(row)])}`
}
