// vLLM: caches parted by `cache_salt`, a schedule by `priority` where it was started so, ranks of data parallelism behind
// one address. https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html

import type { Priority } from '../../core/request.js'
import { plainAside, withLogprobs, withoutThinking } from './aside.js'
import type { RemoteKind } from './contract.js'
import { waitingGauge } from './gauges.js'
import { continuousUsage, saltSetting } from './settings.js'

/** Lower goes first; 0 is what everybody else has. */
const PRIORITY: Readonly<Record<Priority, string>> = { interactive: '0', auxiliary: '5', background: '10' }

export const vllm: RemoteKind = {
  kind: 'vllm',
  owner: 'vllm',
  sign: '/version',
  salted: true,
  waiting: [waitingGauge('vllm:num_requests_waiting', (rank) => `engine="${rank}"`)],
  settings(sending) {
    const { options, priority } = sending
    return [
      ...saltSetting(sending),
      ...continuousUsage(sending),
      // A server without that schedule refuses anything but 0.
      ...(options.priority && sending.member('priority') === undefined
        ? [{ key: 'priority', json: PRIORITY[priority] }]
        : []),
    ]
  },
  aside(asked, { member }) {
    const { guide, ignoreEos } = asked
    const outputs =
      guide?.kind === 'choice'
        ? `{"choice":${JSON.stringify(guide.choices)}}`
        : guide?.kind === 'json-schema'
          ? `{"json":${guide.schema}}`
          : guide && `{"regex":${JSON.stringify(guide.regex)}}`
    return [
      ...plainAside(asked),
      ...withLogprobs(asked),
      ...withoutThinking(member('chat_template_kwargs')),
      ...(outputs === undefined ? [] : [{ key: 'structured_outputs', json: outputs }]),
      ...(ignoreEos === true ? [{ key: 'ignore_eos', json: 'true' }] : []),
    ]
  },
  headers: ({ options }): Record<string, string> =>
    options.dataParallelRank === undefined ? {} : { 'x-data-parallel-rank': String(options.dataParallelRank) },
  continuation: [
    { key: 'continue_final_message', json: 'true' },
    { key: 'add_generation_prompt', json: 'false' },
  ],
}
