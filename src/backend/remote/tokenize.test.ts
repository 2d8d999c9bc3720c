// What members are asked, and what is made of their answers.

import { describe, expect, test } from 'vitest'
import type { MemberKind } from '../../router/contract.js'
import { type Remote, RemoteFault } from './contract.js'
import { askMembers, type ChatText } from './tokenize.js'

type Answer = { status: number; value: unknown }

function member(kind: MemberKind, answers: Readonly<Record<string, Answer | RemoteFault>>) {
  const asked: [path: string, body: unknown][] = []
  const remote = {
    facts: { kind, models: [], lacks: [] },
    async call(_method: string, path: string, more: { body?: unknown }) {
      asked.push([path, more.body])
      const answer = answers[path] ?? { status: 404, value: undefined }
      if (answer instanceof RemoteFault) throw answer
      return answer
    },
  } as unknown as Remote
  return { remote, asked }
}

const chat: ChatText = {
  ...{ model: 'm', messages: ['{"role":"user","content":"Hi"}'], tools: undefined, values: '{"thinking":false}' },
  isOpen: true,
}
const messages = [{ role: 'user', content: 'Hi' }]
const values = { chat_template_kwargs: { thinking: false } }
const tokens = { status: 200, value: { tokens: [1, 2, 3] } }

describe('members are asked', () => {
  test('vLLM: for the tokens of messages', async () => {
    const { remote, asked } = member('vllm', { '/tokenize': tokens })
    expect(await askMembers(() => [remote])(chat)).toEqual(Int32Array.of(1, 2, 3))
    expect(asked).toEqual([['/tokenize', { model: 'm', messages, add_generation_prompt: true, ...values }]])
  })

  test('llama-server: for the text, then for its tokens', async () => {
    const rendered = { status: 200, value: { prompt: '<user>Hi' } }
    const { remote, asked } = member('llama-cpp', { '/apply-template': rendered, '/tokenize': tokens })
    expect(await askMembers(() => [remote])(chat)).toEqual(Int32Array.of(1, 2, 3))
    expect(asked).toEqual([
      ['/apply-template', { messages, add_generation_prompt: true, ...values }],
      ['/tokenize', { content: '<user>Hi', add_special: true, parse_special: true }],
    ])
  })

  test('one after another, until one answers with tokens', async () => {
    const away = member('vllm', { '/tokenize': new RemoteFault('away', { sent: false }) })
    const none = member('sglang', {})
    const strange = member('vllm', { '/tokenize': { status: 200, value: { tokens: ['a'] } } })
    const good = member('vllm', { '/tokenize': tokens })
    const unasked = member('vllm', { '/tokenize': tokens })
    const all = [away, none, strange, good, unasked]
    expect(await askMembers(() => all.map(({ remote }) => remote))(chat)).toEqual(Int32Array.of(1, 2, 3))
    expect(all.map(({ asked }) => asked.length)).toEqual([1, 1, 1, 1, 0])
  })

  test('and where none does there are none', async () => {
    expect(await askMembers(() => [member('llama-cpp', {}).remote])(chat)).toBeUndefined()
    expect(await askMembers(() => [])(chat)).toBeUndefined()
  })
})
