// Copies of texts that are kept longer than the text they were cut from. V8 makes a long slice a view of the whole, so a
// remembered word would keep a request's body alive.

// V8 copies slices below this length anyway.
const SLICE_UNITS = 13

/** A copy that does not keep alive the text that `text` is a slice of. */
export function ownCopy(text: string): string {
  return text.length < SLICE_UNITS ? text : (JSON.parse(JSON.stringify(text)) as string)
}
