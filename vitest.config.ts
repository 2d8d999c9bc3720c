import { defineConfig } from 'vitest/config'

// Two workers fit the two cores that CI has; the real model's tests take most of a minute each. scripts/summary.mjs reads
// the JSON report.
export default defineConfig({
  test: {
    include: ['src/**/*.test.ts'],
    maxWorkers: 2,
    testTimeout: 60_000,
    hookTimeout: 120_000,
    pool: 'forks',
    reporters: ['default', 'json'],
    outputFile: { json: 'build/vitest.json' },
  },
})
