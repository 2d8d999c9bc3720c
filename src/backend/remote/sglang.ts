// SGLang: caches parted by `cache_salt`, a schedule by `priority` where it was started so, ranks of data parallelism in
// the body. https://docs.sglang.io/basic_usage/openai_api.html

import type { Priority } from '../../core/request.js'
import { asResponseFormat, choiceRegex, plainAside, withLogprobs, withoutThinking } from './aside.js'
import type { RemoteKind, RemoteOptions, WaitingThere } from './contract.js'
import { listIn, waitingGauge } from './gauges.js'
import { continuousUsage, saltSetting } from './settings.js'

/** Higher goes first. */
const PRIORITY: Readonly<Record<Priority, string>> = { interactive: '10', auxiliary: '5', background: '0' }

export const sglang: RemoteKind = {
  kind: 'sglang',
  owner: 'sglang',
  sign: '/get_server_info',
  salted: true,
  // The gauge is there where it was started with --enable-metrics; the list was renamed once.
  waiting: [
    { path: '/v1/loads', read: (text, options) => waitingIn(listIn(text, 'loads'), options) },
    { path: '/get_load', read: (text, options) => waitingIn(listIn(text), options) },
    waitingGauge('sglang:num_queue_reqs', (rank) => `dp_rank="${rank}"`),
  ],
  settings(sending) {
    const { options, priority } = sending
    const rank = options.dataParallelRank
    return [
      ...saltSetting(sending),
      ...continuousUsage(sending),
      ...(options.priority && sending.member('priority') === undefined
        ? [{ key: 'priority', json: PRIORITY[priority] }]
        : []),
      ...(rank === undefined ? [] : [{ key: 'data_parallel_rank', json: String(rank) }]),
    ]
  },
  aside(asked, { member }) {
    const { guide, ignoreEos } = asked
    const regex = guide?.kind === 'choice' ? choiceRegex(guide.choices) : guide?.kind === 'regex' && guide.regex
    return [
      ...plainAside(asked),
      ...withLogprobs(asked),
      ...withoutThinking(member('chat_template_kwargs')),
      ...(guide?.kind === 'json-schema' ? (asResponseFormat(asked) ?? []) : []),
      ...(regex ? [{ key: 'regex', json: JSON.stringify(regex) }] : []),
      ...(ignoreEos === true ? [{ key: 'ignore_eos', json: 'true' }] : []),
    ]
  },
  continuation: [{ key: 'continue_final_message', json: 'true' }],
}

/** Of a list with an entry for each rank. */
function waitingIn(
  ranks: readonly Record<string, unknown>[] | undefined,
  { dataParallelRank: rank }: RemoteOptions,
): WaitingThere | undefined {
  const mine = ranks?.filter((each) => rank === undefined || each['dp_rank'] === rank)
  const counts = mine?.map((each) => each['num_waiting_reqs']).filter((each) => typeof each === 'number')
  if (counts === undefined || counts.length === 0) return undefined
  return { requests: counts.reduce((sum, each) => sum + each, 0), withRunning: false }
}
