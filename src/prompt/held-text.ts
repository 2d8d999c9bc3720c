// What a streaming parser may not release yet: the end of a text that could be the start of a tag.

/** Length of the longest end of `text` that is a proper start of one of `tags`. */
export function partialTag(text: string, tags: readonly string[]): number {
  const most = Math.min(
    text.length,
    tags.reduce((length, tag) => Math.max(length, tag.length - 1), 0),
  )
  for (let length = most; length > 0; length--) {
    const tail = text.slice(text.length - length)
    if (tags.some((tag) => tag.length > length && tag.startsWith(tail))) return length
  }
  return 0
}
