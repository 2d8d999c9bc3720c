import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'

// Two workers fit the two cores that CI has; with three, tests that start programs run into their limits. scripts/summary.mjs reads
// the JSON report.
export default defineConfig({
  // What examples import, as it stands in src/ and not as it was built.
  resolve: { alias: { 'refrain/client': fileURLToPath(new URL('src/client/index.ts', import.meta.url)) } },
  test: {
    include: ['src/**/*.test.ts'],
    maxWorkers: 2,
    // Tests that start programs share the cores with whatever else runs: what fails twice has failed.
    retry: 1,
    testTimeout: 60_000,
    hookTimeout: 120_000,
    pool: 'forks',
    reporters: ['default', 'json'],
    outputFile: { json: 'build/vitest.json' },
  },
})
