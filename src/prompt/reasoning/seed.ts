// Reasoning of Seed-OSS: between <seed:think> and </seed:think>. What it notes of its budget in between stays part of it.

import { taggedReasoning } from './think.js'

export const seed = taggedReasoning({ open: '<seed:think>', close: '</seed:think>' })
