// Real models' templates, whatever they make of an answer in the history: the next prompt begins with the last prompt and
// its answer all the same.

import { expect, test } from 'vitest'
import { createScriptedTokenizer, scriptedPieces } from '../backend/scripted-tokenizer.js'
import type { Reply } from '../core/reply.js'
import type { ChatMessage } from '../core/request.js'
import { realTemplates } from '../testing/real-templates.js'
import type { ChatTemplate } from './contract.js'
import { encodePieces, splice } from './splice.js'
import { createTemplate } from './template.js'

const templates = realTemplates()

/** Their answers have parts of their own (reasoning, then a text with marks around it), which this test's model writes not. */
const IN_PARTS = ['Cohere2MoE', 'CohereForAI-c4ai-command-r7b-12-2024-tool_use', 'Kimi-K3']
/** They do not render without names of their own. */
const REFUSES = ['fireworks-ai-llama-3-firefunction-v2']

const options = { bosToken: '<s>', dateNow: () => new Date(0), toolFallback: 'hermes' } as const
const user = (content: string): ChatMessage => ({ role: 'user', content })
const says = (content: string): ChatMessage => ({ role: 'assistant', content })

/** The token that the template ends the assistant's turn with. */
function endOf(template: ChatTemplate): string {
  const { text } = template.render([user('q'), says('ANSWER'), user('q')], { tools: [], addGenerationPrompt: true })
  return /ANSWER\s*(<[^<>\s]{1,40}>|\[e~\[)/.exec(text)?.[1] ?? '</s>'
}

async function holds(source: string): Promise<boolean> {
  const end = endOf(createTemplate(source, { ...options, eosToken: '</s>' }))
  const template = createTemplate(source, { ...options, eosToken: end })
  const tokenizer = createScriptedTokenizer({ end, specials: ['<s>'] })
  const messages: ChatMessage[] = []
  const replies: (Reply | undefined)[] = []
  let before: number[] = []
  for (let turn = 0; turn < 4; turn++) {
    messages.push(user(`question ${turn}?`))
    replies.push(undefined)
    const rendered = template.render(messages, { tools: [], addGenerationPrompt: true })
    const pieces = splice(rendered, { messages, replies, beyondTemplate: false, tokenizer })
    const { tokens } = await encodePieces(pieces, { tokenizer, options: { special: 'parse', bos: 'none' } })
    if (before.some((id, i) => id !== tokens[i])) return false
    const content = `answer number ${turn}.\n`
    const ids = Int32Array.from(scriptedPieces(content))
    const opening = rendered.text.slice(rendered.tail)
    replies.push({ id: content, opening, ids, rest: '', message: { content } })
    messages.push(says(content))
    before = [...tokens, ...ids]
  }
  return true
}

test.skipIf(templates === undefined)('70 templates and more (needs ../shared/tools/get-templates)', async () => {
  const lost: string[] = []
  for (const [name, source] of templates ?? []) {
    if (!REFUSES.includes(name) && !(await holds(source))) lost.push(name)
  }
  expect(lost.sort()).toEqual(IN_PARTS)
})
