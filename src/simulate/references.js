// A trace's prompts as the cache sees them: chains of 64-token blocks. Invariant: two requests share a block exactly where
// all block names up to it are the same and their scope is; every node is hashed once, as the server hashes tokens.
//
//   trace: 512 | 512 | part      a name of 512 tokens stands for eight blocks, and only full blocks count
//   here:  64 64 64 64 64 64 64 64 | 64 ...
import { nextHash } from '../cache/chain.js';
import { BLOCK_TOKENS } from '../core/block.js';
import { UsageError } from '../core/usage-error.js';
/** What stands in the tokens of a block to tell it from others; the rest are zeros. */
export const NAME_TOKENS = 4;
const ROOT = '0'.repeat(32);
/** Parents and contents are numbered from 0 up; both fit into one exact number. */
const MOST_CONTENTS = 2 ** 26;
/** @throws UsageError where the trace's blocks are neither made of 64-token blocks nor make them. */
export function referencesOf(trace) {
    const per = trace.blockTokens / BLOCK_TOKENS;
    if (!Number.isInteger(per)) {
        throw new UsageError(`${trace.name}: blocks of ${trace.blockTokens} tokens are no multiple of ${BLOCK_TOKENS}`);
    }
    const tree = new Tree();
    const last = new Map();
    let count = 0;
    const requests = trace.requests.map((request) => {
        const blocks = Math.min(Math.floor(request.promptTokens / BLOCK_TOKENS), request.blocks.length * per);
        const nodes = new Uint32Array(blocks);
        const key = `${request.scope} ${request.session}`;
        const before = last.get(key);
        let at = before === undefined ? 0 : per * sharedNames(before.request.blocks, request.blocks);
        at = Math.min(at, blocks, before?.nodes.length ?? 0);
        if (before !== undefined)
            nodes.set(before.nodes.subarray(0, at));
        for (; at < blocks; at++) {
            const name = request.blocks[Math.floor(at / per)];
            nodes[at] = tree.child(at === 0 ? undefined : nodes[at - 1], { scope: request.scope, name, part: at % per });
        }
        last.set(key, { request, nodes });
        count += blocks;
        return simulated(request, nodes);
    });
    return { root: ROOT, requests, hashes: tree.hashes, names: tree.names(), count, per };
}
function simulated(request, nodes) {
    const { at, turn, promptTokens, outputTokens, headTokens, scope } = request;
    const named = (session) => (session === undefined ? undefined : `${scope} ${session}`);
    return {
        ...{ at, turn, promptTokens, outputTokens, headTokens, nodes },
        ...{ session: named(request.session), parent: named(request.parent) },
    };
}
function sharedNames(a, b) {
    const most = Math.min(a.length, b.length);
    let i = 0;
    while (i < most && a[i] === b[i])
        i++;
    return i;
}
class Tree {
    hashes = [];
    #names = [];
    #nodes = new Map();
    #contents = new Map();
    #contentCount = 0;
    #tokens = new Int32Array(BLOCK_TOKENS);
    child(parent, content) {
        const id = this.#contentId(content);
        const key = ((parent ?? -1) + 1) * MOST_CONTENTS + id;
        const known = this.#nodes.get(key);
        if (known !== undefined)
            return known;
        const name = [content.scope, Math.floor(content.name / 2 ** 31), content.name % 2 ** 31, content.part];
        this.#tokens.set(name);
        const node = this.hashes.length;
        this.hashes.push(nextHash(parent === undefined ? ROOT : this.hashes[parent], this.#tokens));
        this.#names.push(...name);
        this.#nodes.set(key, node);
        return node;
    }
    names() {
        return Int32Array.from(this.#names);
    }
    #contentId({ scope, name, part }) {
        const ids = this.#contents.get(scope) ?? new Map();
        this.#contents.set(scope, ids);
        // A block of a trace has at most 64 of ours: 4,096 tokens.
        const key = name * 64 + part;
        let id = ids.get(key);
        if (id === undefined) {
            id = this.#contentCount++;
            if (id >= MOST_CONTENTS)
                throw new UsageError(`a trace of more than ${MOST_CONTENTS} different blocks is too long`);
            ids.set(key, id);
        }
        return id;
    }
}
//# sourceMappingURL=references.js.map