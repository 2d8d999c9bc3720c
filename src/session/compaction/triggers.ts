// When a context is shortened: under pressure, when the backend says that it is too long, when the model or a client asks, and
// when its cached prefix lapsed anyway. Pure; the backend's own counts are what is compared.

import type { CompiledContext, IncrementalCompiler } from '../compile/contract.js'
import type { CompactionEvent, PolicySnapshot, SessionEvent } from '../log/event.js'
import type { CompactionInput, Lifecycle } from './contract.js'

/** Messages that stay when the backend said that the context is too long. */
export const OVERFLOW_KEEP = 5

/**
 * Whether the context needs to be shortened before anything is added. `usedTokens` as the backend counts, output included;
 * `chars`: `historyChars` of it.
 */
export function isUnderPressure(
  { trigger, headroom }: Pick<Lifecycle, 'trigger' | 'headroom'>,
  { usedTokens, window, chars }: { readonly usedTokens: number; readonly window: number; readonly chars: number },
): boolean {
  if (trigger.chars !== undefined && chars > trigger.chars) return true
  return usedTokens > Math.min(trigger.share * window, window - headroomTokens(headroom, window))
}

/** In a small window what is left free must leave room for a context. */
const MAX_HEADROOM = 0.4

function headroomTokens({ resultTokens, outputTokens }: Lifecycle['headroom'], window: number): number {
  return Math.min(resultTokens + outputTokens, MAX_HEADROOM * window)
}

/** Tokens at which pressure is gone. */
export function reliefTokens({
  lifecycle: { relief, headroom },
  window,
}: Pick<CompactionInput, 'lifecycle' | 'window'>): number {
  return Math.min(relief * window, window - headroomTokens(headroom, window))
}

/** Never two in a row: since the last one a user or a tool must have said something. */
export function mayCompact(events: readonly SessionEvent[]): boolean {
  for (const { body } of events.toReversed()) {
    if (body.kind === 'user' || body.kind === 'tool_call' || body.kind === 'tool_result') return true
    if (body.kind === 'compaction' && body.trigger !== 'ttl') return false
  }
  return false
}

/** Whether the model asked for it by the tool `name`, and every call of that batch has its result, its own included. */
export function isToolDue(events: readonly SessionEvent[], name = 'compact'): boolean {
  const asked = events.findLastIndex(({ body }) => body.kind === 'tool_call' && body.name === name)
  if (asked < 0 || events.slice(asked).some(({ body }) => body.kind === 'compaction' || body.kind === 'reset'))
    return false
  const begin = events.slice(0, asked).findLastIndex(({ body }) => body.kind === 'assistant' || body.kind === 'user')
  const waiting = new Map<string, number>()
  for (const { body } of events.slice(begin + 1)) {
    if (body.kind === 'assistant' || body.kind === 'user') break
    if (body.kind === 'tool_call') waiting.set(body.id, (waiting.get(body.id) ?? 0) + 1)
    if (body.kind === 'tool_result') waiting.set(body.callId, (waiting.get(body.callId) ?? 0) - 1)
  }
  return [...waiting.values()].every((calls) => calls <= 0)
}

/**
 * The boundary that costs nothing, because the cached prefix has lapsed: heads and memory edits that wait take effect.
 * Undefined: nothing waits.
 */
export function ttlBoundary(compiled: IncrementalCompiler, policy: PolicySnapshot): CompactionEvent | undefined {
  const before = compiled.compile(policy)
  const event: CompactionEvent = {
    ...{ kind: 'compaction', trigger: 'ttl', steps: [], charsBefore: before.chars, charsAfter: before.chars },
  }
  const after = compiled.trial([event], policy)
  return headOf(before) === headOf(after) && before.messages.length === after.messages.length
    ? undefined
    : { ...event, charsAfter: after.chars }
}

function headOf({ segments }: CompiledContext): string | undefined {
  return segments.findLast(({ kind }) => kind === 'tools' || kind === 'system' || kind === 'memory')?.digest
}
