// `npm start`: builds what is out of date, then serves in this very process, so that a signal meant for the server
// reaches it. `npm start -- --port 9000` passes flags to `refrain serve`; with --cli first (`npm run refrain -- pull NAME`)
// the arguments are the command line as it is.

import { fileURLToPath } from 'node:url'
import { build } from './build.mjs'

const args = process.argv.slice(2)
const main = fileURLToPath(new URL('../dist/main.js', import.meta.url))

if (await build()) {
  process.argv.splice(1, process.argv.length, main, ...(args[0] === '--cli' ? args.slice(1) : ['serve', ...args]))
  await import(main)
} else {
  process.exitCode = 1
}
