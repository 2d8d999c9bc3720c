// A request's bytes as a JSON object beside its text. Invariant: what gets past here is valid UTF-8 and one JSON object;
// the text is kept, because tools, arguments and schemas travel on as they were sent.

import { isUtf8 } from 'node:buffer'
import { RefrainError } from '../core/errors.js'
import type { RawBody } from './dialect/contract.js'
import { asObject } from './dialect/fields.js'

/** @throws RefrainError `invalid_json`, or `invalid_request` when it is no object. */
export function readBody(bytes: unknown): RawBody {
  if (!Buffer.isBuffer(bytes) || bytes.length === 0) throw new RefrainError('invalid_json', 'the body is empty')
  if (!isUtf8(bytes)) throw new RefrainError('invalid_json', 'the body is not valid UTF-8')
  // Some shells put a byte order mark in front of what they send.
  const text = bytes.toString('utf8').replace(/^\uFEFF/, '')
  return { text, value: asObject(parse(text), '') }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new RefrainError('invalid_json', `the body is not valid JSON: ${(error as Error).message}`, { cause: error })
  }
}
