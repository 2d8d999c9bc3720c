// The first three quarters of the history of tools go, calls and results. Lossy, without a model. (DeepSeek-V3.2,
// arXiv 2512.02556.)

import type { StepKind } from './contract.js'
import { discard } from './discard-all.js'

const SHARE = 0.75

export const discard75: StepKind = {
  rank: 'lossy',
  plan: (input) => discard(input, Math.floor(input.units.flatMap(({ calls }) => calls).length * SHARE)),
}
