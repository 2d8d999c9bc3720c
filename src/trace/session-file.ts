// One session's trace on disk, in the format of claude-code.ts. Invariant: between two appends the file is whole JSON, so
// that what is there after a crash can be read; only lengths, times and numbers of blocks are written.
//
//   {head..., "requests":[ entry, entry ], "totals":{...}}
//                                       ^ the next entry goes here, and the end after it again

import { open } from 'node:fs/promises'

/** As the format names them. */
export interface SessionHead {
  readonly id: string
  readonly models: readonly string[]
  readonly block_size: number
  readonly hash_id_scope: 'global'
  /** Files with the same one share their numbers of blocks. */
  readonly recording: string
  /** Seconds from the start of the recording. */
  readonly start: number
  /** Of the first request, by their share of its text. */
  readonly tool_tokens: number
  readonly system_tokens: number
}

export interface SessionEntry {
  readonly t: number
  readonly type: 's'
  readonly model: string
  readonly in: number
  readonly out: number
  readonly hash_ids: readonly number[]
  readonly stop: string
  readonly ttft?: number
  readonly api_time: number
  readonly think_time: number
}

export class SessionFile {
  readonly #path: string
  readonly #head: string
  #end: number
  #count = 0
  readonly #totals = { input: 0, output: 0, requests: 0 }

  constructor(path: string, head: SessionHead) {
    this.#path = path
    this.#head = `${JSON.stringify(head).slice(0, -1)},"requests":[`
    this.#end = 0
  }

  /** One at a time. @throws the system's error when the file cannot be written; then it is as it was, or cut off. */
  async append(entry: SessionEntry): Promise<void> {
    const totals = { ...this.#totals }
    totals.input += entry.in
    totals.output += entry.out
    totals.requests++
    const text = `${this.#count === 0 ? this.#head : ','}\n${JSON.stringify(entry)}`
    const bytes = Buffer.from(text)
    const tail = Buffer.from(`\n],"totals":${JSON.stringify(totals)}}\n`)
    // 0600: lengths and times say something about whoever worked here.
    const file = await open(this.#path, this.#count === 0 ? 'wx' : 'r+', 0o600)
    try {
      await file.write(Buffer.concat([bytes, tail]), 0, undefined, this.#end)
    } finally {
      await file.close()
    }
    this.#end += bytes.length
    this.#count++
    Object.assign(this.#totals, totals)
  }
}
