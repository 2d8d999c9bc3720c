// What a streaming parser may not release yet: the end of a text that could be the start of a tag.

/** Length of the longest end of `text` that is a proper start of one of `tags`. */
export function partialTag(text: string, tags: readonly string[]): number {
  let longest = 0
  for (const tag of tags) {
    for (let length = Math.min(tag.length - 1, text.length); length > longest; length--) {
      if (text.endsWith(tag.slice(0, length))) longest = length
    }
  }
  return longest
}
