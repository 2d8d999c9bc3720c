// Server-sent events, as far as answers use them: `data:` lines, the rest is passed over. Invariant: it makes no difference
// where the bytes are cut, within a character either. https://html.spec.whatwg.org/multipage/server-sent-events.html

/** The data of each event. */
export async function* dataOf(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<string, void> {
  const decoder = new TextDecoder()
  let rest = ''
  for await (const piece of bytes) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) {
      if (line.startsWith('data:')) yield line.slice(5).trim()
    }
  }
}
