// What is wrong with a card, a model file or a source, said so that an operator can act on it. These happen at import,
// pull and boot, before any client is there: the command line prints the sentence alone, without a stack.

export type ModelFault =
  /** The file is not GGUF, is cut off, or contradicts itself. */
  | 'bad-file'
  /** The file is sound, but holds something that cannot be run exactly. */
  | 'unsupported'
  /** The card does not follow its schema. */
  | 'bad-card'
  | 'unknown-card'
  /** The card has no sha256 and nobody said to trust what comes. */
  | 'unpinned'
  /** What came is not what the card promises. */
  | 'wrong-digest'
  /** The folder of weights cannot be written, or is full. */
  | 'unwritable'
  /** No source gave the weights. */
  | 'unreachable'

/** `details` are further sentences, one per thing that was tried or found. */
export class ModelError extends Error {
  readonly fault: ModelFault
  readonly details: readonly string[]

  constructor(fault: ModelFault, message: string, more: { details?: readonly string[]; cause?: unknown } = {}) {
    super(message, { cause: more.cause })
    this.name = 'ModelError'
    this.fault = fault
    this.details = more.details ?? []
  }
}
