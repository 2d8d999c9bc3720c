// Chromium without a window, as Debian packages it, for tests of the page. Invariant: a fresh profile each time, no traffic
// but to the server under test, and a browser that ends with its test.

import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
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
export const chromiumPath = found('command -v chromium || command -v chromium-browser || command -v google-chrome')

function found(command: string): string | undefined {
  const { status, stdout } = spawnSync('sh', ['-c', command], { encoding: 'utf8' })
  return status === 0 ? stdout.trim() : undefined
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
