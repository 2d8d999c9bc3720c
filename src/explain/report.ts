// `refrain explain`: asks a running server about sessions and turns, and words what it says as tables for a terminal.
// Invariant: what the server answers is printed as it is, control characters taken out; what goes wrong is one sentence.

import { sideSentence } from './side.js'

export interface ReportOptions {
  /** Of the server, with or without `/v1`. */
  readonly url: string
  /** Undefined: the sessions that there are. */
  readonly session?: string
  /** Undefined: all turns of the session. */
  readonly turn?: number
  /** Whose session, for admins. */
  readonly tenant?: string
  readonly key?: string
}

/** The server refused, or could not be asked. */
export class ReportError extends Error {
  override readonly name = 'ReportError'
}

// biome-ignore lint/suspicious/noExplicitAny: JSON of the server's routes
type Json = any

/** @throws ReportError */
export async function explainReport(options: ReportOptions): Promise<string> {
  const { session, turn } = options
  if (session === undefined)
    return withMissing(await ask(options, '/v1/explain/sessions'), ({ data }) => sessionTable(data))
  const path = `/v1/sessions/${encodeURIComponent(session)}/turns`
  if (turn !== undefined) return withMissing(await ask(options, `${path}/${turn}/explain`), turnReport)
  return withMissing(await ask(options, path), turnTable)
}

/** With the processes behind the server's port that did not answer it. */
function withMissing(answer: Json, report: (answer: Json) => string): string {
  const missing = (answer.missing ?? []).map(
    (name: string) => `! ${shown(name)} did not answer: what came there since is not told\n`,
  )
  return `${report(answer)}${missing.length > 0 ? '\n' : ''}${missing.join('')}`
}

