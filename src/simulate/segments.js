// A simulated prompt as the router sees prompts: as a chain of segments, which are messages there. Invariant: equal hashes
// mean equal blocks up to there; borders that a conversation had stay where they are while what is before them does.
//
//   turn 1   head | task                     a border at the end of tools and system text, and at the end of each turn
//   turn 2   head | task | what was added
import { BLOCK_TOKENS } from '../core/block.js';
/** Without conversations: a border so often, in blocks, where the trace's own names are shorter. */
const SPAN_BLOCKS = 16;
/** A beginning is a head where so many conversations have it, and this share of them. */
const HEAD_SESSIONS = 3;
const HEAD_SHARE = 0.02;
export class Segments {
    #span;
    #past = new Map();
    /** Conversations that have each node. */
    #visitors;
    #headVisitors;
    #tails = 0;
    constructor({ requests, hashes, per }) {
        this.#span = Math.max(per, SPAN_BLOCKS);
        this.#visitors = new Uint32Array(hashes.length);
        const last = new Map();
        const sessions = new Set();
        for (const [i, { session = `#${i}`, nodes }] of requests.entries()) {
            sessions.add(session);
            for (const node of nodes) {
                if (last.get(node) === session)
                    continue;
                last.set(node, session);
                this.#visitors[node]++;
            }
        }
        this.#headVisitors = Math.max(HEAD_SESSIONS, HEAD_SHARE * sessions.size);
    }
    /** Of each request once, in order. */
    of({ session, nodes, promptTokens, headTokens }) {
        const head = Math.min(this.#headBlocks(nodes, headTokens), nodes.length);
        const borders = session === undefined ? this.#even(nodes.length) : this.#grown(session, nodes);
        const all = [...new Set([...(head > 0 ? [head] : []), ...borders])].sort((a, b) => a - b);
        const hashes = all.map((border) => String(nodes[border - 1]));
        const tokens = all.map((border) => border * BLOCK_TOKENS);
        // What lies behind the last full block is nobody else's.
        if (promptTokens > nodes.length * BLOCK_TOKENS || all.length === 0) {
            hashes.push(`tail ${this.#tails++}`);
            tokens.push(promptTokens);
        }
        return { hashes, tokens, head: head > 0 ? all.indexOf(head) + 1 : 0 };
    }
    #headBlocks(nodes, headTokens) {
        if (headTokens !== undefined)
            return Math.floor(headTokens / BLOCK_TOKENS);
        const end = nodes.findIndex((node) => this.#visitors[node] < this.#headVisitors);
        return end < 0 ? nodes.length : end;
    }
    #even(blocks) {
        const count = Math.floor(blocks / this.#span);
        return Array.from({ length: count }, (_, i) => (i + 1) * this.#span);
    }
    #grown(session, nodes) {
        const past = this.#past.get(session);
        let shared = 0;
        if (past !== undefined)
            while (shared < nodes.length && nodes[shared] === past.nodes[shared])
                shared++;
        const borders = (past?.borders ?? []).filter((border) => border <= shared);
        if (nodes.length > (borders.at(-1) ?? 0))
            borders.push(nodes.length);
        this.#past.set(session, { nodes, borders });
        return borders;
    }
}
//# sourceMappingURL=segments.js.map