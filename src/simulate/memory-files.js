// A disk in memory for simulations: the real disk tier runs on it, with records that hold names and no KV. Invariant: does
// what `FileDoor` says, never fails and never waits longer than a turn of the microtask queue.
/** A volume that nothing else is on and that never fills up; the tier keeps within its own budget. */
export function memoryFiles() {
    const files = new Map();
    const named = (path) => {
        const file = files.get(path);
        if (file === undefined)
            throw Object.assign(new Error(`ENOENT: ${path}`), { code: 'ENOENT', errno: -2 });
        return file;
    };
    return {
        open: async (path) => named(path),
        async create(path) {
            const file = new MemoryFile();
            files.set(path, file);
            return file;
        },
        async unlink(path) {
            named(path);
            files.delete(path);
        },
        list: async (folder) => [...files.keys()].flatMap((path) => (path.startsWith(`${folder}/`) ? path.slice(folder.length + 1) : [])),
        makeFolder: async () => undefined,
        syncFolder: async () => undefined,
        freeBytes: async () => Number.MAX_SAFE_INTEGER,
        lock: async () => async () => undefined,
    };
}
class MemoryFile {
    #bytes = Buffer.alloc(4096);
    #length = 0;
    async read(into, position) {
        let at = position;
        for (const part of into) {
            const piece = this.#bytes.subarray(at, Math.min(at + part.length, this.#length));
            part.set(piece);
            at += piece.length;
            if (piece.length < part.length)
                break;
        }
        return at - position;
    }
    async write(from, position) {
        const end = position + from.reduce((sum, { length }) => sum + length, 0);
        if (end > this.#bytes.length) {
            const larger = Buffer.alloc(Math.max(end, 2 * this.#bytes.length));
            this.#bytes.copy(larger, 0, 0, this.#length);
            this.#bytes = larger;
        }
        let at = position;
        for (const part of from) {
            this.#bytes.set(part, at);
            at += part.length;
        }
        this.#length = Math.max(this.#length, end);
    }
    async truncate(length) {
        this.#bytes.fill(0, length);
        this.#length = Math.min(this.#length, length);
    }
    size = async () => this.#length;
    sync = async () => undefined;
    close = async () => undefined;
}
//# sourceMappingURL=memory-files.js.map