async function ask({ url, tenant, key }: ReportOptions, path: string): Promise<Json> {
  const base = url.replace(/\/+$/, '').replace(/\/v1$/, '')
  const query = tenant === undefined ? '' : `?tenant=${encodeURIComponent(tenant)}`
  const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` }
  let response: Response
  try {
    response = await fetch(base + path + query, { headers })
  } catch (error) {
    const { cause } = error as { cause?: Error }
    throw new ReportError(`${base} cannot be asked: ${cause?.message ?? (error as Error).message}`)
  }
  const text = await response.text()
  const body = jsonOf(text)
  if (response.ok && body !== undefined) return body
  throw new ReportError(`${base}${path}: ${response.status} ${body?.error?.message ?? text.slice(0, 200)}`)
}

function jsonOf(text: string): Json {
  try {
    return JSON.parse(text)
  } catch (error) {
    if (error instanceof SyntaxError) return undefined
    throw error
  }
}

function sessionTable(sessions: readonly Json[]): string {
  if (sessions.length === 0) return 'No turns are known yet.\n'
  const rows = sessions.map((each) => [
    shown(each.session),
    shown(each.tenant),
    String(each.turns),
    String(each.prompt_tokens),
    share(each.reused_tokens, each.prompt_tokens),
    String(each.missed_tokens),
    shown(each.repeats[0]?.sentence ?? ''),
  ])
  const heads = ['session', 'tenant', 'turns', 'prompt tokens', 'reused', 'missed tokens', 'what keeps changing']
  return `${table(heads, rows)}${sideLine(sessions)}`
}

/** Clients without a session's key ask each side question in a session of its own: only all of them show what they cost. */
function sideLine(sessions: readonly Json[]): string {
  const sides = sessions.flatMap((each) => (each.side === undefined ? [] : [each.side]))
  const sum = (name: string) => sides.reduce((total, side) => total + side[name], 0)
  if (sides.length === 0) return ''
  const counts = { requests: sum('requests'), promptTokens: sum('prompt_tokens') }
  const tokens = { computedTokens: sum('computed_tokens'), quickTokens: sum('quick_tokens') }
  return `\n! ${sideSentence({ ...counts, ...tokens })}\n`
}

function turnTable(session: Json): string {
  const rows = session.data.map((turn: Json) => [
    String(turn.turn),
    turn.class,
    String(turn.prompt_tokens),
    turn.cache === null ? turn.status : share(turn.prompt_tokens - turn.cache.computed, turn.prompt_tokens),
    turn.cache === null ? '' : String(turn.cache.computed),
    turn.miss === null ? '' : String(turn.miss.missed_tokens),
    turn.miss?.reason ?? '',
    shown(turn.miss === null || turn.miss.reason === 'first_seen' ? '' : turn.miss.sentence),
  ])
  const heads = ['turn', 'class', 'prompt', 'reused', 'computed', 'missed', 'reason', 'why']
  const told = [...session.repeats, ...(session.side === undefined ? [] : [session.side])]
  const repeats = told.map(({ sentence }: Json) => `! ${shown(sentence)}\n`).join('')
  return `${shown(session.session)} of ${shown(session.tenant)}: ${session.turns} turns\n\n${table(heads, rows)}${repeats === '' ? '' : `\n${repeats}`}`
}

function turnReport(turn: Json): string {
  const { miss } = turn
  const lines = [
    `turn ${turn.turn} of ${shown(turn.session)} (${turn.class}, ${shown(turn.model)} at ${shown(turn.backend)})`,
    `prompt ${turn.prompt_tokens} tokens: ${cacheLine(turn.cache)}`,
  ]
  if (turn.quick_tokens !== undefined) {
    lines.push(`as a quick task it would have computed about ${turn.quick_tokens} (docs/quick.md)`)
  }
  if (miss === null) lines.push('nothing was missed')
  else {
    lines.push(`${miss.reason}: ${miss.missed_tokens} tokens missed`, shown(miss.sentence))
    if (miss.causes.length > 1) {
      lines.push(...miss.causes.map((cause: Json) => `  ${cause.reason}: ${cause.missed_tokens} tokens`))
    }
    const { difference, repeats } = miss
    if (difference !== undefined)
      lines.push(`parts from turn ${miss.compared_with} at token ${difference.token}, byte ${difference.byte}`)
    for (const { name, change } of difference?.tools ?? []) lines.push(`  tool ${shown(name)} ${change}`)
    if (difference?.before !== undefined) {
      lines.push(`  before: ${JSON.stringify(difference.before)}`, `  now:    ${JSON.stringify(difference.after)}`)
    }
    if (repeats !== undefined) lines.push(`! ${shown(repeats.sentence)}`)
  }
  const rows = turn.segments.map((each: Json) => [
    each.kind,
    String(each.index),
    shown(each.role ?? each.name ?? ''),
    String(each.bytes),
    String(each.tokens ?? ''),
    String(each.byte_at ?? ''),
    each.digest,
  ])
  return `${lines.join('\n')}\n\n${table(['part', 'index', 'role', 'bytes', 'tokens', 'at byte', 'digest'], rows)}`
}

function cacheLine(cache: Json): string {
  if (cache === null) return 'not computed'
  return Object.entries(cache)
    .filter(([, tokens]) => tokens !== 0)
    .map(([tier, tokens]) => `${tokens} ${tier === 'computed' ? tier : `from ${tier}`}`)
    .join(', ')
}

function share(part: number, whole: number): string {
  return whole === 0 ? '' : `${Math.floor((100 * part) / whole)} %`
}

/** Numbers to the right, the last column as long as it is. */
function table(heads: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = heads.map((head, i) => Math.max(head.length, ...rows.map((row) => (row[i] ?? '').length)))
  const line = (cells: readonly string[]) =>
    cells
      .map((cell, i) => {
        const width = i === heads.length - 1 ? 0 : (widths[i] as number)
        return /^[\d.]+( %)?$/.test(cell) ? cell.padStart(width) : cell.padEnd(width)
      })
      .join('  ')
      .trimEnd()
  return `${[heads, widths.map((width) => '-'.repeat(width)), ...rows].map(line).join('\n')}\n`
}

/** Session keys and names come from clients: nothing of them may move a terminal's cursor. */
function shown(text: string): string {
  return text.replace(/\p{Cc}/gu, '?').slice(0, 300)
}
