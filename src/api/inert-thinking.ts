// Names the fields by which a client asked something of the model's reasoning that the model cannot be asked: its template
// has no such switch. Invariant: what happens anyway (no reasoning from a model that never reasons) counts as honoured.

import type { Prompt } from '../core/request.js'
import type { ServedModel } from './contract.js'

/** Fields of all dialects that say it, and what they say. */
const SWITCHES = ['thinking', 'enable_thinking', 'reasoning', 'chat_template_kwargs']
const EFFORTS = ['reasoning_effort', 'reasoning', 'output_config']

/** Of `body`'s members, those without effect on `prompt`; none where nothing is known of the model. */
export function inertThinking(
  prompt: Prompt,
  { reasoning }: Pick<ServedModel, 'reasoning'>,
  body: Readonly<Record<string, unknown>>,
): string[] {
  const asked = prompt.kind === 'chat' ? prompt.thinking : undefined
  if (asked === undefined || reasoning === undefined) return []
  const { enabled, effort } = asked
  const turned = enabled !== undefined && enabled !== reasoning.written && !reasoning.switches.includes('thinking')
  const tuned = effort !== undefined && enabled !== false && !reasoning.switches.includes('effort')
  const named = [...(turned ? SWITCHES : []), ...(tuned ? EFFORTS : [])]
  return [...new Set(named)].filter((field) => Object.hasOwn(body, field))
}
