// llama.cpp's own measuring tools, run as they are: the peer of bench/engine. Invariant: whatever is wrong with them
// (absent, another processor's build, other output) is an Error with a sentence, so that the bench can leave them out.

import { spawnSync } from 'node:child_process'
import { join } from 'node:path'

export interface LlamaRun {
  /** As llama-bench names the file's type, e.g. `llama 135M Q4_1`. */
  readonly type: string
  readonly build: string
  /** Tokens a second by depth, one number a repetition. */
  readonly prefill: Readonly<Record<number, readonly number[]>>
  readonly decode: Readonly<Record<number, readonly number[]>>
}

/** One entry of `llama-bench -o json`; a test has either prompt or generated tokens. */
interface LlamaEntry {
  readonly model_type: string
  readonly build_commit: string
  readonly n_prompt: number
  readonly n_gen: number
  readonly n_depth: number
  readonly samples_ts: readonly number[]
}

export interface LlamaTest {
  readonly folder: string
  readonly model: string
  readonly threads: number
  readonly prefill: number
  readonly decode: number
  readonly depths: readonly number[]
  readonly repetitions: number
}

/** Prefill and decode at each depth, llama-bench's own warm-up apart. @throws Error when it does not run to its end. */
export function llamaBench(test: LlamaTest): LlamaRun {
  const lengths = ['-t', String(test.threads), '-p', String(test.prefill), '-n', String(test.decode)]
  const rest = ['-d', test.depths.join(','), '-r', String(test.repetitions), '-o', 'json']
  const entries = JSON.parse(run(test.folder, 'llama-bench', ['-m', test.model, ...lengths, ...rest])) as LlamaEntry[]
  const prefill: Record<number, readonly number[]> = {}
  const decode: Record<number, readonly number[]> = {}
  for (const entry of entries) (entry.n_gen === 0 ? prefill : decode)[entry.n_depth] = entry.samples_ts
  for (const depth of test.depths) {
    if (!prefill[depth]?.length || !decode[depth]?.length) throw new Error(`llama-bench gave nothing at depth ${depth}`)
  }
  return { type: entries[0]!.model_type, build: entries[0]!.build_commit, prefill, decode }
}

/** Writes `model` as Q4_0 to `into`: other weights than the file's, and llama.cpp's fastest kernels. @throws Error as above. */
export function llamaQuantize(folder: string, model: string, into: string): void {
  run(folder, 'llama-quantize', ['--allow-requantize', model, into, 'Q4_0', '2'])
}

function run(folder: string, program: string, args: readonly string[]): string {
  const ended = spawnSync(join(folder, program), args, {
    encoding: 'utf8',
    maxBuffer: 2 ** 26,
    // A build that was moved finds its libraries beside it.
    env: { ...process.env, LD_LIBRARY_PATH: folder },
  })
  if (ended.error !== undefined) throw new Error(`${program} does not start: ${ended.error.message}`)
  if (ended.status === 0) return ended.stdout
  const last = ended.stderr.trim().split('\n').at(-1) ?? ''
  throw new Error(`${program} ended with ${ended.signal ?? `code ${ended.status}`} ${last}`.trim())
}
