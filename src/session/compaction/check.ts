// Holds a summary against what it covers. What is missing of paths, ids and open tasks is added to it as a list; what cannot
// be mended so (a section is missing, it is empty, too much would have to be added) makes it fail. Pure.

import { type Facts, plain } from './facts.js'

/** In this order; a summary has them as headings. */
export const SECTIONS = ['Goal', 'Constraints', 'Decisions', 'Open tasks', 'References', 'Errors', 'Files'] as const

export interface Checked {
  /** Lines that the summary lacks. */
  readonly added: readonly string[]
  /** Sentences; empty: it passes. */
  readonly problems: readonly string[]
}

export function checkSummary(text: string, facts: Facts, addedChars: number): Checked {
  if (text.trim() === '') return { added: [], problems: ['the summary is empty'] }
  const has = headingsOf(text)
  const problems = SECTIONS.filter((section) => !has.has(plain(section))).map(
    (section) => `the summary has no section '${section}'`,
  )
  const words = ` ${plain(text)} `
  const missing = (names: readonly string[]) => names.filter((name) => !isNamed(name, text))
  const lines = [
    ...facts.tasks.filter((task) => !words.includes(` ${plain(task)} `)).map((task) => `open task: ${task}`),
    ...missing(facts.files).map((file) => `file: ${file}`),
    ...missing(facts.locators).map((locator) => `stored result: ${locator}`),
    ...missing(facts.names.filter((name) => !facts.files.includes(name))),
  ]
  const added = [...new Set(lines)]
  const chars = added.reduce((sum, line) => sum + line.length + 3, 0)
  if (chars > addedChars) {
    problems.push(
      `the summary lacks ${added.length} paths, ids and open tasks; their list has ${chars} characters, over ${addedChars}`,
    )
  }
  return { added, problems }
}

/** What lines begin with: marked as headings, or with a colon behind it. */
function headingsOf(text: string): ReadonlySet<string> {
  const headings = new Set<string>()
  for (const [, mark, words, colon] of text.matchAll(/^[ \t]*(#+|\*\*)?[ \t]*([\p{L} ]{2,40})(:|\*\*|$)?/gmu)) {
    if (mark !== undefined || colon === ':') headings.add(plain(words as string))
  }
  return headings
}

/** Whether `name` stands in `text` as a word of its own, and not as a piece of a longer one. */
function isNamed(name: string, text: string): boolean {
  for (let at = text.indexOf(name); at >= 0; at = text.indexOf(name, at + 1)) {
    const [before, after] = [text[at - 1] ?? ' ', text[at + name.length] ?? ' ']
    if (!/[\w]/.test(before) && !/[\w]/.test(after)) return true
  }
  return false
}
