// The answers of a request: how they are made ready before the prompt is computed, and what one sampled token does to
// one of them. Invariant: a choice emits one `end`; after it nothing is sampled for it any more.

import { RefrainError } from '../core/errors.js'
import type { Job } from '../core/request.js'
import type { Tokenizer } from '../prompt/contract.js'
import type { Grammars } from './grammar.js'
import { createOutput } from './output.js'
import { createSampler } from './sampler.js'
import type { Choice, Sequence } from './sequence.js'

export interface ChoiceParts {
  readonly tokenizer: Tokenizer
  /** Undefined: constrained output is refused. */
  readonly grammars: Grammars | undefined
}

/** Makes the n choices of a sequence, all on the prompt's slot for now. @throws RefrainError `invalid_grammar` */
export async function growChoices(sequence: Sequence, parts: ChoiceParts): Promise<void> {
  const { job } = sequence
  const { slot } = sequence.held()
  const { request, tokens } = job
  const grammar = await compileConstraint(job, parts)
  for (let index = 0; index < request.n; index++) {
    const context = { promptTokens: tokens, vocabSize: parts.tokenizer.vocabSize, choice: index, requestId: request.id }
    const { stop, stopTokenIds, ignoreEos, logprobs } = request
    const { tokenizer } = parts
    sequence.choices.push({
      index,
      slot,
      sampler: createSampler(request.sampling, { ...context, topLogprobs: logprobs }),
      matcher: grammar?.matcher(),
      output: createOutput({
        tokenizer,
        detokenizer: tokenizer.stream(job.visibleSpecials),
        stops: stop,
        eosTokenIds: tokenizer.eosTokenIds,
        stopTokenIds,
        ignoreEos,
        maxTokens: job.maxTokens,
        logprobs,
      }),
      pending: undefined,
      last: undefined,
      generated: 0,
    })
  }
}

async function compileConstraint(job: Job, parts: ChoiceParts) {
  const constraint = job.constraint ?? job.request.constraint
  if (constraint === undefined) return undefined
  if (parts.grammars === undefined) {
    throw new RefrainError('unsupported_parameter', 'this model has no constrained output', {
      param: 'response_format',
    })
  }
  return parts.grammars.compile(constraint, job.visibleSpecials)
}

/** Samples the next token of `choice` from `logits`, emits what became visible, and ends the choice where it is due. */
export function settleToken(sequence: Sequence, choice: Choice, logits: Float32Array): void {
  const { sampler, matcher, output, index } = choice
  const sampled = sampler.sample(logits, matcher?.mask())
  sampler.accept(sampled.id)
  matcher?.accept(sampled.id)
  choice.last = sampled.id
  choice.generated++
  sequence.completionTokens++
  const step = output.push(sampled)
  const done = step.done ?? (matcher?.finished ? ({ reason: 'stop' } as const) : undefined)
  const tail = step.done === undefined && done !== undefined ? output.flush() : ''
  const { logprobs } = step
  sequence.events.push({ type: 'token', choice: index, ids: [sampled.id], text: step.text + tail, logprobs })
  choice.pending = done === undefined ? sampled.id : undefined
  if (done !== undefined) sequence.events.push({ type: 'end', choice: index, ...done })
}
