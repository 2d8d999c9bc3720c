// Which sessions have changed since somebody looked: each change raises a version, and a reader asks for what came after
// the version that it has. Invariant: a reader that is too far behind is told so, and never misses a change silently.
/** Sessions that have gone and are still told; a reader that is farther behind begins anew. */
const TOLD_GONE = 1000;
export class SessionBoard {
    #rows = new Map();
    #gone = [];
    /** What went before this version is forgotten. */
    #floor = 0;
    #version = 0;
    get version() {
        return this.#version;
    }
    /** The sessions as they are now. */
    refresh(sessions) {
        const seen = new Set();
        const version = this.#version + 1;
        for (const view of sessions) {
            const key = keyOf(view);
            seen.add(key);
            const mark = markOf(view);
            if (this.#rows.get(key)?.mark === mark)
                continue;
            this.#rows.set(key, { view, mark, version });
            this.#version = version;
        }
        if (seen.size === this.#rows.size)
            return;
        for (const [key, { view }] of this.#rows) {
            if (seen.has(key))
                continue;
            this.#rows.delete(key);
            this.#gone.push({ tenant: view.tenant, session: view.session, version });
            this.#version = version;
        }
        const spare = this.#gone.splice(0, Math.max(0, this.#gone.length - TOLD_GONE));
        this.#floor = spare.at(-1)?.version ?? this.#floor;
    }
    /** Undefined: too much went since then to tell it apart. */
    since(version) {
        if (version < this.#floor)
            return undefined;
        const sessions = [...this.#rows.values()].filter((row) => row.version > version).map(({ view }) => view);
        const gone = this.#gone
            .filter((each) => each.version > version && !this.#rows.has(keyOf(each)))
            .map(({ tenant, session }) => ({ tenant, session }));
        return { sessions, gone };
    }
    all() {
        return [...this.#rows.values()].map(({ view }) => view);
    }
}
function keyOf({ tenant, session }) {
    return `${tenant}\n${session}`;
}
function markOf({ turns, at, promptTokens, reusedTokens, missedTokens, repeats }) {
    return [turns, at, promptTokens, reusedTokens, missedTokens, repeats.length, repeats[0]?.changed].join();
}
//# sourceMappingURL=session-board.js.map