// llama-server: one cache a slot, no salts, so one tenant unless the config shares it. What is stateless of it; which
// session has which slot is llama-slots.ts. https://github.com/ggml-org/llama.cpp/tree/master/tools/server

import { asResponseFormat, plainAside, withLogprobs, withoutThinking } from './aside.js'
import type { RemoteKind } from './contract.js'
import { listIn, waitingGauge } from './gauges.js'
import { usageSetting } from './settings.js'

export const llamaCpp: RemoteKind = {
  kind: 'llama-cpp',
  owner: 'llamacpp',
  sign: '/props',
  salted: false,
  waiting: [
    // Where it was started with --metrics.
    waitingGauge('llamacpp:requests_deferred'),
    {
      path: '/slots',
      read(text) {
        const slots = listIn(text)?.filter((slot) => typeof slot['is_processing'] === 'boolean') ?? []
        if (slots.length === 0) return undefined
        // A request that comes waits for none of those that run while a slot is free.
        const isFull = slots.every((slot) => slot['is_processing'] === true)
        return { requests: isFull ? slots.length : 0, withRunning: true }
      },
    },
  ],
  settings: (sending) => [
    ...usageSetting(sending),
    ...(sending.member('cache_prompt') === undefined ? [{ key: 'cache_prompt', json: 'true' }] : []),
  ],
  aside(asked, { member }) {
    const { guide, ignoreEos } = asked
    // It takes a pattern inside of a schema, but none for the bare text; choices are alternatives of a grammar.
    if (guide?.kind === 'regex') return undefined
    const grammar =
      guide?.kind === 'choice' && `root ::= ${guide.choices.map((choice) => JSON.stringify(choice)).join(' | ')}`
    return [
      ...plainAside(asked),
      ...withLogprobs(asked),
      ...withoutThinking(member('chat_template_kwargs')),
      ...(grammar ? [{ key: 'grammar', json: JSON.stringify(grammar) }] : (asResponseFormat(asked) ?? [])),
      // Tools stay in the prompt; a grammar beside tools that may be called is refused.
      ...(member('tools') === undefined ? [] : [{ key: 'tool_choice', json: '"none"' }]),
      ...(ignoreEos === true ? [{ key: 'ignore_eos', json: 'true' }] : []),
    ]
  },
  // A last message of the assistant's is continued by itself.
  continuation: [],
}
