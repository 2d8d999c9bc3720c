// Frames of KV events that a real engine published, recorded in ../shared/fixtures/kv-events beside this repository. Tests that
// need them are skipped where they are absent. Nothing of them is copied in here.

import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const FOLDER = fileURLToPath(new URL('../../../shared/fixtures/kv-events', import.meta.url))

/** False: the recordings do not lie beside this repository. */
export const hasKvRecordings = existsSync(FOLDER)

export interface KvMessage {
  readonly socket: 'pub' | 'replay'
  /** Frames as they came. */
  readonly frames: readonly Buffer[]
  /** Name of the step that it came in; '' where none was noted. */
  readonly during: string
  readonly seq: number
}

/** A request, or several at once, in the order in which they were sent. */
export interface KvStep {
  readonly name: string
  readonly request: unknown
  readonly prompt_token_ids?: readonly number[]
  readonly prompt_tokens?: number
  readonly usage?: { readonly prompt_tokens_details?: { readonly cached_tokens?: number } | null }
}

export interface KvRecording {
  readonly messages: readonly KvMessage[]
  readonly steps: readonly KvStep[]
}

/** `vllm-0.32.0`, ... */
export function kvRecording(name: string): KvRecording {
  const lines = readFileSync(join(FOLDER, `${name}.jsonl`), 'utf8')
    .trim()
    .split('\n')
  const decoded = JSON.parse(readFileSync(join(FOLDER, `${name}.decoded.json`), 'utf8'))
  const messages = lines.map((line, i): KvMessage => {
    const { socket, frames } = JSON.parse(line) as { socket: 'pub' | 'replay'; frames: string[] }
    const { during, seq } = decoded.messages[i] as { during: string; seq: number }
    return { socket, frames: frames.map((frame) => Buffer.from(frame, 'base64')), during, seq }
  })
  return { messages, steps: decoded.steps ?? [] }
}
