// Runs a trace through the cache that serves, without a model: the same lookups, leases, commits, evictors and disk tier
// over blocks without bytes, in one backend or in several behind a router. Invariant: requests go one after the other in
// the trace's order, and a disk keeps up with what is written, so that a run says what the cache holds, not how fast
// anything is; equal input gives equal output.
import { recordBytes, SEGMENT_HEADER_BYTES } from '../cache/block-file.js';
import { openKvCache } from '../cache/kv-cache.js';
import { BLOCK_TOKENS } from '../core/block.js';
import { memoryFiles } from './memory-files.js';
import { NAME_TOKENS } from './references.js';
import { createRouting } from './routing.js';
/** Turns that are told apart. */
const MOST_TURNS = 32;
const USUAL_SEGMENTS = 64;
const FEWEST_DISK_BLOCKS = 8;
/** Tokens a second of a backend, where nothing is said: a large model on one accelerator. */
export const USUAL_RATE = 8000;
/** Stands still: what a simulation would wait for has happened when it is asked. */
const stillClock = { now: () => 0, after: () => () => undefined };
/** @throws Error where the evictor is not known or the disk is smaller than eight blocks. */
export async function simulate(references, options, { pace = { rate: USUAL_RATE }, seen = () => undefined } = {}) {
    const { backends = 1, router = 'round-robin' } = options;
    const caches = [];
    try {
        for (let i = 0; i < backends; i++)
            caches.push(await openCache(options));
        const routing = createRouting(references, { router, backends, ...pace });
        return await new Run({ caches, references, options, routing, rate: pace.rate, seen }).all();
    }
    finally {
        for (const cache of caches)
            await cache.close();
    }
}
async function openCache(options) {
    const { memoryBlocks, diskBlocks, diskSegments = USUAL_SEGMENTS, evictor } = options;
    return await openKvCache({
        ...{ blockBytes: 0, memoryBytes: 0, memoryBlocks, evictor, restore: 'always' },
        ...(diskBlocks !== undefined && { disk: diskOf(diskBlocks, diskSegments) }),
    }, { clock: stillClock, files: memoryFiles() });
}
function diskOf(blocks, segments) {
    if (blocks < FEWEST_DISK_BLOCKS)
        throw new RangeError(`a disk of ${blocks} blocks is too small: ${FEWEST_DISK_BLOCKS} at least`);
    const records = Math.max(1, Math.floor(blocks / segments));
    const segmentBytes = records * recordBytes(0) + SEGMENT_HEADER_BYTES;
    const capacityBytes = blocks * recordBytes(0) + Math.ceil(blocks / records) * SEGMENT_HEADER_BYTES;
    return { folder: '/simulated', capacityBytes, segmentBytes, keepFreeBytes: 0 };
}
class Run {
    #parts;
    /** The request's tokens; only each block's first few ever differ from 0. */
    #tokens = new Int32Array(BLOCK_TOKENS);
    #turns = new Map();
    #loads;
    /** When each backend has computed what it has, in ms of the trace's time. */
    #busyUntil;
    #memoryHits = 0;
    #diskHits = 0;
    constructor(parts) {
        this.#parts = parts;
        this.#loads = parts.caches.map(() => ({ requests: 0, promptTokens: 0, computedTokens: 0 }));
        this.#busyUntil = parts.caches.map(() => 0);
    }
    async all() {
        const { references, options, caches } = this.#parts;
        const { requests, count } = references;
        for (const [index, request] of requests.entries())
            await this.#request(request, index);
        const hits = this.#memoryHits + this.#diskHits;
        return {
            ...options,
            requests: requests.length,
            references: count,
            memoryHits: this.#memoryHits,
            diskHits: this.#diskHits,
            hitRate: count === 0 ? 0 : hits / count,
            promptTokens: requests.reduce((sum, { promptTokens }) => sum + promptTokens, 0),
            reusedTokens: hits * BLOCK_TOKENS,
            evictedBlocks: caches
                .flatMap((cache) => cache.status())
                .reduce((sum, { evictedBlocks }) => sum + evictedBlocks, 0),
            turns: [...this.#turns]
                .sort(([a], [b]) => a - b)
                .map(([turn, each]) => ({
                turn,
                requests: each.requests,
                hitRate: each.asked === 0 ? 0 : each.hits / each.asked,
            })),
            ...(caches.length > 1 && { loads: this.#loads }),
        };
    }
    async #request(request, index) {
        const { routing, seen } = this.#parts;
        const at = routing.place(request);
        const hits = await this.#serve(this.#parts.caches[at], request);
        this.#count(request.turn, hits, request.nodes.length);
        const cachedTokens = hits * BLOCK_TOKENS;
        const ttftMs = this.#compute(at, request, cachedTokens);
        routing.served({ cachedTokens, ttftMs });
        seen(index, hits, ttftMs);
    }
    /** Through the cache; returns the blocks that were there. */
    async #serve(cache, { nodes, promptTokens }) {
        const { references, options } = this.#parts;
        const { root } = references;
        const hashes = Array.from(nodes, (node) => references.hashes[node]);
        const tokens = this.#tokensOf(nodes);
        // As the engine does: the last token of a prompt is always computed.
        const maxBlocks = Math.max(0, Math.floor((promptTokens - 1) / BLOCK_TOKENS));
        const lease = await cache.acquire({
            ...{ chain: { root, hashes }, tokens, priority: 'interactive', resident: 0, maxBlocks },
        });
        const hits = lease.ready;
        this.#memoryHits += lease.found.memory;
        this.#diskHits += lease.found.disk;
        const { memoryBlocks, diskBlocks } = options;
        // What waits to be written cannot be evicted: the disk gets its turn before that is all of the memory.
        const pause = diskBlocks === undefined ? Number.POSITIVE_INFINITY : Math.max(1, memoryBlocks >> 2);
        for (let i = lease.ready, done = 1; i < hashes.length; i++, done++) {
            lease.commit(i, hashes[i], tokens.subarray(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS), () => undefined);
            if (done % pause === 0)
                await cache.flush();
        }
        lease.release();
        if (diskBlocks !== undefined)
            await cache.flush();
        return hits;
    }
    /** Behind what the backend has to compute already; returns the milliseconds to the first token. */
    #compute(at, request, cachedTokens) {
        const arrivedAt = request.at * 1000;
        const computedTokens = request.promptTokens - cachedTokens;
        const load = this.#loads[at];
        load.requests++;
        load.promptTokens += request.promptTokens;
        load.computedTokens += computedTokens;
        const endsAt = Math.max(this.#busyUntil[at], arrivedAt) + (computedTokens / this.#parts.rate) * 1000;
        this.#busyUntil[at] = endsAt;
        return endsAt - arrivedAt;
    }
    #tokensOf(nodes) {
        const length = nodes.length * BLOCK_TOKENS;
        if (this.#tokens.length < length)
            this.#tokens = new Int32Array(2 * length);
        const { names } = this.#parts.references;
        for (let i = 0; i < nodes.length; i++) {
            const from = nodes[i] * NAME_TOKENS;
            for (let j = 0; j < NAME_TOKENS; j++)
                this.#tokens[i * BLOCK_TOKENS + j] = names[from + j];
        }
        return this.#tokens.subarray(0, length);
    }
    #count(turn, hits, asked) {
        if (turn === 0 || turn > MOST_TURNS)
            return;
        const sum = this.#turns.get(turn) ?? { requests: 0, hits: 0, asked: 0 };
        sum.requests++;
        sum.hits += hits;
        sum.asked += asked;
        this.#turns.set(turn, sum);
    }
}
//# sourceMappingURL=simulate.js.map