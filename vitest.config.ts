import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'

/** Files of half a minute and more, longest first: at the end of a run nobody waits for one of them alone. */
const LONG = [
  'src/soak',
  'src/program',
  'src/followed',
  'src/compose-cluster',
  'src/tool-choice',
  'src/compose-cluster-caches',
  'src/dashboard/page',
  'src/quick/quick-model',
  'src/main',
  'src/engine/grammar',
  'src/model/graph/smollm2',
  'src/replay/live',
  'src/sessions-program',
].map((name) => fileURLToPath(new URL(`${name}.test.ts`, import.meta.url)))

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const place = ({ moduleId }: TestSpecification) => (LONG.includes(moduleId) ? LONG.indexOf(moduleId) : LONG.length)
    return (await super.sort(files)).sort((a, b) => place(a) - place(b))
  }
}

// Two workers fit the two cores that CI has; with three, tests that start programs run into their limits. They load our
// modules once for all of their files, a quarter of the whole otherwise: a file leaves nothing behind in modules or in the
// process. Nothing is tried again. scripts/summary.mjs reads the JSON report.
export default defineConfig({
  // What examples import, as it stands in src/ and not as it was built.
  resolve: { alias: { 'refrain/client': fileURLToPath(new URL('src/client/index.ts', import.meta.url)) } },
  test: {
    include: ['src/**/*.test.ts'],
    maxWorkers: 2,
    isolate: false,
    sequence: { sequencer: LongestFirst },
    globalSetup: ['src/testing/run-folder.ts'],
    testTimeout: 60_000,
    hookTimeout: 120_000,
    // Tests that start programs share the cores with whatever else runs.
    expect: { poll: { timeout: 30_000 } },
    pool: 'forks',
    reporters: ['default', 'json'],
    outputFile: { json: 'build/vitest.json' },
  },
})
