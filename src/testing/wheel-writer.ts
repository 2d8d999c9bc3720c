// Writes wheels (zip archives) for tests of pulling. No code is shared with the reader.

import { deflateRawSync } from 'node:zlib'

export interface WheelMember {
  readonly name: string
  readonly data: Uint8Array
  readonly method: 'stored' | 'deflated'
}

/** The archive's bytes; `comment` stands behind the end record. */
export function encodeWheel(members: readonly WheelMember[], comment = ''): Buffer {
  const parts: Buffer[] = []
  const entries: Buffer[] = []
  let offset = 0
  for (const { name, data, method } of members) {
    const packed = method === 'stored' ? Buffer.from(data) : deflateRawSync(data)
    const title = Buffer.from(name)
    // version, flags, method, time, date, crc (not read), sizes, name length, extra length
    const facts = Buffer.alloc(26)
    facts.writeUInt16LE(20, 0)
    facts.writeUInt16LE(method === 'stored' ? 0 : 8, 4)
    facts.writeUInt32LE(packed.length, 14)
    facts.writeUInt32LE(data.length, 18)
    facts.writeUInt16LE(title.length, 22)
    const localExtra = Buffer.from([1, 0, 0, 0])
    const localFacts = Buffer.from(facts)
    localFacts.writeUInt16LE(localExtra.length, 24)
    const local = Buffer.concat([Buffer.from('PK\x03\x04'), localFacts, title, localExtra, packed])
    const placed = Buffer.alloc(14)
    placed.writeUInt32LE(offset, 10)
    entries.push(Buffer.concat([Buffer.from('PK\x01\x02\x14\0'), facts, placed, title]))
    parts.push(local)
    offset += local.length
  }
  const directory = Buffer.concat(entries)
  const end = Buffer.alloc(22)
  end.write('PK\x05\x06')
  end.writeUInt16LE(members.length, 8)
  end.writeUInt16LE(members.length, 10)
  end.writeUInt32LE(directory.length, 12)
  end.writeUInt32LE(offset, 16)
  end.writeUInt16LE(comment.length, 20)
  return Buffer.concat([...parts, directory, end, Buffer.from(comment)])
}
