// The last line that CI reads: `N passed, N failed`, from the report that vitest leaves in build/vitest.json. No report
// means that the tests never ran: that counts as one failure, and so does a test command that failed for another reason.
//
//   node scripts/summary.mjs [exit status of the test command]     exits 1 unless everything passed

import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const REPORT = fileURLToPath(new URL('../build/vitest.json', import.meta.url))

function count(report) {
  // A file that does not even load is failed with no failed test in it.
  const brokenFiles = report.testResults.filter(
    (file) => file.status === 'failed' && !file.assertionResults.some((result) => result.status === 'failed'),
  )
  return {
    passed: report.numPassedTests,
    failed: report.numFailedTests + brokenFiles.length,
    skipped: report.numPendingTests + report.numTodoTests,
  }
}

const status = Number(process.argv[2] ?? 0)
const counted = existsSync(REPORT)
  ? count(JSON.parse(readFileSync(REPORT, 'utf8')))
  : { passed: 0, failed: 1, skipped: 0 }
// An error outside of all tests fails the run and no test.
const failed = counted.failed === 0 && status !== 0 ? 1 : counted.failed
process.stdout.write(
  `${counted.passed} passed, ${failed} failed${counted.skipped > 0 ? `, ${counted.skipped} skipped` : ''}\n`,
)
process.exitCode = failed > 0 ? 1 : 0
