// A fleet that listens: stub upstreams behind a router, put together as compose-fleet.ts does.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { composeFleet } from '../compose-fleet.js'
import { makeConfig } from '../config.js'
import { type StubOptions, type StubUpstream, startStub } from './stub-upstream.js'

export interface FleetHouse {
  readonly url: string
  readonly stubs: readonly StubUpstream[]
  post(path: string, body: unknown, headers?: Readonly<Record<string, string>>): Promise<Response>
  /** A chat for model `m`. */
  chat(more?: object, headers?: Readonly<Record<string, string>>): Promise<Response>
  close(): Promise<void>
}

export interface HouseOptions {
  readonly stubs?: readonly StubOptions[]
  /** Of each backend's entry, by index. */
  readonly entries?: readonly object[]
  /** Paths of the config -> values. */
  readonly config?: Readonly<Record<string, unknown>>
  /** Undefined: one that goes with the house. */
  readonly dataDir?: string
}

/** Ready once every upstream has said what it is. */
export async function fleetHouse(options: HouseOptions = {}): Promise<FleetHouse> {
  const stubs = await Promise.all((options.stubs ?? [{}, {}]).map(startStub))
  const dataDir = options.dataDir ?? mkdtempSync(join(tmpdir(), 'refrain-fleet-house-'))
  const flags = {
    'server.port': 0,
    'log.level': 'silent',
    backends: stubs.map(({ url }, i) => ({ url, ...options.entries?.[i] })),
    dataDir,
    ...options.config,
  }
  const program = await composeFleet(makeConfig({ flags }))
  const url = await program.start()
  await ready(url)
  const post: FleetHouse['post'] = (path, body, headers = {}) =>
    fetch(url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body),
    })
  return {
    url,
    stubs,
    post,
    chat: (more = {}, headers = {}) =>
      post('/v1/chat/completions', { model: 'm', messages: [{ role: 'user', content: 'hi' }], ...more }, headers),
    async close() {
      await program.stop(0)
      await Promise.all(stubs.map((stub) => stub.kill().catch(() => undefined)))
      if (options.dataDir === undefined) rmSync(dataDir, { recursive: true, force: true })
    },
  }
}

async function ready(url: string): Promise<void> {
  for (let i = 0; i < 3000; i++) {
    const { notes } = (await (await fetch(`${url}/ready`)).json()) as { notes: string[] }
    if (notes.length === 0) return
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error('the upstreams did not come up')
}

/** The data of a stream's events. */
export function dataOf(text: string): string[] {
  return text
    .split('\n\n')
    .filter((event) => event.includes('data:'))
    .map((event) => event.slice(event.indexOf('data:') + 5).trim())
}

/** What a stream says, put together. */
export function saidIn(text: string): string {
  return dataOf(text)
    .filter((data) => data !== '[DONE]')
    .map((data) => JSON.parse(data).choices?.[0]?.delta?.content ?? '')
    .join('')
}

/** A conversation of its own: it may go anywhere. */
export const about = (i: number) => ({ messages: [{ role: 'user', content: `question ${i}` }] })

/** Waits, half a minute at most. */
export const until = async (what: () => boolean) => {
  for (let i = 0; i < 6000 && !what(); i++) await new Promise((resolve) => setTimeout(resolve, 5))
  if (!what()) throw new Error('it did not come about')
}
