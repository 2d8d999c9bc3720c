// llama-server: one cache a slot, no salts, so one tenant unless the config shares it. What is stateless of it; which
// session has which slot is llama-slots.ts. https://github.com/ggml-org/llama.cpp/tree/master/tools/server

import type { RemoteKind } from './contract.js'
import { usageSetting } from './settings.js'

export const llamaCpp: RemoteKind = {
  kind: 'llama-cpp',
  owner: 'llamacpp',
  sign: '/props',
  salted: false,
  settings: (sending) => [
    ...usageSetting(sending),
    ...(sending.member('cache_prompt') === undefined ? [{ key: 'cache_prompt', json: 'true' }] : []),
  ],
  // A last message of the assistant's is continued by itself.
  continuation: [],
}
