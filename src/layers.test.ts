// Holds the house's rules on the sources themselves: which folder may import which, one vendor one door, no import cycles,
// a comment at the top, 500 lines at most. Tests may import anything. A complaint says what to do.

import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'

interface Import {
  /** Relative to src for our own files (`core/block.ts`), else the package or `node:` name. */
  readonly target: string
  readonly own: boolean
  readonly typeOnly: boolean
}

interface Source {
  /** Relative to src, e.g. `cache/tier/disk.ts`. */
  readonly path: string
  readonly text: string
  readonly imports: readonly Import[]
}

const SRC = dirname(fileURLToPath(import.meta.url))

// --- reading ---------------------------------------------------------------------------------------------------------

// Statements begin at the start of a line (biome formats them so), which keeps comments out of it.
const STATEMENT =
  /^(?:import|export)\s+(type\s)?(?:(?:[\w$]+\s*,?\s*)?(?:\{[^}]*\}|\*(?:\sas\s[\w$]+)?)?\s*from\s+)?'([^']+)'/gm
const DYNAMIC = /^(?!\s*(?:\/\/|\*)).*?\bimport\('([^']+)'\)(\.[A-Z])?/gm

function importsOf(path: string, text: string): Import[] {
  const found = new Map<string, Import>()
  const add = (specifier: string, typeOnly: boolean) => {
    const own = specifier.startsWith('.')
    const target = own ? normalize(join(dirname(path), specifier)).replace(/\.js$/, '.ts') : packageOf(specifier)
    const known = found.get(target)
    found.set(target, { target, own, typeOnly: typeOnly && (known?.typeOnly ?? true) })
  }
  for (const [, type, specifier] of text.matchAll(STATEMENT)) add(specifier!, type !== undefined)
  // `import('x').Name` is a type, `import('x')` alone loads the module.
  for (const [, specifier, member] of text.matchAll(DYNAMIC)) add(specifier!, member !== undefined)
  return [...found.values()]
}

function packageOf(specifier: string): string {
  const parts = specifier.split('/')
  return parts.slice(0, specifier.startsWith('@') ? 2 : 1).join('/')
}

function read(path: string): Source {
  const text = readFileSync(join(SRC, path), 'utf8')
  return { path, text, imports: importsOf(path, text) }
}

const sources = readdirSync(SRC, { recursive: true, encoding: 'utf8' })
  .filter((path) => path.endsWith('.ts'))
  .sort()
  .map(read)

const isTest = (path: string) => path.endsWith('.test.ts')
const production = sources.filter(({ path }) => !isTest(path))

// --- layers ----------------------------------------------------------------------------------------------------------

/** A room is a folder of src, or a file that lies in src itself. */
const roomOf = (path: string) => path.split('/')[0]!

/**
 * Files that hold a family's or a folder's face and may be imported where its folder may not: `contract.ts`, and the file
 * named like its folder (`backend/backend.ts`, `router/scorer/scorer.ts`).
 */
function isContract(path: string): boolean {
  const [file, folder] = path.split('/').reverse()
  return file === 'contract.ts' || file === `${folder}.ts`
}

interface Room {
  /** Rooms whose files may be imported; a path with a slash is one file. */
  readonly may: readonly string[]
  /** Of these rooms, `import type` only. */
  readonly types?: readonly string[]
  /** Every room's contracts may be imported too. */
  readonly contracts?: true
}

