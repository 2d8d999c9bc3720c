import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { parse } from 'yaml'
import { compose } from './compose.js'
import { type Config, ConfigError, makeConfig, maskedConfig, memoryLimitBytes } from './config.js'

const folder = new URL('../config/', import.meta.url)
const read = (name: string) => readFileSync(new URL(name, folder), 'utf8')
const written = (text: string, env: Record<string, string> = {}) =>
  makeConfig({ file: { name: 'test.yaml', text }, env })

describe('the files of config/', () => {
  test('reference.yaml says every key with its default', () => {
    expect(makeConfig({ file: { name: 'reference.yaml', text: read('reference.yaml') } })).toEqual(makeConfig({}))
    const keys = (value: unknown, path: string): string[] =>
      typeof value !== 'object' || value === null || Array.isArray(value)
        ? [path]
        : Object.entries(value).flatMap(([key, member]) => [path, ...keys(member, `${path}.${key}`)])
    const all = keys(makeConfig({}), 'config')
    // What is undefined once resolved is `auto` in the file.
    expect(new Set(keys(parse(read('reference.yaml')), 'config'))).toEqual(new Set(all))
  })

  test.each(readdirSync(folder).filter((name) => name.endsWith('.yaml')))('%s is right', (name) => {
    expect(makeConfig({ file: { name, text: read(name) } })).toBeDefined()
  })
})

describe('what is refused, with its path', () => {
  test.each([
    ['sever: {}', /^sever: unknown key; known are .*server/],
    ['server: {prot: 1}', /^server\.prot: unknown key; known are .*port/],
    ['tenants: [{name: a, key: long-enough, roles: []}]', /^tenants\.0\.roles: unknown key/],
    ['server: {port: 70000}', /^server\.port: must be <= 65535/],
    ['server: {port: "80"}', /^server\.port: must be integer/],
    ['server: 5', /^server: must be object/],
    ['limits: {bodyBytes: 5 MB}', /^limits\.bodyBytes: must be a number of bytes or a size as '4 GiB'/],
    ['cache: {restore: sometimes}', /^cache\.restore: must be one of cost, always/],
    ['cache: {memoryBytes: lots}', /^cache\.memoryBytes: must be 'auto'/],
    ['model: {contextLength: 0}', /^model\.contextLength: must be 'auto' or a number of tokens/],
    ['tenants: [{name: a}]', /^tenants\.0: must have required properties key/],
    ['tenants: [{name: a, key: short}]', /^tenants\.0\.key: /],
    ['tenants: [{name: a, key: key-one-1}, {name: a, key: key-two-2}]', /two have the same name/],
    ['tenants: [{name: a, key: key-one-1}, {name: b, key: key-one-1}]', /two have the same key/],
    ['telemetry: {trace: {endpoint: collector}}', /^telemetry\.trace\.endpoint: /],
    ['telemetry: {trace: {endpoint: "http://a:b:c"}}', /^telemetry\.trace\.endpoint: 'http:\/\/a:b:c' is no URL/],
    ['telemetry: {trace: {sampleRatio: 2}}', /^telemetry\.trace\.sampleRatio: must be <= 1/],
    ['a: [', /^test\.yaml: /],
    ['- a', /^test\.yaml: must be a map/],
    ['server: {port: 1, port: 2}', /^test\.yaml: .*unique/],
  ])('%s', (text, message) => {
    expect(() => written(text)).toThrow(ConfigError)
    expect(() => written(text)).toThrow(message)
  })

  test('an alias to a model that is not served, an unknown kind, options of it that are wrong', async () => {
    const failing = (flags: object) => compose(makeConfig({ flags: { 'backend.kind': 'scripted', ...flags } }))
    await expect(failing({ 'model.aliases': { 'a*': 'b' } })).rejects.toThrow(/^model\.aliases\.a\*: /)
    await expect(failing({ 'backend.kind': 'magic' })).rejects.toThrow(
      /^backend\.kind: unknown kind 'magic'; known are /,
    )
    await expect(failing({ 'backend.options': { maxRunning: 0 } })).rejects.toThrow(/^backend\.options\.maxRunning: /)
    await expect(failing({ 'backend.options': { oops: 0 } })).rejects.toThrow(ConfigError)
  })
})

