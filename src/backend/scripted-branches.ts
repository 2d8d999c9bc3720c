// What the scripted backend answers to quick instructions: the same to the same question, and nothing that needs a model.
// Invariant: one answer for each branch, of the form that was asked.

import type { BranchAnswer, BranchPlan } from '../core/quick.js'
import type { Tokenizer } from '../prompt/contract.js'

/** Share of the choice that is taken; the others have the rest. */
const TAKEN = 0.75

/** `answer`: what is said in place of the question; a JSON schema or a regex is not read. */
export function scriptedBranch({ suffix, form }: BranchPlan, answer: string, tokenizer: Tokenizer): BranchAnswer {
  const suffixTokens = suffix.length
  if (form.kind === 'choice') {
    const { paths } = form.trie
    const taken = suffix.reduce((sum, id) => (sum * 31 + id) % 65_521, 7) % paths.length
    const rest = Math.log((1 - TAKEN) / Math.max(1, paths.length - 1))
    const logprobs = paths.map((_, i) => (i === taken ? Math.log(TAKEN) : rest))
    return { kind: 'choice', logprobs, suffixTokens, answerTokens: paths[taken]?.length ?? 0 }
  }
  const asked = tokenizer.decode(suffix).split('\n')
  const longest = asked.reduce((best, line) => (line.length > best.length ? line : best), '')
  const text = answer || (form.constraint?.kind === 'json-schema' ? '{}' : longest)
  const ids = tokenizer.encode(text, { special: 'text', bos: 'none' })
  const said = tokenizer.decode(ids.subarray(0, form.maxTokens))
  const reason = ids.length >= form.maxTokens ? 'length' : 'stop'
  return { kind: 'text', text: said, reason, suffixTokens, answerTokens: Math.min(ids.length + 1, form.maxTokens) }
}
