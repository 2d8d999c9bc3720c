// Any server that speaks OpenAI's API and is none of the others: nothing is added but the wish for usage, which is in the
// API since 2024. Its cache cannot be parted by us, so it serves one tenant unless the config shares it.

import { asResponseFormat, plainAside } from './aside.js'
import type { RemoteKind } from './contract.js'
import { usageSetting } from './settings.js'

export const openai: RemoteKind = {
  kind: 'openai',
  salted: false,
  settings: (sending) => usageSetting(sending),
  aside(asked) {
    const format = asResponseFormat(asked)
    return format && [...plainAside(asked), ...format]
  },
}
