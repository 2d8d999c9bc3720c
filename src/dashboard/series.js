// Counts over time in buckets of equal length, the last so many of them. Invariant: a bucket without anything in it takes
// no room, and is not told.
import { SERIES_FIELDS } from './contract.js';
/** Values that are as they are, not summed: null until somebody looked. */
const GAUGES = new Set(['workingBytes', 'memoryBytes', 'diskBytes']);
const FIELDS = SERIES_FIELDS.slice(1);
export class Series {
    #options;
    /** By the number of the bucket. */
    #rows = new Map();
    constructor(options) {
        this.#options = options;
    }
    /** Counts `more` at Unix milliseconds `at`; of too many buckets the oldest is left out. */
    add(at, more) {
        const row = this.#row(at);
        for (const [field, value] of Object.entries(more))
            row[field] = (row[field] ?? 0) + value;
    }
    /** Values as they are at that time. */
    set(at, now) {
        Object.assign(this.#row(at), now);
    }
    /** The buckets from that of `at` on, oldest first. */
    since(at) {
        const { bucketMs } = this.#options;
        const from = Math.floor(at / bucketMs);
        return [...this.#rows]
            .filter(([index]) => index >= from)
            .sort(([a], [b]) => a - b)
            .map(([index, row]) => [index * bucketMs, ...FIELDS.map((field) => row[field] ?? (GAUGES.has(field) ? null : 0))]);
    }
    #row(at) {
        const index = Math.floor(at / this.#options.bucketMs);
        const row = this.#rows.get(index) ?? {};
        if (this.#rows.has(index))
            return row;
        this.#rows.set(index, row);
        if (this.#rows.size > this.#options.buckets)
            this.#rows.delete(Math.min(...this.#rows.keys()));
        return row;
    }
}
//# sourceMappingURL=series.js.map