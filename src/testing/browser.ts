// Chromium without a window, as Debian packages it, for tests of the page. Invariant: a fresh profile each time, no traffic
// but to the server under test, and a browser that ends with its test.

import { accessSync, constants, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type BrowserContext, chromium } from 'playwright-core'

const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]

/** The browser on the PATH; undefined: tests of the page are skipped. */
export const chromiumPath = (process.env['PATH'] ?? '')
  .split(delimiter)
  .flatMap((folder) => ['chromium', 'chromium-browser', 'google-chrome'].map((name) => join(folder, name)))
  .find(isExecutable)

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/** Where screenshots are left, for whoever looks at a run. */
export const SCREENSHOTS = fileURLToPath(new URL('../../build/screenshots/', import.meta.url))

export interface Browser {
  readonly context: BrowserContext
  close(): Promise<void>
}

export async function openBrowser(viewport = { width: 1280, height: 900 }): Promise<Browser> {
  if (chromiumPath === undefined) throw new Error('there is no chromium on the PATH')
  mkdirSync(SCREENSHOTS, { recursive: true })
  const profile = mkdtempSync(join(tmpdir(), 'refrain-chromium-'))
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: chromiumPath,
    args: FLAGS,
    viewport,
  })
  return {
    context,
    async close() {
      await context.close()
      rmSync(profile, { recursive: true, force: true, maxRetries: 3 })
    },
  }
}
