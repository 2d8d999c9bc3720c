// The part of the composition root that opens a model in process: card -> weights -> import -> tokenizer, template and
// engine worker. Long steps (pull, import) report how far they are; each is skipped when its result is there already.

import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { Backend } from './backend/backend.js'
import { createEmbeddedBackend } from './backend/embedded.js'
import type { CacheSetup } from './backend/embedded-protocol.js'
import type { RootParts } from './cache/chain.js'
import { type Config, ConfigError } from './config.js'
import type { KvLayout } from './core/block.js'
import { kindNamed } from './core/kind.js'
import { note } from './core/signals.js'
import { type Card, loadCard, packageModels } from './model/card.js'
import type { ModelManifest } from './model/contract.js'
import { importGguf } from './model/import.js'
import { type PullProgress, pull } from './model/pull.js'
import type { ChatTemplate, ModelFormats, Tokenizer } from './prompt/contract.js'
import { buildTokenizerJson, tokenizerTraits } from './prompt/gguf-tokenizer.js'
import * as reasoningFormats from './prompt/reasoning/index.js'
import * as retentions from './prompt/retention/index.js'
import { createTemplate } from './prompt/template.js'
import { createTokenizer } from './prompt/tokenizer.js'
import * as toolCallFormats from './prompt/tool-calls/index.js'
import { arithmeticOf, chooseProvider } from './provider.js'
import { catalogueOf, type QuickCatalogue } from './quick/catalogue.js'
import type { ModelParts } from './serve.js'
import { parseLifecycle } from './session/compaction/lifecycle.js'

/** What long work says of itself. */
export interface OpenProgress {
  pull?(progress: PullProgress): void
  import?(phase: 'digest' | 'weights', doneBytes: number, totalBytes: number): void
}

/** A model with everything but where its chains start, which compose.ts adds. */
export interface OpenedModel {
  readonly model: Omit<ModelParts, 'root'>
  readonly root: Omit<RootParts, 'tenantSalt' | 'cacheSalt'>
  /** The card's section of that name. */
  readonly lifecycle: unknown
  /** Name of its rule of retention. */
  readonly retention: string
  readonly backend: Backend
}

/** Segments of chats that the tokenizer remembers: a turn pays for its new text only. */
const TOKENIZER_MEMO_BYTES = 64 * 1024 * 1024

/** @throws ConfigError, ModelError or Error with a sentence that says what to do. */
export async function openEmbedded(config: Config, progress: OpenProgress = {}): Promise<OpenedModel> {
  const { path, card } = await findWeights(config, progress)
  const { kv } = config.cache
  const tokenizerExport = { build: buildTokenizerJson, traits: tokenizerTraits }
  const onProgress = progress.import
  const { directory, manifest } = await importGguf(path, {
    dataDir: config.dataDir,
    kv,
    tokenizer: tokenizerExport,
    ...(onProgress && { onProgress }),
  })
  const tokenizer = await openTokenizer(directory, manifest)
  const { layers, kvHeads, headDim, weightsDigest, tokenizerDigest } = manifest
  const layout: KvLayout = { layers, kvHeads, headDim, dtype: kv }
  const contextLength = windowOf(config, card, manifest)
  const template = openTemplate(card, manifest, tokenizer)
  const formats = card === undefined ? NO_FORMATS : formatsOf(card.formats)
  const catalogue = quickOf(card, tokenizer)
  const name = card?.name ?? basename(path).replace(/\.gguf$/i, '')
  const { threads, maxRunning, workingSetBytes, kernels, quick } = config.engine
  const { provider, because } = chooseProvider(config.engine, manifest)
  const arithmetic = arithmeticOf(provider)
  note.publish({ level: 'info', text: `engine: ${provider} (${because})` })
  const { queuedRequests, queueMs, sideRequestMs } = config.limits
  const backend = await createEmbeddedBackend({
    name: 'embedded',
    model: name,
    workerUrl: new URL('./worker.js', import.meta.url),
    setup: {
      modelDirectory: directory,
      layout,
      contextLength,
      engine: { threads, provider, maxRunning, workingSetBytes, kernels, trees: quick },
      cache: cacheSetup(config),
      limits: { queuedRequests, queueMs, sideRequestMs },
      ...(config.events.publish !== undefined && { tellsBlocks: true }),
    },
  })
  return {
    backend,
    lifecycle: card?.lifecycle,
    retention: card?.formats.retention ?? 'as-sent',
    root: { weightsDigest, tokenizerDigest, layout, rounding: kv === 'fp16' ? 'fp16' : 'none', arithmetic },
    model: {
      name,
      contextLength,
      created: Math.floor(Date.now() / 1000),
      formats,
      visibleSpecials: formats.specials.flatMap((spelling) => tokenizer.specialId(spelling) ?? []),
      quick: catalogue,
      tokenizer,
      template,
    },
  }
}

