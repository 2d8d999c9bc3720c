// `refrain serve --record`: every answered request as a line of its session's trace, without a word of its text. Invariant: a
// request never waits for the recording and never fails by it; a folder that cannot be written is said once and recording
// goes on with the next request. Stands around a backend, because a job has the chain and its events have the counts.

import { randomBytes } from 'node:crypto'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Backend } from '../backend/backend.js'
import { BLOCK_TOKENS } from '../core/block.js'
import type { Clock } from '../core/clock.js'
import type { GenerateEvent } from '../core/events.js'
import type { Job } from '../core/request.js'
import { note } from '../core/signals.js'
import { UsageError } from '../core/usage-error.js'
import { BlockNames } from './block-names.js'
import { SessionFile } from './session-file.js'

export interface Recorder {
  /** The same backend; what it answers is recorded. */
  over(backend: Backend): Backend
  /** Resolves once everything is written. */
  close(): Promise<void>
}

export interface RecorderOptions {
  readonly folder: string
  readonly clock: Clock
  /** Sessions that are told apart at once; the one that was quiet longest starts a new file when it comes back. */
  readonly sessions?: number
  /** Blocks whose numbers are remembered. */
  readonly blocks?: number
}

/** 20 MB at about 100 bytes a session and its file; 100 MB of hashes. */
const DEFAULTS = { sessions: 10_000, blocks: 500_000 }

/** @throws UsageError when the folder cannot be made. */
export async function openRecorder(options: RecorderOptions): Promise<Recorder> {
  try {
    await mkdir(options.folder, { recursive: true, mode: 0o700 })
  } catch (error) {
    throw new UsageError(`--record: ${options.folder} cannot be made: ${(error as Error).message}`)
  }
  return new FolderRecorder({ ...DEFAULTS, ...options })
}

interface Session {
  readonly file: SessionFile
  readonly startedAt: number
  /** When its last answer ended. */
  endedAt: number
}

class FolderRecorder implements Recorder {
  readonly #options: Required<RecorderOptions>
  readonly #names: BlockNames
  readonly #recording = randomBytes(6).toString('hex')
  readonly #began: number
  /** Least recently used first. */
  readonly #sessions = new Map<string, Session>()
  /** For requests without a session: the last block of a prompt -> whose it was. */
  readonly #tails = new Map<string, string>()
  #writes: Promise<void> = Promise.resolve()
  #complained = false
  #count = 0

  constructor(options: Required<RecorderOptions>) {
    this.#options = options
    this.#names = new BlockNames(options.blocks)
    this.#began = options.clock.now()
  }

  over(backend: Backend): Backend {
    const record = (job: Job, events: AsyncIterable<GenerateEvent>) => this.#watch(job, events)
    return {
      name: backend.name,
      model: backend.model,
      generate: (job, signal) => record(job, backend.generate(job, signal)),
      health: () => backend.health(),
      ...(backend.cache !== undefined && { cache: backend.cache }),
      close: () => backend.close(),
    }
  }

  async close(): Promise<void> {
    await this.#writes
  }

  async *#watch(job: Job, events: AsyncIterable<GenerateEvent>): AsyncGenerator<GenerateEvent, void> {
    const { clock } = this.#options
    // Taken now: the tokens are given away to the engine.
    const prompt = { tokens: job.tokens.length, at: clock.now() }
    let firstAt: number | undefined
    let stop = 'stop'
    for await (const event of events) {
      if (event.type === 'start') firstAt = clock.now()
      if (event.type === 'end' && event.choice === 0) stop = event.reason
      if (event.type === 'finish') {
        this.#write(job, { ...prompt, out: event.completionTokens, firstAt, stop })
      }
      yield event
    }
  }

  #write(job: Job, seen: Seen): void {
    const now = this.#options.clock.now()
    const session = this.#sessionOf(job, seen)
    const { firstAt } = seen
    const entry = {
      t: seconds(seen.at - session.startedAt),
      type: 's' as const,
      model: job.model,
      in: seen.tokens,
      out: seen.out,
      hash_ids: job.chain.hashes.map((hash) => this.#names.name(hash)),
      stop: seen.stop === 'length' ? 'max_tokens' : 'end_turn',
      ...(firstAt !== undefined && { ttft: seconds(firstAt - seen.at) }),
      api_time: seconds(now - seen.at),
      think_time: seconds(Math.max(0, seen.at - session.endedAt)),
    }
    session.endedAt = now
    this.#writes = this.#writes.then(() => session.file.append(entry)).catch((error) => this.#complain(error))
  }

  #sessionOf(job: Job, { tokens, at }: Seen): Session {
    const { request, chain } = job
    const key =
      request.session === undefined
        ? this.#followed(chain.hashes)
        : JSON.stringify([request.tenant.name, job.model, request.session])
    const known = this.#sessions.get(key)
    const session = known ?? this.#open(job, tokens, at)
    this.#sessions.delete(key)
    this.#sessions.set(key, session)
    if (this.#sessions.size > this.#options.sessions)
      this.#sessions.delete(this.#sessions.keys().next().value as string)
    return session
  }

  /** The key of the conversation that these blocks go on with, or a new one. */
  #followed(hashes: readonly string[]): string {
    let key: string | undefined
    let at = hashes.length
    while (key === undefined && at > 0) key = this.#tails.get(hashes[--at]!)
    if (key !== undefined) this.#tails.delete(hashes[at]!)
    const found = key ?? `unnamed ${++this.#count}`
    const last = hashes.at(-1)
    if (last !== undefined) this.#tails.set(last, found)
    if (this.#tails.size > this.#options.sessions) this.#tails.delete(this.#tails.keys().next().value as string)
    return found
  }

  #open(job: Job, tokens: number, at: number): Session {
    const id = `trace_${this.#recording}_${String(++this.#count).padStart(4, '0')}`
    const file = new SessionFile(join(this.#options.folder, `${id}.json`), {
      ...{ id, models: [job.model], block_size: BLOCK_TOKENS, hash_id_scope: 'global', recording: this.#recording },
      start: seconds(at - this.#began),
      ...headTokens(job, tokens),
    })
    return { file, startedAt: at, endedAt: at }
  }

  #complain(error: unknown): void {
    if (this.#complained) return
    this.#complained = true
    note.publish({ level: 'warn', text: `record: a trace is not written: ${(error as Error).message}` })
  }
}

interface Seen {
  readonly tokens: number
  readonly at: number
  readonly out: number
  readonly firstAt: number | undefined
  readonly stop: string
}

/** Tokens of tools and system texts, by their share of the prompt's text. */
function headTokens({ request }: Job, tokens: number): { tool_tokens: number; system_tokens: number } {
  const { prompt } = request
  if (prompt.kind !== 'chat') return { tool_tokens: 0, system_tokens: 0 }
  const length = (texts: readonly string[]) => texts.reduce((sum, text) => sum + text.length, 0)
  const tools = length(prompt.tools.map(({ json }) => json))
  const system = length(prompt.messages.filter(({ role }) => role === 'system').map(({ content }) => content))
  const rest = length(prompt.messages.filter(({ role }) => role !== 'system').map(({ content }) => content))
  const share = (chars: number) => Math.round((tokens * chars) / Math.max(1, tools + system + rest))
  return { tool_tokens: share(tools), system_tokens: share(system) }
}

/** To the millisecond. */
const seconds = (ms: number): number => Math.round(ms) / 1000
