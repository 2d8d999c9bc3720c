// Names with `*` in them, as clients narrow what may be called: `browser_*`. Invariant: linear in pattern times name, and
// a pattern without `*` is that very name.

/** Whether `name` fits `pattern`, in which `*` stands for any run of characters and nothing else is special. */
export function matchesPattern(pattern: string, name: string): boolean {
  const [head = '', ...rest] = pattern.split('*')
  if (rest.length === 0) return pattern === name
  if (!name.startsWith(head)) return false
  const tail = rest.pop() as string
  let at = head.length
  for (const part of rest) {
    const found = name.indexOf(part, at)
    if (found < 0) return false
    at = found + part.length
  }
  return name.length - tail.length >= at && name.endsWith(tail)
}

export function isPattern(name: string): boolean {
  return name.includes('*')
}
