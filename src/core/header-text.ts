// What HTTP lets stand in a header, for whoever reads one or passes one on. Invariant: a value that fits cannot end its
// line, and a name that is given here means the same whoever wrote it, in whatever case.

const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/
const NAME = /^[!#$%&'*+.^_`|~\w-]+$/

export function isHeaderValue(text: string): boolean {
  return VALUE.test(text)
}

/** Names as they were met: few are ever seen. */
const names = new Map<string, string>()
const MOST_NAMES = 1024

/** In lower case; undefined: it is no name; '': every object has it, so that what was sent under it cannot be told. */
export function headerName(written: string): string | undefined {
  let name = names.get(written)
  if (name === undefined) {
    if (!NAME.test(written)) return undefined
    name = written.toLowerCase()
    if (name in Object.prototype) name = ''
    if (names.size < MOST_NAMES) names.set(written, name)
  }
  return name
}
