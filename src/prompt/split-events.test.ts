// What narrows calls holds for what comes back, too: whichever backend wrote it, and however it is spelled.

import { describe, expect, test } from 'vitest'
import type { CallDelta, GenerateEvent } from '../core/events.js'
import type { GenerateRequest, ToolChoice } from '../core/request.js'
import { splitEvents } from './split-events.js'
import type { ToolCallFormat } from './tool-calls/contract.js'
import { deepseekV3 } from './tool-calls/deepseek-v3.js'
import { hermes } from './tool-calls/hermes.js'
import { llama3Json } from './tool-calls/llama3-json.js'

const tools = ['browser_open', 'shell'].map((name) => ({
  name,
  json: `{"type":"function","function":{"name":"${name}"}}`,
}))

async function answerOf(text: string, format: ToolCallFormat, toolChoice?: ToolChoice) {
  const request = { prompt: { kind: 'chat', messages: [], tools }, n: 1, ...(toolChoice && { toolChoice }) }
  async function* said(): AsyncGenerator<GenerateEvent> {
    yield { type: 'token', choice: 0, ids: [1], text }
    yield { type: 'end', choice: 0, reason: 'stop' }
  }
  const formats = { specials: [], toolCalls: () => format.create({}, { tools }) }
  let content = ''
  const calls: CallDelta[] = []
  for await (const event of splitEvents(said(), request as unknown as GenerateRequest, { formats, tail: '' })) {
    if (event.type !== 'token' && event.type !== 'end') continue
    content += event.split?.content ?? (event.type === 'token' ? event.text : '')
    calls.push(...(event.split?.calls ?? []))
  }
  return { content, names: calls.map(({ name }) => name) }
}

/** Calls in spellings that no decoder under a constraint would write. */
const spellings: [string, ToolCallFormat, (name: string) => string][] = [
  ['hermes', hermes, (name) => `<tool_call>{"arguments": {}, "name": "${name}"}</tool_call>`],
  ['llama3-json', llama3Json, (name) => `{ "parameters": {}, "name" : "${name}" }`],
  [
    'deepseek-v3',
    deepseekV3,
    (name) => `<｜tool▁call▁begin｜>function<｜tool▁sep｜>${name}\n\`\`\`json\n{}\n\`\`\`<｜tool▁call▁end｜>`,
  ],
]

describe.each(spellings)('%s', (_, format, spell) => {
  test('what may not be called is content', async () => {
    const allowed = ['browser_*']
    expect((await answerOf(spell('shell'), format)).names).toEqual(['shell'])
    for (const mode of ['auto', 'required'] as const) {
      expect((await answerOf(spell('browser_open'), format, { mode, allowed })).names).toEqual(['browser_open'])
      expect(await answerOf(spell('shell'), format, { mode, allowed })).toEqual({ content: spell('shell'), names: [] })
    }
    expect(await answerOf(spell('shell'), format, { mode: 'none' })).toEqual({ content: spell('shell'), names: [] })
  })
})
