// Puts a report on disk: one HTML file that needs nothing else, and the same as JSON beside it. Invariant: the page has no
// address of another file or server in it; text of traces and servers cannot become markup or script.

import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { UsageError } from '../core/usage-error.js'
import type { Report } from './report.js'

/** `path` must end with .html; returns where the JSON is. @throws UsageError. */
export function writeReport(path: string, report: Report): string {
  checkReportPath(path)
  const json = path.replace(/\.html?$/i, '.json')
  try {
    writeFileSync(path, pageOf(report))
    writeFileSync(json, `${JSON.stringify(report, undefined, 2)}\n`)
  } catch (error) {
    throw new UsageError(`--report: ${path} cannot be written: ${(error as Error).message}`)
  }
  return json
}

/** @throws UsageError. */
export function checkReportPath(path: string): void {
  if (!/\.html?$/i.test(path))
    throw new UsageError(`--report: '${path}' must end with .html; the JSON is written beside it`)
  // Said now, not at the end of a long run.
  if (!existsSync(dirname(path))) throw new UsageError(`--report: there is no folder ${dirname(path)}`)
}

/** The page as one text. */
export function pageOf(report: Report): string {
  const plot = createRequire(import.meta.url).resolve('uplot/dist/uPlot.iife.min.js')
  const beside = (name: string) => readFileSync(fileURLToPath(new URL(name, import.meta.url)), 'utf8')
  // Inside of a script nothing but `<` can end it or begin another.
  const data = JSON.stringify(report).replaceAll('<', '\\u003c')
  const style = readFileSync(plot.replace(/uPlot\.iife\.min\.js$/, 'uPlot.min.css'), 'utf8') + beside('page.css')
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="content-security-policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>${escaped(report.title)}</title>
<style>${style}</style>
</head>
<body>
${beside('page.html')}
<script type="application/json" id="report">${data}</script>
<script>${readFileSync(plot, 'utf8')}</script>
<script>${beside('page.js')}</script>
</body>
</html>
`
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
}