/** The weights of `config.model.name`: the path of a GGUF file as it is, or what its card names, pulled when absent. */
export async function findWeights(
  config: Pick<Config, 'model' | 'dataDir'>,
  progress: OpenProgress = {},
): Promise<{ path: string; card: Card | undefined }> {
  const { name, directory } = config.model
  if (/\.gguf$/i.test(name)) {
    if (!existsSync(name)) throw new ConfigError(`model.name: there is no file '${name}'`)
    return { path: name, card: undefined }
  }
  const card = await loadCard(name, [join(config.dataDir, 'cards'), packageModels()])
  checkFormats(card)
  const onProgress = progress.pull
  const path = await pull(card, { directory, localDirectory: config.dataDir, ...(onProgress && { onProgress }) })
  return { path, card }
}

async function openTokenizer(directory: string, manifest: ModelManifest): Promise<Tokenizer> {
  const { bosTokenId, addBos, eosTokenIds } = manifest
  const json = await readFile(join(directory, 'tokenizer.json'), 'utf8')
  const workerUrl = new URL('./prompt/tokenizer-worker.js', import.meta.url)
  return createTokenizer(json, { bosTokenId, addBos, eosTokenIds, memoBytes: TOKENIZER_MEMO_BYTES, workerUrl })
}

/** The configured window, no longer than the card and the file say that the model was trained for. */
function windowOf(config: Config, card: Card | undefined, manifest: ModelManifest): number {
  const own = Math.min(card?.contextLength ?? manifest.contextLength, manifest.contextLength)
  const asked = config.model.contextLength
  if (asked === undefined) return own
  if (asked > own) throw new ConfigError(`model.contextLength is ${asked}, but the model has a window of ${own} tokens`)
  return asked
}

function openTemplate(card: Card | undefined, manifest: ModelManifest, tokenizer: Tokenizer): ChatTemplate {
  const source = card?.template ?? manifest.template
  const [eos] = manifest.eosTokenIds
  return createTemplate(source ?? "{{ raise_exception('this model has no chat template: use /v1/completions') }}", {
    bosToken: manifest.bosTokenId === undefined ? '' : tokenizer.spellingOf(manifest.bosTokenId),
    eosToken: eos === undefined ? '' : tokenizer.spellingOf(eos),
    toolFallback: card?.toolFallback,
    dateNow: () => new Date(),
  })
}

const NO_FORMATS: ModelFormats = { specials: [] }

/**
 * A card's formats as the path of a request takes them.
 * @throws Error that lists the known names where one is unknown.
 */
export function formatsOf(names: Card['formats']): ModelFormats {
  const { toolCalls, reasoning, retention, strictReasoning } = names
  const calls = kindNamed(toolCallFormats, toolCalls, 'formats.toolCalls')
  const thoughts = kindNamed(reasoningFormats, reasoning, 'formats.reasoning')
  const { opening, ending, answerStart } = thoughts
  return {
    specials: [...new Set([...calls.specials, ...thoughts.specials])],
    retention: kindNamed(retentions, retention ?? 'as-sent', 'formats.retention'),
    ...(strictReasoning === true && { strictReasoning }),
    ...(toolCalls !== 'none' && {
      toolCalls: (tools) => calls.create({}, { tools }),
      callStructure: calls.calls,
      callTrigger: calls.trigger,
    }),
    ...(reasoning !== 'none' && {
      reasoning: (prompt) => thoughts.create({}, { prompt }),
      reasoningPlace: (prompt) => thoughts.begins(prompt),
    }),
    ...(opening !== undefined && { reasoningStart: opening }),
    ...(ending !== undefined && { reasoningEnd: ending }),
    ...(answerStart !== undefined && { answerStart }),
  }
}

/** How quick instructions are asked. @throws ConfigError where the card names a token that the model has not. */
function quickOf(card: Card | undefined, tokenizer: Tokenizer): QuickCatalogue {
  const catalogue = catalogueOf(card?.quick)
  for (const [task, { native }] of Object.entries(catalogue)) {
    if (native === undefined || tokenizer.specialId(native.token) !== undefined) continue
    const text = `quick.${task}.token: the model has no special token '${native.token}'`
    throw new ConfigError(`the card of '${card?.name}': ${text}`)
  }
  return catalogue
}

/** Before anything is pulled. @throws ConfigError that lists the known names where one is unknown. */
function checkFormats(card: Card): void {
  try {
    formatsOf(card.formats)
    catalogueOf(card.quick)
    parseLifecycle(card.lifecycle)
  } catch (error) {
    throw new ConfigError(`the card of '${card.name}': ${(error as Error).message}`, { cause: error })
  }
}

function cacheSetup(config: Config): CacheSetup {
  const { enabled, memoryBytes, diskBytes, evictor, restore, pinnedShare, idleMs } = config.cache
  const disk = diskBytes > 0 && { disk: { folder: join(config.dataDir, 'blocks'), capacityBytes: diskBytes } }
  return { enabled, memoryBytes, evictor, restore, pinnedShare, ...(idleMs > 0 && { idleMs }), ...(disk && disk) }
}
