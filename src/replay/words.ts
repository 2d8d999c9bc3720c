// Text in place of blocks that have names only. Invariant: equal names give equal text everywhere, other names other text
// within every few words, so that caches with blocks of 16 tokens tell them apart too; nothing of it means anything.
// The words are short and common: nearly all tokenizers of English know each, with the space before it, as one token.

import { createHash } from 'node:crypto'

const WORDS = (
  'the of and to in is that for it as was with be by on not he his but at are this have from which or had they an you were ' +
  'her all she there would their we him been has when who will more no if out so said what up its about into than them can ' +
  'only other new some could time these two may then do first any my now such like our over man me even most made after also ' +
  'did many before must through back years where much your way well down should because each just those people how too little ' +
  'state good very make world still own see men work long get here between both life being under never day same another know ' +
  'while last might us great old year off come since against go came right used take three states himself few house use during ' +
  'without again place around however home small found part thought went say general once upon school every does got united left ' +
  'number course war until always away something fact though water less public put think almost hand enough far took head yet ' +
  'better set told nothing night end why called eyes find going look asked later knew point next program city business give group ' +
  'days young let room present side social given order often national second possible rather per face among form important things ' +
  'looked early white case become large need four within felt children along saw best church ever least power development light ' +
  'thing seemed family interest want members mind country area others turned done open service certain kind problem began different ' +
  'door thus help means sense whole matter line law money street real night free body class words able company air age south north ' +
  'book question paper story music land plan river table cost field car stage market west east court price summer trade river'
).split(' ')

/** Each of them once: the draw is even. */
const DRAWN = [...new Set(WORDS)]

/** Words for each name that were made before; equal prefixes come again with every turn. */
const MOST_KEPT = 20_000

export class WordText {
  readonly #kept = new Map<string, string>()

  /**
   * `count` words that `name` stands for, a space before each; of one name, fewer words are the beginning of more. No
   * two names share a beginning of four words but by an accident of 1 in 10^9.
   */
  of(name: string, count: number): string {
    const key = `${count} ${name}`
    const known = this.#kept.get(key)
    if (known !== undefined) return known
    if (this.#kept.size >= MOST_KEPT) this.#kept.clear()
    let text = ''
    for (const number of numbersOf(name, count)) text += ` ${DRAWN[number % DRAWN.length]!}`
    this.#kept.set(key, text)
    return text
  }
}

/** `count` numbers in [0, 2^32) that `name` stands for; of one name, fewer are the beginning of more. */
export function* numbersOf(name: string, count: number): Generator<number, void> {
  const digest = createHash('sha256').update(name).digest()
  let [a, b] = [digest.readUInt32LE(0), digest.readUInt32LE(4) | 1]
  for (let i = 0; i < count; i++) {
    // A Weyl sequence, stirred: as even as the draw needs, and a hundredth of a digest's time.
    a = (a + b) >>> 0
    let mixed = Math.imul(a ^ (a >>> 16), 0x21f0aaad)
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97)
    yield (mixed ^ (mixed >>> 15)) >>> 0
  }
}
