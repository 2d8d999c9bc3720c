// Who is under way, in no order: joined and left with every request, at the cost of two writes. Invariant: who left is held
// by nothing here. A Set is not that: the runtime's tables that were outgrown each keep hold of the one that took their
// place, so that once one of them is old, all that follow it, with all that is in them, count as in use until the next full
// collection. With the deadlines of requests in a Set that were the bodies of nearly all of them.

/** One of a roster; of one at a time. */
export interface Seated {
  /** Its place; -1: it is in none. Set by the roster. */
  seat: number
}

export class Roster<T extends Seated> {
  readonly #all: T[] = []

  get size(): number {
    return this.#all.length
  }

  add(one: T): void {
    if (one.seat >= 0) return
    one.seat = this.#all.length
    this.#all.push(one)
  }

  /** False: it was not there. */
  delete(one: T): boolean {
    const { seat } = one
    if (seat < 0) return false
    const last = this.#all.pop() as T
    if (last !== one) {
      this.#all[seat] = last
      last.seat = seat
    }
    one.seat = -1
    return true
  }

  /** As they are now: they may leave meanwhile. */
  list(): T[] {
    return this.#all.slice()
  }
}