describe('the environment', () => {
  test('overrides by path, however it is spelled, and flags override it', () => {
    const env = {
      REFRAIN_SERVER__PORT: '9000',
      REFRAIN_LIMITS__QUEUED_REQUESTS: '7',
      REFRAIN_LIMITS__QUEUEMS: '5',
      REFRAIN_DATA_DIR: '/data/x',
      REFRAIN_MODEL__ALIASES: '{"gpt-*": "m"}',
      REFRAIN_TENANTS__0__NAME: 'a',
      REFRAIN_TENANTS__0__KEY: '12345678',
      REFRAIN_CACHE__MEMORY_BYTES: '1 GiB',
    }
    const config = makeConfig({ file: { name: 'f', text: 'server: {port: 1}' }, env, flags: { 'server.host': '::1' } })
    expect(config.server).toMatchObject({ port: 9000, host: '::1' })
    expect(config.limits).toMatchObject({ queuedRequests: 7, queueMs: 5 })
    expect(config.dataDir).toBe('/data/x')
    expect(config.model.aliases).toEqual({ 'gpt-*': 'm' })
    expect(config.tenants).toEqual([{ name: 'a', key: '12345678', admin: false, salt: 'tenant:a' }])
    expect(config.cache.memoryBytes).toBe(2 ** 30)
    expect(makeConfig({ env, flags: { 'server.port': 2 } }).server.port).toBe(2)
  })

  test("a name with __ that fits nothing is refused, another program's is left alone", () => {
    expect(() => makeConfig({ env: { REFRAIN_SERVER__PROT: '1' } })).toThrow(/^REFRAIN_SERVER__PROT: /)
    expect(makeConfig({ env: { REFRAIN_PORT: 'tcp://10.0.0.1:80', REFRAIN_CONFIG: 'x', PORT: '1' } }).server.port).toBe(
      8080,
    )
  })
})

test('an empty key means the default', () => {
  expect(written('server:\n  port:\ntenants:\n')).toEqual(makeConfig({}))
})

test('it is frozen at every depth', () => {
  const config = written('tenants: [{name: a, key: long-enough}]')
  expect(() => {
    ;(config as { dataDir: string }).dataDir = 'x'
  }).toThrow(TypeError)
  expect(() => {
    ;(config.tenants[0] as { admin: boolean }).admin = true
  }).toThrow(TypeError)
})

test('secrets are masked', () => {
  const config: Config = written('tenants: [{name: a, key: the-secret, salt: the-salt}]')
  expect(JSON.stringify(maskedConfig(config))).not.toMatch(/the-secret|the-salt/)
  expect(JSON.stringify(maskedConfig(config))).toContain('"name":"a"')
  const env = {
    REFRAIN_TELEMETRY__TRACE__HEADERS: '{ authorization: Bearer the-secret }',
    REFRAIN_TELEMETRY__TRACE__ENDPOINT: 'https://user:the-secret@collector:4318',
    REFRAIN_SESSIONS__LOG__KEY: 'the-secret',
    REFRAIN_SESSIONS__SOURCES__POLICY_URL: 'https://user:the-secret@policy:1',
    REFRAIN_SESSIONS__ALARMS__WEBHOOK: 'https://user:the-secret@hook:1',
  }
  const { trace } = makeConfig({ env }).telemetry
  expect(trace.headers).toEqual({ authorization: 'Bearer the-secret' })
  const masked = JSON.stringify(maskedConfig(makeConfig({ env })))
  expect(masked).not.toContain('the-secret')
  expect(masked).toContain('https://***@collector:4318')
  expect(makeConfig({ env }).sessions.log.key).toBe('the-secret')
})

test('the memory limit is the smallest that is said', () => {
  const file = join(mkdtempSync(join(tmpdir(), 'refrain-')), 'memory.max')
  writeFileSync(file, '1048576\n')
  expect(memoryLimitBytes([file, '/nowhere'])).toBe(1048576)
  writeFileSync(file, 'max\n')
  expect(memoryLimitBytes([file])).toBe(memoryLimitBytes([]))
})
