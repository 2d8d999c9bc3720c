// The catalogue of errors, the page that lists them, the places that throw them and the shape that clients see: one set.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { ERRORS, type ErrorCode, RefrainError } from '../core/errors.js'
import { asRefrainError, errorBody } from './dialect/openai-shape.js'

const root = fileURLToPath(new URL('../..', import.meta.url))
const codes = Object.keys(ERRORS) as ErrorCode[]

test('docs/api.md lists every error as the catalogue has it, and no other', () => {
  const page = readFileSync(join(root, 'docs/api.md'), 'utf8')
  const rows = [...page.matchAll(/^\| `(\w+)` \| (\d{3}) \| (yes|no) \| (.*) \|$/gm)]
  const listed = rows.map(([, code, status, retryable, sentence]) => ({
    code,
    status: Number(status),
    retryable: retryable === 'yes',
    sentence,
  }))
  expect(listed).toEqual(Object.entries(ERRORS).map(([code, entry]) => ({ code, ...entry })))
})

test('every error is thrown somewhere, and nothing is thrown that is not in the catalogue', () => {
  const sources = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts') && !name.endsWith('.test.ts'))
    .map((name) => readFileSync(join(root, 'src', name), 'utf8'))
    .join('\n')
  const thrown = new Set([...sources.matchAll(/RefrainError\(\s*'(\w+)'/g)].map(([, code]) => code))
  expect([...thrown].filter((code) => !(codes as (string | undefined)[]).includes(code))).toEqual([])
  expect(codes.filter((code) => !thrown.has(code))).toEqual([])
})

describe('the shape', () => {
  test.each(codes)('%s', (code) => {
    const { status } = ERRORS[code]
    const { error } = JSON.parse(errorBody(new RefrainError(code, 'why', { param: 'field' })))
    expect(error).toEqual({ message: 'why', type: expect.any(String), param: 'field', code })
    if (status >= 500) expect(error.type).toBe('server_error')
    if (status === 429) expect(error.type).toBe('rate_limit_error')
    if (status === 401) expect(error.type).toBe('authentication_error')
    if (status === 400) expect(error.type).toBe('invalid_request_error')
  })

  test('a fault of our own says nothing of itself', () => {
    expect(errorBody(new TypeError('secret detail'))).not.toContain('secret')
    expect(asRefrainError(new TypeError('secret detail')).code).toBe('internal')
  })
})
