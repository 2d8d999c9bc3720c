// Our own names in the API's spelling, at every depth. Invariant: keys alone change, and of those none that somebody else named.

export type Json = string | number | boolean | null | undefined | readonly Json[] | { readonly [key: string]: Json }

/** `named`: members whose own keys are names of somebody else's. */
export function snakeKeys(value: unknown, named: readonly string[] = []): Json {
  if (Array.isArray(value)) return value.map((each) => snakeKeys(each, named))
  if (typeof value !== 'object' || value === null) return value as Json
  const members = Object.entries(value).map(([key, member]): [string, Json] => [
    snake(key),
    named.includes(key) ? (member as Json) : snakeKeys(member, named),
  ])
  return Object.fromEntries(members)
}

function snake(key: string): string {
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}
