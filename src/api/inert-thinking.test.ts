// Which wishes about reasoning are named as ignored, by what the model can be asked.

import { expect, test } from 'vitest'
import type { Thinking } from '../core/request.js'
import type { ServedModel } from './contract.js'
import { inertThinking } from './inert-thinking.js'

const plain = { written: false, switches: [] } as const
const always = { written: true, switches: [] } as const
const switched = { written: true, switches: ['thinking'] } as const
const both = { written: true, switches: ['thinking', 'effort'] } as const

const named = (thinking: Thinking | undefined, reasoning: ServedModel['reasoning'], body: object) =>
  inertThinking(
    { kind: 'chat', messages: [], tools: [], ...(thinking && { thinking }) },
    reasoning === undefined ? {} : { reasoning },
    body as Record<string, unknown>,
  )

test.each([
  ['an effort that no template reads', { effort: 'high' }, plain, { reasoning_effort: 'high' }, ['reasoning_effort']],
  ['an effort beside a switch alone', { effort: 'low' }, switched, { reasoning: { effort: 'low' } }, ['reasoning']],
  ['an effort in Messages', { effort: 'low' }, plain, { output_config: { effort: 'low' } }, ['output_config']],
  ['an effort that is read', { effort: 'high' }, both, { reasoning_effort: 'high' }, []],
  ['on, for a model that never reasons', { enabled: true }, plain, { thinking: {} }, ['thinking']],
  ['off, for a model that never reasons', { enabled: false }, plain, { thinking: {} }, []],
  ['off, for a model that always does', { enabled: false }, always, { enable_thinking: false }, ['enable_thinking']],
  ['on, for a model that always does', { enabled: true }, always, { enable_thinking: true }, []],
  [
    'an effort of reasoning that is off',
    { enabled: false, effort: 'high' },
    switched,
    { reasoning_effort: 'high' },
    [],
  ],
  ['nothing', undefined, plain, { thinking: { type: 'adaptive' } }, []],
  ['a model that nothing is known of', { effort: 'high' }, undefined, { reasoning_effort: 'high' }, []],
] as const)('%s', (_, thinking, reasoning, body, fields) => {
  expect(named(thinking, reasoning, body)).toEqual(fields)
})
