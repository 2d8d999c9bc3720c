// The baseline: no form of calls is known, all text is content.

import { Type } from 'typebox'
import type { ToolCallFormat } from './contract.js'

export const none: ToolCallFormat = {
  options: Type.Object({}),
  specials: [],
  trigger: '',
  calls: () => ({ kind: 'free', without: [] }),
  create: () => ({
    push: (content) => ({ content, calls: [] }),
    end: () => ({ content: '', calls: [] }),
  }),
}