const ROOMS: Readonly<Record<string, Room>> = {
  core: { may: [] },
  native: { may: ['core'] },
  telemetry: { may: ['core'] },
  model: { may: ['core', 'native'] },
  prompt: { may: ['core', 'native'] },
  cache: { may: ['core', 'native'] },
  session: { may: ['core', 'native'] },
  engine: { may: ['core', 'native', 'cache'], types: ['prompt'] },
  quick: { may: ['core', 'native', 'cache'], types: ['prompt'] },
  backend: { may: ['core', 'prompt', 'cache', 'engine', 'quick'], types: ['router/contract.ts'] },
  router: {
    may: ['core'],
    types: ['backend/backend.ts', 'backend/remote/contract.ts', 'backend/kv-events/contract.ts'],
  },
  explain: { may: ['core'], contracts: true },
  api: { may: ['core'], contracts: true },
  dashboard: { may: ['core'], contracts: true },
  plan: { may: ['core', 'model'] },
  lint: { may: ['core', 'explain'] },
  trace: { may: ['core'], types: ['backend/backend.ts'] },
  report: { may: ['core'] },
  simulate: { may: ['core', 'cache', 'plan', 'trace', 'router', 'report'] },
  replay: { may: ['core', 'trace', 'simulate', 'report', 'backend/remote/usage.ts'] },
  client: { may: [] },
  'serve.ts': {
    may: ['core', 'session', 'prompt', 'cache/chain.ts', 'router', 'quick', 'serve-messages.ts'],
    contracts: true,
  },
  'serve-messages.ts': { may: ['core', 'session', 'prompt'], contracts: true },
  'serve-fleet.ts': { may: ['core', 'router', 'serve-member.ts', 'serve-hedge.ts'], contracts: true },
  'serve-hedge.ts': { may: ['core', 'serve-member.ts'], contracts: true },
  'serve-quick.ts': { may: ['core', 'quick'], contracts: true },
  'serve-beside.ts': { may: ['core', 'quick', 'serve-quick.ts'], contracts: true },
  'serve-member.ts': { may: ['core', 'router'], contracts: true },
}

/** They join concrete parts and may import everything: the main thread's root, the worker thread's, the CLI. */
const ROOTS = [
  'compose.ts',
  'compose-embedded.ts',
  'compose-fleet.ts',
  'compose-knowledge.ts',
  'compose-path.ts',
  'compose-members.ts',
  'compose-sharing.ts',
  'compose-cluster.ts',
  'compose-warm-up.ts',
  'compose-sessions.ts',
  'compose-tokenizer.ts',
  'provider.ts',
  'worker.ts',
  'main.ts',
]

function layerComplaint(from: string, { target, typeOnly }: Import): string | undefined {
  const here = roomOf(from)
  const there = roomOf(target)
  if (here === there || here === 'testing') return undefined
  if (there === 'testing') return `${from} imports ${target}: only tests and bench/ may import testing/`
  if (ROOTS.includes(here)) return undefined
  if (ROOTS.includes(there))
    return `${from} imports ${target}: nothing imports a composition root; pass the part as an argument`
  // The schema of the config is made from the kinds' own schemas, wherever they are.
  if (here === 'config.ts' || here === 'config-schema.ts') return undefined
  const room = ROOMS[here]
  if (room === undefined)
    return `${from}: no rule for '${here}'; give it a row in ROOMS (src/layers.test.ts) and in the house's table`
  const covers = (entry: string) => entry === there || entry === target
  if (room.may.some(covers) || (room.contracts && isContract(target))) return undefined
  if (room.types?.some(covers))
    return typeOnly ? undefined : `${from} imports ${target}: write 'import type', ${here} takes only types from it`
  const allowed = [
    ...room.may,
    ...(room.types ?? []).map((name) => `${name} (types)`),
    ...(room.contracts ? ['contracts'] : []),
  ]
  return `${from} imports ${target}: ${here} may import ${allowed.join(', ') || 'nothing'}; take it as an argument from compose.ts, or move what is shared to core/`
}

// --- vendors ---------------------------------------------------------------------------------------------------------

