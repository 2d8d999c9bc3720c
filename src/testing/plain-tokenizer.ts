// A tokenizer for tests of the engine: an id is a Unicode letter, the last id ends the text. No merges, no bytes.

import type { Tokenizer } from '../prompt/contract.js'

/** Ids 0 .. vocabSize - 2 are the characters from U+0100 on; vocabSize - 1 is the end. */
export function createPlainTokenizer(vocabSize: number): Tokenizer {
  const end = vocabSize - 1
  const spellingOf = (id: number) => (id === end ? '<end>' : String.fromCodePoint(0x100 + id))
  return {
    vocabSize,
    eosTokenIds: [end],
    encode: (text) => Int32Array.from([...text], (letter) => (letter.codePointAt(0) as number) - 0x100),
    decode: (ids) =>
      Array.from(ids)
        .filter((id) => id !== end)
        .map(spellingOf)
        .join(''),
    bytesOf: (id) => (id === end ? new Uint8Array(0) : new TextEncoder().encode(spellingOf(id))),
    spellingOf,
    specialId: () => undefined,
    isSpecial: (id) => id === end,
    stream: () => ({ push: (id) => (id === end ? '' : spellingOf(id)), end: () => '' }),
  }
}
