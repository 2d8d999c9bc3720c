// What the page is told and by whom: the sources that a composition root joins, and the face that routes answer from.
// Invariant: whoever looks sees its own tenant, an admin all; counts, names and sentences only, never a prompt's text.
export const SERIES_FIELDS = [
    'at',
    'requests',
    'failed',
    'working',
    'memory',
    'disk',
    'computed',
    'generated',
    'ttftSumMs',
    'ttftCount',
    // For admins: blocks that moved, and bytes that tiers held, null where nobody looked.
    'evictedMemory',
    'evictedDisk',
    'written',
    'restored',
    'workingBytes',
    'memoryBytes',
    'diskBytes',
];
//# sourceMappingURL=contract.js.map