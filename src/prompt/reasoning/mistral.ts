// Reasoning of Ministral and Magistral: between [THINK] and [/THINK].

import { taggedReasoning } from './think.js'

export const mistral = taggedReasoning({ open: '[THINK]', close: '[/THINK]' })
