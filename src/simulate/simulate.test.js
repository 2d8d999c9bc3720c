// The simulation against a cache as plain as can be, written apart from it; and the command on small traces.
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readTraces } from '../trace/read-trace.js';
import { simulateCommand } from './command.js';
import { referencesOf } from './references.js';
import { simulate } from './simulate.js';
const data = fileURLToPath(new URL('../../../shared/data', import.meta.url));
const present = existsSync(data);
let folder;
beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'refrain-simulate-'));
});
afterAll(() => rm(folder, { recursive: true }));
const trace = (prompts, blockTokens = 64) => ({
    name: 'made',
    blockTokens,
    requests: prompts.map((blocks, i) => ({
        ...{ at: i, session: undefined, turn: 0, promptTokens: blocks.length * blockTokens + 1, outputTokens: 1, blocks },
        scope: 0,
    })),
});
/**
 * Prefixes by their spelled-out names in order of use, the stalest first; a prompt's later blocks count as older than its
 * earlier ones. Shares no code with the cache.
 */
function plainHits(prompts, capacity) {
    const order = new Map();
    let hits = 0;
    for (const blocks of prompts) {
        const names = blocks.map((_, i) => blocks.slice(0, i + 1).join(','));
        const first = names.findIndex((name) => !order.has(name));
        hits += first < 0 ? names.length : first;
        for (const name of names.slice(0, capacity).reverse()) {
            order.delete(name);
            order.set(name, true);
        }
        while (order.size > capacity)
            order.delete(order.keys().next().value);
    }
    return hits;
}
/** Conversations that grow, a few at a time, some from a common start. */
const conversations = fc.array(fc.tuple(fc.nat(5), fc.integer({ min: 1, max: 4 })), { minLength: 20, maxLength: 120 });
const promptsOf = (turns) => {
    const grown = new Map();
    return turns.map(([who, more], i) => {
        const blocks = [...(grown.get(who) ?? [1, 2, 3 + (who % 2)])];
        for (let k = 0; k < more; k++)
            blocks.push(100 + 10 * i + k);
        grown.set(who, blocks);
        return blocks;
    });
};
describe('simulate', () => {
    test('everything kept: every block that was there before is a hit', async () => {
        await fc.assert(fc.asyncProperty(conversations, async (turns) => {
            const prompts = promptsOf(turns);
            const { memoryHits, hitRate, references } = await simulate(referencesOf(trace(prompts)), {
                ...{ memoryBlocks: 10_000, evictor: 'lru' },
            });
            expect(memoryHits).toBe(plainHits(prompts, 10_000));
            expect(hitRate).toBeCloseTo(memoryHits / references);
        }), { numRuns: 20 });
    });
    test('at any capacity that holds a prompt: within a point of the plain cache, over many conversations', async () => {
        let [own, plain, all] = [0, 0, 0];
        await fc.assert(fc.asyncProperty(conversations, fc.integer({ min: 90, max: 200 }), async (turns, memoryBlocks) => {
            const prompts = promptsOf(turns);
            const run = await simulate(referencesOf(trace(prompts)), { memoryBlocks, evictor: 'lru' });
            own += run.memoryHits;
            plain += plainHits(prompts, memoryBlocks);
            all += run.references;
        }), { numRuns: 40, seed: 7 });
        expect(Math.abs(own - plain) / all).toBeLessThan(0.01);
        expect(own).toBeLessThan(all);
    });
    test('evictors differ: who was used last stays with lru, who came last with fifo', async () => {
        const prompts = [[1], [2], [1], [3], [1]];
        const hits = async (evictor) => (await simulate(referencesOf(trace(prompts)), { memoryBlocks: 2, evictor })).memoryHits;
        expect([await hits('lru'), await hits('fifo')]).toEqual([2, 1]);
    });
    test('a disk below brings back what memory lost', async () => {
        const prompts = Array.from({ length: 40 }, (_, i) => [i % 10, 100 + (i % 10), 200 + (i % 10)]);
        const references = referencesOf(trace(prompts));
        const bare = await simulate(references, { memoryBlocks: 6, evictor: 'lru' });
        const below = await simulate(references, { memoryBlocks: 6, diskBlocks: 100, evictor: 'lru' });
        expect(bare.hitRate).toBeLessThan(0.1);
        expect([below.memoryHits + below.diskHits, below.diskHits > 0]).toEqual([90, true]);
    });
    test('the last token of a prompt is always computed', async () => {
        const whole = trace([
            [1, 2],
            [1, 2],
        ]);
        const exact = { ...whole, requests: whole.requests.map((request) => ({ ...request, promptTokens: 128 })) };
        expect((await simulate(referencesOf(exact), { memoryBlocks: 9, evictor: 'lru' })).memoryHits).toBe(1);
        expect((await simulate(referencesOf(whole), { memoryBlocks: 9, evictor: 'lru' })).memoryHits).toBe(2);
    });
    test('a block of 512 tokens is eight of ours, and scopes never meet', () => {
        const wide = referencesOf(trace([
            [1, 2],
            [1, 3],
        ], 512));
        expect([wide.count, wide.hashes.length]).toEqual([32, 24]);
        const one = trace([[1, 2]]);
        const apart = { ...one, requests: [...one.requests, { ...one.requests[0], scope: 1 }] };
        expect(referencesOf(apart).hashes).toHaveLength(4);
        expect(() => referencesOf(trace([[1]], 100))).toThrow(/no multiple of 64/);
    });
    const agents = (sessions, turns) => {
        const grown = Array.from({ length: turns }, (_, turn) => Array.from({ length: sessions }, (_, s) => ({
            ...{ at: 10 * turn + s / sessions, session: `s${s}`, turn: turn + 1, outputTokens: 10, scope: 0 },
            promptTokens: 64 * (20 + 5 * turn) + 10,
            // Four heads of ten blocks among them.
            blocks: Array.from({ length: 20 + 5 * turn }, (_, i) => (i < 10 ? 1000 * (s % 4) + i : 10_000 * (s + 1) + i)),
        })));
        return referencesOf({ name: 'agents', blockTokens: 64, requests: grown.flat() });
    };
    test('behind a router each backend has a cache of its own: by turns loses what sessions and ours keep', async () => {
        // An odd number: by turns, a session comes to another backend each time.
        const references = agents(23, 6);
        const fleet = { memoryBlocks: 400, evictor: 'lru', backends: 4 };
        const byTurns = await simulate(references, { ...fleet, router: 'round-robin' });
        const hashed = await simulate(references, { ...fleet, router: 'session-hash' });
        const ours = await simulate(references, { ...fleet, router: 'refrain' });
        const one = await simulate(references, { memoryBlocks: 1600, evictor: 'lru' });
        expect(byTurns.hitRate).toBeLessThan(hashed.hitRate - 0.2);
        expect(ours.hitRate).toBeGreaterThan(hashed.hitRate);
        expect(ours.hitRate).toBeLessThanOrEqual(one.hitRate);
        for (const { loads, requests } of [byTurns, hashed, ours]) {
            expect(loads?.reduce((sum, load) => sum + load.requests, 0)).toBe(requests);
            expect(loads?.every((load) => load.requests > 0)).toBe(true);
        }
    });
    test('one backend behind any router is what it is without one', async () => {
        const references = agents(6, 4);
        const { hitRate } = await simulate(references, { memoryBlocks: 100, evictor: 'lru' });
        for (const router of ['round-robin', 'session-hash', 'refrain']) {
            expect((await simulate(references, { memoryBlocks: 100, evictor: 'lru', backends: 1, router })).hitRate).toBe(hitRate);
        }
    });
    test('a backend computes one prompt at a time, at the rate that is given', async () => {
        const references = referencesOf(trace([[1], [2], [1]]));
        const waited = [];
        await simulate({ ...references, requests: references.requests.map((request) => ({ ...request, at: 0 })) }, { memoryBlocks: 9, evictor: 'lru' }, { pace: { rate: 65 }, seen: (_, __, ttftMs) => waited.push(Math.round(ttftMs)) });
        // 65 tokens each; of the last one 64 are there.
        expect(waited).toEqual([1000, 2000, 2015]);
    });
    test.skipIf(!present)('real sessions: within a point of the plain cache (needs ../shared)', async () => {
        const read = await readTraces([
            join(data, 'claude-code-traces', 'trace_0460.json'),
            join(data, 'claude-code-traces', 'trace_0598.json'),
        ]);
        const references = referencesOf(read);
        const prompts = read.requests.map(({ blocks, scope }) => blocks.map((block) => 1e6 * scope + block));
        for (const memoryBlocks of [600, 900, 5000]) {
            const { memoryHits } = await simulate(references, { memoryBlocks, evictor: 'lru' });
            expect(Math.abs(memoryHits - plainHits(prompts, memoryBlocks)) / references.count).toBeLessThan(0.01);
        }
    });
});
describe('refrain bench simulate', () => {
    const write = async (name, text) => {
        await writeFile(join(folder, name), text);
        return join(folder, name);
    };
    const session = (blocks) => ({
        ...{ id: 'a', block_size: 64, hash_id_scope: 'local' },
        requests: blocks.map((ids, t) => ({ t, type: 's', in: 64 * ids.length + 1, out: 5, hash_ids: ids })),
    });
    test('a table of capacities, with the ideal', async () => {
        const path = await write('a.json', JSON.stringify(session([
            [1, 2],
            [1, 2, 3],
            [1, 2, 3, 4],
        ])));
        const text = await simulateCommand([path], { memory: '2,100', evictor: 'lru,fifo', model: 'smollm2-135m-instruct' });
        expect(text).toContain('3 requests, 9 references to 4 blocks of 64 tokens');
        expect(text).toMatch(/lru +100 +147 MB +55\.6 % +100\.0 %/);
        expect(text).toMatch(/everything kept +4 /);
        expect(text).toContain('1: 0.0 %  2: 66.7 %  3: 75.0 %');
    });
    test('JSON, of Mooncake lines, with a disk in bytes', async () => {
        const line = (ids) => JSON.stringify({ timestamp: 0, input_length: 1000, output_length: 1, hash_ids: ids });
        const path = await write('m.jsonl', `${line([1, 2])}\n${line([1, 3])}\n`);
        const flags = { memory: '40', disk: '100MB', model: 'smollm2-135m-instruct', json: true };
        const report = JSON.parse(await simulateCommand([path], flags));
        expect(report).toMatchObject({ references: 30, differentBlocks: 22, runs: [{ memoryHits: 8, diskBlocks: 67 }] });
    });
    test('routers side by side, and a page with a picture of capacity', async () => {
        const path = await write('f.json', JSON.stringify(session([
            [1, 2],
            [1, 2, 3],
            [1, 2, 3, 4],
        ])));
        const report = join(folder, 'f.html');
        const flags = { memory: '2,100', backends: '2', prefill: '100', report, evictor: 'lru' };
        const text = await simulateCommand([path], flags);
        expect(text).toMatch(/lru +round-robin +\d\.\d\d x +100 /);
        expect(text).toMatch(/lru +refrain +\d\.\d\d x +100 /);
        const page = JSON.parse(await readFile(join(folder, 'f.json'), 'utf8'));
        expect(page.capacity.lines.map((line) => line.name)).toEqual([
            'round-robin',
            'session-hash',
            'refrain',
        ]);
        expect(page.capacity.lines[2].points.map((point) => point.capacity)).toEqual([4, 200]);
        expect(page.runs).toHaveLength(6);
        expect(page.runs[5]).toMatchObject({ name: 'refrain, 100 blocks', requests: 3, failed: 0 });
        expect(page.runs[5].hitRate).toBeCloseTo((5 * 64) / (9 * 64 + 3));
        expect(page.runs[5].ttft.p50Ms).toBeGreaterThan(0);
        expect(await readFile(report, 'utf8')).toContain('Simulation of');
    });
    test('files of one recording share their blocks, others do not', async () => {
        const shared = { ...session([[1, 2]]), hash_id_scope: 'global', recording: 'x' };
        const paths = await Promise.all([
            write('g1.json', JSON.stringify(shared)),
            write('g2.json', JSON.stringify(shared)),
        ]);
        expect(JSON.parse(await simulateCommand(paths, { json: true })).ideal.memoryHits).toBe(2);
        const local = await write('l.json', JSON.stringify(session([[1, 2]])));
        expect(JSON.parse(await simulateCommand([local, local.replace('l.json', 'a.json')], { json: true })).ideal.memoryHits).toBe(5);
    });
    test.each([
        ['bad.json', '{"a": 1}', {}, /it is no trace/],
        [
            'bad2.json',
            '{"block_size": 64, "requests": [{"t": 0, "in": -1, "hash_ids": []}]}',
            {},
            /requests\[0\]\.in must be/,
        ],
        ['bad3.jsonl', '{"input_length": 1, "hash_ids": ["a"]}', {}, /bad3\.jsonl:1: hash_ids must be a list/],
        ['ok.json', JSON.stringify(session([[1]])), { evictor: 'magic' }, /--evictor: 'magic' is none of fifo, lru/],
        ['ok.json', JSON.stringify(session([[1]])), { router: 'refrain' }, /--router: there is one backend/],
        ['ok.json', JSON.stringify(session([[1]])), { backends: '2', router: 'x' }, /--router: 'x' is none of round-robin/],
        ['ok.json', JSON.stringify(session([[1]])), { report: 'a.txt' }, /must end with \.html/],
        ['ok.json', JSON.stringify(session([[1]])), { memory: '8GB' }, /say of which model with --model/],
    ])('refuses %s %s %j', async (name, text, flags, complaint) => {
        await expect(simulateCommand([await write(name, text)], flags)).rejects.toThrow(complaint);
    });
});
//# sourceMappingURL=simulate.test.js.map