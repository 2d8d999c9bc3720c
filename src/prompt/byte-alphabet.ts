// The printable stand-ins that byte-level vocabularies use for the 256 bytes (GPT-2's table): printable Latin-1 stands
// for itself, every other byte for U+0100 and on, in order. Also the form <0xNN> of SentencePiece vocabularies.

/** Byte -> the character that stands for it. */
export const BYTE_TO_CHAR: readonly string[] = byteToChar()

/** UTF-16 unit of a stand-in -> its byte. */
export const UNIT_TO_BYTE: ReadonlyMap<number, number> = new Map(
  BYTE_TO_CHAR.map((char, byte) => [char.charCodeAt(0), byte]),
)

/** The byte that a token such as `<0x0A>` stands for, or undefined. */
export function fallbackByte(spelling: string): number | undefined {
  return /^<0x[0-9A-F]{2}>$/.test(spelling) ? Number.parseInt(spelling.slice(3, 5), 16) : undefined
}

/** How a SentencePiece vocabulary spells `byte`. */
export function fallbackSpelling(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`
}

function byteToChar(): string[] {
  const printable = (byte: number): boolean =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff)
  let next = 0x100
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : next++))
}
