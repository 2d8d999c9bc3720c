// The page's files, read once when the first is asked for. Invariant: what is served are the files of one folder and two of
// uPlot's, by their names; a path is looked up, never joined.
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
const TYPES = {
    '.html': 'text/html; charset=utf-8',
    '.js': 'text/javascript; charset=utf-8',
    '.css': 'text/css; charset=utf-8',
    '.svg': 'image/svg+xml',
};
const INDEX = 'index.html';
/** By path below /dashboard; '' is the page itself. */
export function readAssets() {
    const page = fileURLToPath(new URL('./page/', import.meta.url));
    const uplot = join(dirname(createRequire(import.meta.url).resolve('uplot/package.json')), 'dist');
    const files = [
        ...readdirSync(page).map((name) => [name === INDEX ? '' : name, join(page, name)]),
        ...['uPlot.iife.min.js', 'uPlot.min.css'].map((name) => [name, join(uplot, name)]),
    ];
    return new Map(files.flatMap(([name, path]) => asset(name, path)));
}
function asset(name, path) {
    const type = TYPES[extname(path)];
    if (type === undefined)
        return [];
    const bytes = readFileSync(path);
    const etag = `"${createHash('sha256').update(bytes).digest('hex').slice(0, 20)}"`;
    return [[name, { type, etag, bytes, gzip: gzipSync(bytes) }]];
}
//# sourceMappingURL=assets.js.map