const DOORS: Readonly<Record<string, RegExp>> = {
  fastify: /^api\//,
  'onnxruntime-node': /^engine\/runner(\.ts$|\/)/,
  '@huggingface/tokenizers': /^prompt\//,
  '@huggingface/jinja': /^prompt\//,
  '@mlc-ai/web-xgrammar': /^engine\/grammar[^/]*\.ts$/,
  '@huggingface/gguf': /^model\//,
  pino: /^telemetry\/log\.ts$/,
  'prom-client': /^telemetry\/metrics\.ts$/,
  '@opentelemetry/api': /^telemetry\/trace\.ts$/,
  '@opentelemetry/exporter-trace-otlp-http': /^telemetry\/trace\.ts$/,
  '@opentelemetry/resources': /^telemetry\/trace\.ts$/,
  '@opentelemetry/sdk-trace-base': /^telemetry\/trace\.ts$/,
  commander: /^main\.ts$/,
  undici: /^backend\/remote\//,
  zeromq: /^backend\/kv-events\//,
  libsql: /^session\/log\/sqlite-database\.ts$/,
  iovalkey: /^router\/shared\.ts$/,
}

/** Whether `text` reads the environment; to speak of it in a comment or a string is not to read it. */
function readsEnvironment({ text, imports }: Pick<Source, 'text' | 'imports'>): boolean {
  const code = text.replace(/\/\*[\s\S]*?\*\/|\/\/.*$|'[^'\n]*'/gm, '')
  return /\bprocess\.env\b/.test(code) || imports.some(({ target }) => target === 'node:process')
}

// --- cycles ----------------------------------------------------------------------------------------------------------

/** The first cycle of value imports that is found from each file, as a path that ends where it began. */
function cycles(files: readonly Source[]): string[] {
  const byPath = new Map(files.map((file) => [file.path, file]))
  const done = new Set<string>()
  const found: string[] = []
  const walk = (path: string, trail: readonly string[]) => {
    if (trail.includes(path)) found.push([...trail.slice(trail.indexOf(path)), path].join(' -> '))
    if (done.has(path) || trail.includes(path)) return
    for (const { own, typeOnly, target } of byPath.get(path)?.imports ?? []) {
      if (own && !typeOnly) walk(target, [...trail, path])
    }
    done.add(path)
  }
  for (const { path } of files) walk(path, [])
  return found
}

// --- the rules -------------------------------------------------------------------------------------------------------

