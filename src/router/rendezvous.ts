// Which members a key belongs to, without a table: every pair of key and member has a number, and the highest wins. A
// member that comes or goes moves only the keys that it wins or won. Pure.

/** Between 0 and 1, the same in every process: FNV-1a over both names, stirred so that every bit counts. */
export function affinityOf(key: string, member: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < key.length; i++) hash = Math.imul(hash ^ key.charCodeAt(i), 0x01000193)
  hash = Math.imul(hash ^ 0xff, 0x01000193)
  for (let i = 0; i < member.length; i++) hash = Math.imul(hash ^ member.charCodeAt(i), 0x01000193)
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return ((hash ^ (hash >>> 16)) >>> 0) / 0x100000000
}

/** Of several members the one that `key` belongs to; of one weight w against another of 1, w of the keys. */
export function ownerOf<T extends { readonly id: string; readonly weight: number }>(
  key: string,
  members: readonly [T, ...T[]],
): T {
  const rank = ({ id, weight }: T) => -Math.max(weight, 1e-6) / Math.log(Math.max(affinityOf(key, id), 1e-12))
  return members.reduce((best, member) => (rank(member) > rank(best) ? member : best))
}
