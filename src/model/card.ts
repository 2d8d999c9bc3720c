// Model cards: models/*.yaml in the package, and in a folder of the operator's that wins over it. A card is checked
// against its schema before anything is done with it; an unknown key is refused with its path. Pulling takes a card.

import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type TSchema, Type } from 'typebox'
import { Value } from 'typebox/value'
import { parse } from 'yaml'
import type { ModelCard } from './contract.js'
import { ModelError } from './model-error.js'

/**
 * A card as it stands in a file. Without `sha256` the weights cannot be verified, and pulling them needs an explicit
 * word of trust; `bytes` may be absent with it.
 */
export type Card = Omit<ModelCard, 'sha256' | 'bytes'> & { readonly sha256?: string; readonly bytes?: number }

const strict = { additionalProperties: false }

/** Names are file names and URL parts. */
const NAME = '^[a-z0-9][a-z0-9._-]*$'

const SOURCES: Readonly<Record<string, TSchema>> = {
  file: Type.Object({ kind: Type.Literal('file'), path: Type.String({ minLength: 1 }) }, strict),
  pip: Type.Object(
    {
      kind: Type.Literal('pip'),
      // What a requirement may be made of, so that neither field can become an option of pip's.
      package: Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._-]*$' }),
      version: Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9.!+_-]*$' }),
      member: Type.String({ minLength: 1 }),
    },
    strict,
  ),
  url: Type.Object({ kind: Type.Literal('url'), url: Type.String({ pattern: '^https?://' }) }, strict),
}

const QUICK_TASK = Type.Object(
  {
    token: Type.Optional(Type.String({ minLength: 1 })),
    at: Type.Optional(Type.Enum(['user', 'reply', 'header'])),
    before: Type.Optional(Type.String()),
    instruction: Type.Optional(Type.String({ minLength: 1 })),
    choices: Type.Optional(Type.Array(Type.String({ minLength: 1 }), { minItems: 2 })),
    maxTokens: Type.Optional(Type.Integer({ minimum: 1 })),
  },
  strict,
)

const QUICK_TASKS = ['action', 'title', 'query', 'authority', 'domain', 'read_url'] as const

const CARD = Type.Object(
  {
    name: Type.String({ pattern: NAME, maxLength: 100 }),
    description: Type.String(),
    license: Type.String(),
    // Each is checked against the schema of its own kind, which gives better messages than a union.
    sources: Type.Array(Type.Unknown(), { minItems: 1 }),
    sha256: Type.Optional(Type.String({ pattern: '^[0-9a-f]{64}$' })),
    bytes: Type.Optional(Type.Integer({ minimum: 1 })),
    contextLength: Type.Integer({ minimum: 1 }),
    template: Type.Optional(Type.String({ minLength: 1 })),
    toolFallback: Type.Optional(Type.Enum(['hermes'])),
    quick: Type.Optional(
      Type.Object(Object.fromEntries(QUICK_TASKS.map((task) => [task, Type.Optional(QUICK_TASK)])), strict),
    ),
    // Whoever opens the model knows what it may say.
    lifecycle: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    formats: Type.Object(
      {
        // Names of kinds; whoever opens the model knows which there are.
        toolCalls: Type.String({ pattern: NAME, maxLength: 100 }),
        reasoning: Type.String({ pattern: NAME, maxLength: 100 }),
        retention: Type.Optional(Type.String({ pattern: NAME, maxLength: 100 })),
        strictReasoning: Type.Optional(Type.Boolean()),
      },
      strict,
    ),
  },
  strict,
)

/** The card in the YAML text of the file `path`. @throws ModelError `bad-card`, with one detail per thing that is wrong. */
export function parseCard(text: string, path: string): Card {
  let data: unknown
  try {
    data = parse(text)
  } catch (error) {
    throw new ModelError('bad-card', `${path}: it is not YAML: ${(error as Error).message}`, { cause: error })
  }
  const faults = faultsOf(CARD, data, '')
  if (faults.length === 0) {
    for (const [index, source] of (data as Card).sources.entries()) faults.push(...sourceFaults(source, index))
  }
  if (faults.length > 0) throw new ModelError('bad-card', `${path}: ${faults[0]}`, { details: faults })
  const card = data as Card
  if (card.name !== basename(path, '.yaml')) {
    throw new ModelError('bad-card', `${path}: name is '${card.name}', but the file is called ${basename(path)}`)
  }
  return card
}

/**
 * The card called `name`, from the first of `folders` that has it.
 * @throws ModelError `unknown-card` with the names that there are, or `bad-card`.
 */
export async function loadCard(name: string, folders: readonly string[] = [packageModels()]): Promise<Card> {
  if (new RegExp(NAME).test(name)) {
    for (const folder of folders) {
      const path = join(folder, `${name}.yaml`)
      if (existsSync(path)) return parseCard(await readFile(path, 'utf8'), path)
    }
  }
  const known = await cardNames(folders)
  throw new ModelError('unknown-card', `no model is called '${name}'; known are ${known.join(', ') || 'none'}`)
}

/** Names of all cards in `folders`, sorted; a folder that is not there has none. */
export async function cardNames(folders: readonly string[] = [packageModels()]): Promise<string[]> {
  const names = new Set<string>()
  for (const folder of folders) {
    if (!existsSync(folder)) continue
    for (const file of await readdir(folder)) if (file.endsWith('.yaml')) names.add(basename(file, '.yaml'))
  }
  return [...names].sort()
}

/** The package's own models/ folder, wherever the code was built to. */
export function packageModels(): string {
  let folder = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(folder, 'package.json'))) {
    if (dirname(folder) === folder) throw new Error('the package folder is not above this file')
    folder = dirname(folder)
  }
  return join(folder, 'models')
}

function sourceFaults(source: unknown, index: number): string[] {
  const path = `sources[${index}]`
  const kind = typeof source === 'object' && source !== null && 'kind' in source ? source.kind : undefined
  if (typeof kind === 'string' && Object.hasOwn(SOURCES, kind)) return faultsOf(SOURCES[kind]!, source, path)
  return [`${path}.kind: must be one of ${Object.keys(SOURCES).join(', ')}`]
}

/** Sentences that say where `value` leaves `schema`; `root` is the path of `value` itself. */
function faultsOf(schema: TSchema, value: unknown, root: string): string[] {
  const faults: string[] = []
  for (const { keyword, instancePath, params, message } of Value.Errors(schema, value)) {
    const at = pathOf(root, instancePath)
    // A refused key is reported at its parent too; the report at the key itself has its path.
    if (keyword === 'additionalProperties') continue
    if (keyword === 'boolean') faults.push(`${at}: unknown key`)
    else if (keyword === 'required') {
      for (const name of params.requiredProperties) faults.push(`${pathOf(at, `/${name}`)}: is missing`)
    } else if (keyword === 'enum') faults.push(`${at}: must be one of ${params.allowedValues.join(', ')}`)
    else faults.push(`${at || 'the card'}: ${message}`)
  }
  return faults
}

/** `/sources/0/url` below `root` as `root.sources[0].url`. */
function pathOf(root: string, pointer: string): string {
  const parts = pointer.split('/').slice(1)
  const path = parts.map((part) => (/^\d+$/.test(part) ? `[${part}]` : `.${part}`)).join('')
  return root === '' ? path.replace(/^\./, '') : root + path
}