describe('the sources', () => {
  test('there are some, and their imports are seen', () => {
    expect(sources.length).toBeGreaterThan(10)
    expect(production.flatMap((file) => file.imports).length).toBeGreaterThan(10)
  })

  test('import only what their folder may', () => {
    const complaints = production.flatMap((file) =>
      file.imports.filter(({ own }) => own).map((entry) => layerComplaint(file.path, entry)),
    )
    expect(complaints.filter((complaint) => complaint !== undefined)).toEqual([])
  })

  test('reach a vendor through its one door', () => {
    const complaints = production.flatMap(({ path, imports }) =>
      imports
        .filter(({ target }) => DOORS[target] !== undefined && !DOORS[target].test(path) && roomOf(path) !== 'testing')
        .map(
          ({ target }) => `${path} imports ${target}: only ${DOORS[target]!.source} may; go through what that exports`,
        ),
    )
    expect(complaints).toEqual([])
  })

  test('read the environment in config.ts alone', () => {
    const readers = production.filter((file) => file.path !== 'config.ts' && readsEnvironment(file))
    expect(readers.map(({ path }) => `${path} reads process.env: take the value from the config`)).toEqual([])
  })

  test('have no import cycle (import type does not count)', () => {
    expect(cycles(production).map((path) => `${path}: move what both need to a file of its own`)).toEqual([])
  })

  test('open with a comment that says what they are', () => {
    const bare = production.filter(({ text }) => !/^(#!.*\n)?(\/\/|\/\*)/.test(text))
    expect(bare.map(({ path }) => `${path}: open with two to six lines: what it is, its invariant, its place`)).toEqual(
      [],
    )
  })

  test('have at most 500 lines', () => {
    const pages = readdirSync(SRC, { recursive: true, encoding: 'utf8' }).filter((path) => /\.(css|js)$/.test(path))
    const all = [...sources, ...pages.map((path) => ({ path, text: readFileSync(join(SRC, path), 'utf8') }))]
    const long = all.filter(({ text }) => text.split('\n').length > 501)
    expect(long.map(({ path }) => `${path}: over 500 lines; split it by noun`)).toEqual([])
  })
})

describe('the scan', () => {
  const seen = (text: string) => importsOf('cache/tier/disk.ts', text).map(({ target, typeOnly }) => [target, typeOnly])

  test('sees every form of import', () => {
    expect(seen("import { a,\n  type B } from '../lease.js'\nimport type { C } from '../../core/block.js'")).toEqual([
      ['cache/lease.ts', false],
      ['core/block.ts', true],
    ])
    expect(seen("export { x as 'y-z' } from './x.js'\nexport * from './z.js'\nimport 'fastify'")).toEqual([
      ['cache/tier/x.ts', false],
      ['cache/tier/z.ts', false],
      ['fastify', false],
    ])
    expect(seen("const { a } = await import('./a.js')\nlet b: import('@huggingface/gguf/x').Type")).toEqual([
      ['cache/tier/a.ts', false],
      ['@huggingface/gguf', true],
    ])
  })

  test('does not take comments for imports, and a value import outweighs a type one', () => {
    expect(seen("// import { a } from './a.js'\n//   import('./b.js')")).toEqual([])
    expect(seen("import type { A } from './a.js'\nimport { a } from './a.js'")).toEqual([['cache/tier/a.ts', false]])
  })

  test.each([
    ['core/block.ts', 'native/index.ts', false, /core may import nothing/],
    ['engine/engine.ts', 'prompt/contract.ts', false, /write 'import type'/],
    ['cache/kv-cache.ts', 'testing/clock.ts', true, /only tests and bench/],
    ['api/server.ts', 'compose.ts', false, /composition root/],
    ['api/server.ts', 'cache/ladder.ts', true, /api may import core, contracts/],
    ['attic/box.ts', 'core/block.ts', true, /no rule for 'attic'/],
  ])('complains when %s imports %s', (from, target, typeOnly, complaint) => {
    expect(layerComplaint(from, { target, own: true, typeOnly })).toMatch(complaint)
  })

  test.each([
    ['engine/engine.ts', 'prompt/contract.ts', true],
    ['router/router.ts', 'backend/backend.ts', true],
    ['api/server.ts', 'backend/backend.ts', false],
    ['serve.ts', 'cache/chain.ts', false],
    ['worker.ts', 'engine/runner.ts', false],
    ['cache/tier/disk.ts', 'cache/lease.ts', false],
  ])('has no complaint when %s imports %s', (from, target, typeOnly) => {
    expect(layerComplaint(from, { target, own: true, typeOnly })).toBeUndefined()
  })

  test('finds a cycle, but not one of types', () => {
    const file = (path: string, target: string, typeOnly: boolean) => ({
      path,
      text: '',
      imports: [{ target, own: true, typeOnly }],
    })
    expect(cycles([file('a.ts', 'b.ts', false), file('b.ts', 'a.ts', false)])).toEqual(['a.ts -> b.ts -> a.ts'])
    expect(cycles([file('a.ts', 'b.ts', false), file('b.ts', 'a.ts', true)])).toEqual([])
  })

  test('nobody joins signals with AbortSignal.any, which keeps its listeners for good', () => {
    const users = production.filter(({ text }) => /^(?!\s*(?:\/\/|\*)).*AbortSignal\.any\(/m.test(text))
    expect(users.map(({ path }) => `${path}: use linkAbort of core/linked-abort.ts`)).toEqual([])
  })

  test('tells reading the environment from speaking of it', () => {
    const reads = (text: string) => readsEnvironment({ text, imports: importsOf('api/server.ts', text) })
    expect(reads("join('a', process.env.HOME)")).toBe(true)
    expect(reads("import { env } from 'node:process'")).toBe(true)
    expect(reads("// process.env is read in config.ts\nsay('process.env')")).toBe(false)
  })
})
