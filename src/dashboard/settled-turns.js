// Turns of sessions put together from what requests came to, where nobody compares prompts: in front of a fleet. Invariant:
// bounded in sessions and turns, the least recently used session goes first; a tenant sees its own.
const SESSIONS = 1000;
const TURNS = 64;
export class SettledTurns {
    /** Least recently used first. */
    #sessions = new Map();
    /** `backend`: where it was answered, if that is known. */
    add(request, at, backend) {
        const { tenant, session } = request;
        if (session === undefined)
            return;
        const key = `${tenant}\n${session}`;
        const known = this.#sessions.get(key) ?? {
            ...{ session, tenant },
            ...{ count: 0, promptTokens: 0, reusedTokens: 0, turns: [] },
        };
        this.#sessions.delete(key);
        this.#sessions.set(key, known);
        const [oldest] = this.#sessions.keys();
        if (this.#sessions.size > SESSIONS && oldest !== undefined)
            this.#sessions.delete(oldest);
        known.count++;
        known.promptTokens += request.promptTokens;
        known.reusedTokens += request.promptTokens - request.computed;
        known.turns.push(turnOf(request, { turn: known.count, at, backend }));
        if (known.turns.length > TURNS)
            known.turns.shift();
    }
    sessions(viewer) {
        return [...this.#sessions.values()].filter(({ tenant }) => sees(viewer, tenant)).map(viewOf);
    }
    turns(viewer, session, tenant) {
        const found = [...this.#sessions.values()].find((each) => each.session === session && sees(viewer, each.tenant) && (tenant === undefined || each.tenant === tenant));
        return found && { session: viewOf(found), turns: found.turns };
    }
}
function sees(viewer, tenant) {
    return viewer.admin || viewer.name === tenant;
}
function viewOf({ session, tenant, count, promptTokens, reusedTokens, turns }) {
    const at = turns.at(-1)?.at ?? 0;
    const counts = { turns: count, at, promptTokens, reusedTokens, missedTokens: 0 };
    return { session, tenant, byContent: false, ...counts, repeats: [] };
}
function turnOf(request, more) {
    const { id, model, status, promptTokens, completionTokens, working, memory, disk, computed } = request;
    return {
        ...more,
        requestId: id,
        requestClass: 'main',
        model,
        template: '',
        status: status < 400 ? 'done' : 'failed',
        promptTokens,
        completionTokens,
        committedTokens: 0,
        cache: { working, memory, disk, computed },
    };
}
//# sourceMappingURL=settled-turns.js.map