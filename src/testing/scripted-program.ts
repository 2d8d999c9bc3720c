// A whole server over the scripted backend, for tests and benchmarks of what stands around an engine.

import { type ComposeOptions, compose, type Program } from '../compose.js'
import { makeConfig } from '../config.js'

/** `flags` are config paths -> values; the port is any that is free unless they say otherwise. */
export function scriptedProgram(
  flags: Readonly<Record<string, unknown>> = {},
  options: ComposeOptions = {},
): Promise<Program> {
  return compose(makeConfig({ flags: { 'backend.kind': 'scripted', 'server.port': 0, ...flags } }), options)
}

// biome-ignore lint/suspicious/noExplicitAny: a reply's shape is what the test is about to assert
type Json = any

export interface Reply {
  readonly status: number
  readonly headers: Readonly<Record<string, unknown>>
  readonly text: string
  readonly json: () => Json
}

/** Sends a body through the server without a socket. */
export async function post(
  program: Program,
  path: string,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): Promise<Reply> {
  const payload = typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body)
  const reply = await program.server.app.inject({
    method: 'POST',
    url: path,
    headers: { 'content-type': 'application/json', ...headers },
    payload,
  })
  return { status: reply.statusCode, headers: reply.headers, text: reply.body, json: () => JSON.parse(reply.body) }
}

/** The smallest chat body. */
export function chat(content = 'Hello', more: object = {}): object {
  return { messages: [{ role: 'user', content }], ...more }
}

/** The `data:` payloads of an event stream; `[DONE]` stays text. */
export function payloadsOf(stream: string): Json[] {
  return stream
    .split('\n\n')
    .filter((event) => event.startsWith('data: '))
    .map((event) => event.slice(6))
    .map((data) => (data === '[DONE]' ? data : JSON.parse(data)))
}
