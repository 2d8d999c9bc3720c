// Settings that several kinds share: the salt that parts tenants, and the wish for usage in a stream.

import type { Sending, Setting } from './contract.js'

/** In every path that generates; the others have no cache to part. */
export function saltSetting({ salt }: Sending): Setting[] {
  return salt === undefined ? [] : [{ key: 'cache_salt', json: JSON.stringify(salt) }]
}

const STREAMS_USAGE = new Set(['/v1/chat/completions', '/v1/completions'])

/** The router learns from usage; where the client did not ask for it, it is taken out again on the way back. */
export function usageSetting(sending: Sending): Setting[] {
  if (!STREAMS_USAGE.has(sending.path) || sending.member('stream') !== 'true') return []
  const sent = sending.member('stream_options')
  if (wantsUsage(sent)) return []
  const rest = sent?.startsWith('{') ? sent.slice(1).replace(/"include_usage"\s*:\s*(false|null)\s*,?/, '') : '}'
  const comma = rest.trimStart().startsWith('}') ? '' : ','
  return [{ key: 'stream_options', json: `{"include_usage":true${comma}${rest}` }]
}

/** The same, in every chunk: the first one tells the length of the prompt already. */
export function continuousUsage(sending: Sending): Setting[] {
  if (!sending.isTranslated) return usageSetting(sending)
  return [{ key: 'stream_options', json: '{"include_usage":true,"continuous_usage_stats":true}' }]
}

/** Whether the client's `stream_options` ask for usage. */
export function wantsUsage(streamOptions: string | undefined): boolean {
  return streamOptions !== undefined && /"include_usage"\s*:\s*true/.test(streamOptions)
}
