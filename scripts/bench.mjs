// `npm run bench -- NAME [args]`: builds, then runs bench/NAME.ts. Without a name: the list, with each one's question.

import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from './build.mjs'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const [name, ...args] = process.argv.slice(2)
const known = readdirSync(join(ROOT, 'bench'), { recursive: true })
  .map(String)
  .filter((file) => file.endsWith('.ts') && !file.startsWith('workload'))
  .map((file) => file.slice(0, -3))
  .sort()

if (name === undefined || !known.includes(name)) {
  if (name !== undefined) process.stderr.write(`bench: there is no '${name}'\n`)
  for (const each of known) {
    const first = readFileSync(join(ROOT, 'bench', `${each}.ts`), 'utf8')
      .split('\n')[0]
      .replace(/^\/\/ ?/, '')
    process.stdout.write(`${each.padEnd(20)} ${first}\n`)
  }
  process.exit(name === undefined ? 0 : 2)
}
if (!(await build())) process.exit(1)
const tsc = join(ROOT, 'node_modules', 'typescript', 'bin', 'tsc')
const compiled = spawnSync(process.execPath, [tsc, '-p', join(ROOT, 'tsconfig.bench.json')], {
  stdio: ['ignore', 2, 2],
})
if (compiled.status !== 0) process.exit(1)
const script = join(ROOT, 'build', 'bench-js', 'bench', `${name}.js`)
const run = spawnSync(process.execPath, ['--expose-gc', script, ...args], { stdio: 'inherit', cwd: ROOT })
process.exit(run.status ?? 1)
