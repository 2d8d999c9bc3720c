// How many tokens a byte of a model's prompts is. It differs by language and tokenizer; backends tell it with every
// answer. Invariant: an estimate stays within what any tokenizer gives, whatever one backend says.

/** Before anything was observed. */
const RATIO = 0.25
/** How much one more answer counts. */
const WEIGHT = 0.1
const LEAST = 0.02
const MOST = 1
/** Shorter prompts are mostly template. */
const SHORT_TOKENS = 256

export class TokenRatios {
  readonly #ratios = new Map<string, number>()

  /** Tokens of a byte. */
  of(model: string): number {
    return this.#ratios.get(model) ?? RATIO
  }

  /** A prompt of `model` that was estimated at `estimatedTokens` had `promptTokens`. */
  learn(model: string, estimatedTokens: number, promptTokens: number): void {
    if (estimatedTokens < SHORT_TOKENS) return
    const now = this.of(model)
    const seen = (promptTokens / estimatedTokens) * now
    this.#ratios.set(model, now + WEIGHT * (Math.min(MOST, Math.max(LEAST, seen)) - now))
  }
}
