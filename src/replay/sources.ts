// Trace files of any kind as one plan. Invariant: files with texts and files with names of blocks are not mixed, since they
// are not sent in the same way.

import { readFile } from 'node:fs/promises'
import { basename } from 'node:path'
import { UsageError } from '../core/usage-error.js'
import { readTraces, traceFiles } from '../trace/read-trace.js'
import { type Conversations, isConversation, readConversations } from './conversations.js'
import { type Plan, type PlanOptions, planBlocks, planConversations } from './plan.js'

/** @throws UsageError naming the file, and the line where one is broken. */
export async function readPlan(paths: readonly string[], options: PlanOptions): Promise<Plan> {
  const files = (await Promise.all(paths.map(traceFiles))).flat()
  const conversations: Conversations[] = []
  for (const file of files) {
    const text = await readFile(file, 'utf8')
    const whole = parsed(text)
    if (Array.isArray(whole) && isConversation(whole[0])) {
      const lines = whole.map((record) => JSON.stringify(record)).join('\n')
      conversations.push(readConversations(lines, basename(file)))
    } else if (isConversation(whole) || isConversation(parsed(text.slice(0, text.indexOf('\n'))))) {
      // One object over many lines is one record.
      conversations.push(readConversations(isConversation(whole) ? JSON.stringify(whole) : text, basename(file)))
    } else if (conversations.length > 0) break
  }
  if (conversations.length === 0) {
    const trace = await readTraces(paths)
    return nonEmpty(planBlocks(trace, options))
  }
  if (conversations.length < files.length)
    throw new UsageError(`${files[conversations.length]}: it has no messages, others have: replay them apart`)
  const [first] = conversations
  const name = conversations.length === 1 ? first!.name : `${conversations.length} files`
  const requests = conversations.flatMap((each) => each.requests)
  const sorted = requests.every(({ at }) => at !== undefined) ? [...requests].sort((a, b) => a.at! - b.at!) : requests
  return nonEmpty(planConversations({ name, requests: sorted }, options))
}

function nonEmpty(plan: Plan): Plan {
  if (plan.requests.length > 0) return plan
  const { long } = plan.leftOut
  throw new UsageError(
    `${plan.name}: there is no request in it${long > 0 ? `: ${long} are longer than --max-prompt` : ''}`,
  )
}

/** Undefined: not JSON. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
