// One source cannot give the weights. The next one is tried; when none is left, the sentences are said together.

/** `message` says what happened, without the source's name: that is put in front. */
export class SourceFailure extends Error {
  readonly wrongDigest: boolean

  constructor(message: string, more: { wrongDigest?: boolean; cause?: unknown } = {}) {
    super(message, { cause: more.cause })
    this.name = 'SourceFailure'
    this.wrongDigest = more.wrongDigest ?? false
  }
}
