// The tree of what is cached, as one viewer sees it: tokens in place of blocks, names that can't be turned back into
// prompts, and the sessions whose last prompts go through each node.
import { createHmac, randomBytes } from 'node:crypto';
import { BLOCK_TOKENS } from '../core/block.js';
/** Sessions of a node that are named. */
const NAMES = 6;
/** A hash of a short known text could be tried out; under the process's own key it can't. */
const secret = randomBytes(16);
const nameOf = (hash) => createHmac('sha256', secret).update(hash).digest('hex').slice(0, 16);
export function treeView(tree, { prefixes, ownersOf, at }) {
    const byHash = new Map(tree.nodes.map((node) => [node.hash, { node, sessions: [], count: 0 }]));
    for (const { session, chain } of prefixes) {
        for (let i = 0; i < chain.hashes.length;) {
            const found = byHash.get(chain.hashes[i]);
            if (found === undefined)
                break;
            found.count++;
            if (found.sessions.length < NAMES)
                found.sessions.push(session);
            i += found.node.blocks;
        }
    }
    const ids = tree.nodes.map(({ hash }) => nameOf(hash));
    const nodes = tree.nodes.map((node, i) => {
        const { parent, tiers, hidden } = node;
        const { count, sessions } = byHash.get(node.hash) ?? { count: 0, sessions: [] };
        const owners = parent === undefined ? ownersOf?.(node.root) : undefined;
        return {
            id: ids[i],
            ...(parent !== undefined && { parent: ids[parent] }),
            ...(owners?.[0] !== undefined && { tenant: owners.join(', ') }),
            from: node.depth * BLOCK_TOKENS,
            tokens: node.blocks * BLOCK_TOKENS,
            tiers: tiers.map(({ tier, blocks }) => ({ tier, tokens: blocks * BLOCK_TOKENS })),
            uses: node.uses,
            belowTokens: node.below * BLOCK_TOKENS,
            hidden: { branches: hidden.branches, tokens: hidden.blocks * BLOCK_TOKENS },
            sessions: count,
            names: sessions,
        };
    });
    const tokens = tree.blocks * BLOCK_TOKENS;
    return { at, nodes, tokens, detachedTokens: tree.detachedBlocks * BLOCK_TOKENS, complete: tree.complete };
}
//# sourceMappingURL=tree-view.js.map