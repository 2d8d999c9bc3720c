// The one thing that acts as an event enters: results that are too long for the context are stored and stand as stubs. Pure;
// whoever calls stores what comes back, before the events are logged. Invariant: of a result that is logged nothing is ever
// changed, so the prefix stays.

import type { ToolResultEvent } from '../log/event.js'
import type { ResultLimits } from './contract.js'

/** Reading on in a stored result gives results too: they are not stored again. */
const READ_TOOL = 'read_result'

export interface EnteringResult {
  readonly event: ToolResultEvent
  /** Name of the tool that was called. */
  readonly tool: string
}

export interface BudgetDeps {
  readonly limits: ResultLimits
  /** Characters of results of the same batch that are in the log already. */
  readonly earlierChars: number
  countTokens(text: string): number
  /** Where the result will be stored. */
  locatorOf(event: ToolResultEvent): string
}

export interface Budgeted {
  /** In the order given. */
  readonly events: readonly ToolResultEvent[]
  readonly stored: readonly { readonly locator: string; readonly text: string }[]
}

export function budgetResults(entering: readonly EnteringResult[], deps: BudgetDeps): Budgeted {
  const { limits, earlierChars } = deps
  const chosen = new Set<EnteringResult>()
  const mayStore = ({ event, tool }: EnteringResult) => event.spilled === undefined && tool !== READ_TOOL
  for (const each of entering) if (mayStore(each) && isOverCap(each.event.content, deps)) chosen.add(each)
  let chars = earlierChars
  for (const each of entering) chars += chosen.has(each) ? stubChars(limits) : each.event.content.length
  const large = entering
    .filter((each) => mayStore(each) && !chosen.has(each) && each.event.content.length > limits.singleChars)
    .sort((a, b) => b.event.content.length - a.event.content.length)
  for (const each of large) {
    if (chars <= limits.batchChars) break
    chars += stubChars(limits) - each.event.content.length
    chosen.add(each)
  }
  const stored: { locator: string; text: string }[] = []
  const events = entering.map((each): ToolResultEvent => {
    if (!chosen.has(each)) return each.event
    const { content } = each.event
    const locator = deps.locatorOf(each.event)
    stored.push({ locator, text: content })
    return { ...each.event, content: stubText(content, locator, limits), spilled: { locator, chars: content.length } }
  })
  return { events, stored }
}

function isOverCap(content: string, { limits, countTokens }: BudgetDeps): boolean {
  const { capTokens, previewChars } = limits
  // What is no longer than its stub stays.
  return capTokens !== undefined && content.length > stubChars({ previewChars }) && countTokens(content) > capTokens
}

/** Characters that a stub has beside its preview, about. */
const STUB_WORDS = 250

function stubChars({ previewChars }: Pick<ResultLimits, 'previewChars'>): number {
  return previewChars + STUB_WORDS
}

/** What stands in the context in place of a stored result. */
export function stubText(content: string, locator: string, { previewChars }: ResultLimits): string {
  const cut = cutAt(content, previewChars)
  return (
    `[This result has ${content.length} characters and was stored as ${JSON.stringify(locator)}; here are the first ${cut}. ` +
    `read_result with this locator, offset ${cut} and a length reads on.]\n${content.slice(0, cut)}`
  )
}

/** `chars`, or one less where that would cut a character in two. */
function cutAt(content: string, chars: number): number {
  const code = content.charCodeAt(chars - 1)
  return chars > 0 && chars < content.length && code >= 0xd800 && code < 0xdc00
    ? chars - 1
    : Math.min(chars, content.length)
}
