// A shape from a Hugging Face config.json: the file that every model is published with. Invariant: what is not understood
// is refused with its name, never guessed; what has to be assumed is said in the shape's note.

import { UsageError } from '../core/usage-error.js'
import type { DataType, Layer } from './layer.js'
import type { KvShape } from './shape.js'

type Config = Readonly<Record<string, unknown>>
type Counted = Layer & { readonly count: number }

const DTYPES: Readonly<Record<string, DataType>> = { float32: 'fp32', bfloat16: 'bf16', float16: 'fp16' }

/** @throws UsageError naming the key of `config` that is missing or not understood. */
export function shapeOfConfig(whole: Config, path: string): KvShape {
  // Models that see or hear keep the language part apart.
  const config = (typeof whole['text_config'] === 'object' ? whole['text_config'] : whole) as Config
  const read = reader(config, path)
  const count = read('num_hidden_layers')
  const layers = grouped(Array.from({ length: count }, (_, i) => layerAt(i, config, { read, path })))
  const contextLength = config['max_position_embeddings']
  const dtype = DTYPES[String(config['torch_dtype'] ?? config['dtype'] ?? 'bfloat16')] ?? 'bf16'
  return {
    name: String(whole['_name_or_path'] || whole['model_type'] || path),
    note: `From ${path}; KV in ${dtype} unless you say otherwise.`,
    ...(typeof contextLength === 'number' && { contextLength }),
    dtype,
    layers,
  }
}

type Read = (key: string, otherwise?: number) => number

function reader(config: Config, path: string): Read {
  return (key, otherwise) => {
    const value = config[key] ?? otherwise
    if (typeof value === 'number' && Number.isInteger(value) && value > 0) return value
    throw new UsageError(`${path}: '${key}' must be a whole number above 0, it is ${JSON.stringify(value)}`)
  }
}

interface Source {
  readonly read: Read
  readonly path: string
}

function layerAt(i: number, config: Config, { read, path }: Source): Layer {
  const ratios = config['compress_ratios']
  if (Array.isArray(ratios)) return compressed(Number(ratios[i]), read)
  const types = config['layer_types']
  const type = Array.isArray(types) ? String(types[i]) : typeByRule(i, config)
  if (type === 'full_attention') return config['kv_lora_rank'] == null ? heads(read) : latent(config, read)
  if (type === 'sliding_attention' && typeof config['compress_rates'] === 'object') return compressed(0, read)
  if (type === 'sliding_attention') return { ...heads(read), kind: 'sliding', window: read('sliding_window') }
  if (type === 'linear_attention') return { kind: 'state', stateBytes: deltaState(read) }
  const rates = config['compress_rates'] as Config | undefined
  if (rates?.[type] !== undefined) return compressed(Number(rates[type]), read)
  throw new UsageError(`${path}: layers of type '${type}' are not known; describe the model in a YAML shape instead`)
}

/** What older configs say by rules. */
function typeByRule(i: number, config: Config): string {
  const interval = config['full_attention_interval']
  if (typeof interval === 'number') return (i + 1) % interval === 0 ? 'full_attention' : 'linear_attention'
  if (config['sliding_window'] == null || config['use_sliding_window'] === false) return 'full_attention'
  const pattern = config['sliding_window_pattern']
  return typeof pattern === 'number' && (i + 1) % pattern === 0 ? 'full_attention' : 'sliding_attention'
}

function heads(read: Read): Extract<Layer, { kind: 'full' }> {
  const all = read('num_attention_heads')
  return {
    kind: 'full',
    kvHeads: read('num_key_value_heads', all),
    headDim: read('head_dim', read('hidden_size', 1) / all),
  }
}

function latent(config: Config, read: Read): Layer {
  const dim = read('kv_lora_rank') + read('qk_rope_head_dim')
  return { kind: 'latent', dim, ...(config['index_head_dim'] != null && { index: { dim: read('index_head_dim') } }) }
}

/** A ratio of 0 or 1 keeps the window alone; only the fine ratio has an index. */
function compressed(ratio: number, read: Read): Layer {
  const layer = { kind: 'compressed', window: read('sliding_window', 128), dim: read('head_dim') } as const
  if (!(ratio > 1)) return layer
  return { ...layer, ratio, ...(ratio < 128 && { index: { dim: read('index_head_dim') } }) }
}

/** Gated delta nets: a matrix a head in fp32, and the last inputs of the convolution in 16 bits. */
function deltaState(read: Read): number {
  const keyDim = read('linear_key_head_dim')
  const values = read('linear_num_value_heads') * read('linear_value_head_dim')
  const inputs = 2 * read('linear_num_key_heads') * keyDim + values
  return 4 * values * keyDim + 2 * inputs * (read('linear_conv_kernel_dim') - 1)
}

/** Equal layers counted together. */
function grouped(layers: readonly Layer[]): Counted[] {
  const groups = new Map<string, Counted>()
  for (const layer of layers) {
    const key = JSON.stringify(layer)
    groups.set(key, { ...layer, count: (groups.get(key)?.count ?? 0) + 1 })
  }
  return [...groups.values()]
}
