// The baseline: the model does not mark its reasoning, all text is content.

import { Type } from 'typebox'
import type { ReasoningFormat } from './contract.js'

export const none: ReasoningFormat = {
  options: Type.Object({}),
  specials: [],
  ending: undefined,
  begins: () => 'behind',
  create: () => ({
    push: (content) => ({ reasoning: '', content }),
    end: () => ({ reasoning: '', content: '' }),
  }),
}
