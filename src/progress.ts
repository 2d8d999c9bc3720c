// Long work at a terminal: one bar that moves. Without a terminal it says nothing; the log has what came of it.

import { Presets, SingleBar } from 'cli-progress'

export interface ProgressBar {
  /** `total` undefined: nobody knows how much there is. */
  show(label: string, done: number, total: number | undefined): void
  /** Leaves the line as it is. */
  stop(): void
}

/** Draws on `stream`, which is stderr: stdout belongs to what a command answers. `unit`: bytes are shown as MB. */
export function createProgressBar(
  stream: NodeJS.WriteStream = process.stderr,
  unit: 'bytes' | 'requests' | 'runs' = 'bytes',
): ProgressBar {
  const format = `{label} [{bar}] {percentage}% | {done} of {all} ${unit === 'bytes' ? 'MB' : unit}`
  const shown = unit === 'bytes' ? megabytes : String
  let bar: SingleBar | undefined
  let current = ''
  const stop = () => {
    bar?.stop()
    bar = undefined
  }
  return {
    show(label, done, total) {
      if (!stream.isTTY) return
      if (label !== current) stop()
      const all = Math.max(total ?? done, 1)
      const payload = { label, done: shown(done), all: total === undefined ? '?' : shown(total) }
      if (bar === undefined) {
        current = label
        bar = new SingleBar({ format, stream, hideCursor: false, clearOnComplete: false }, Presets.rect)
        bar.start(all, done, payload)
      }
      bar.setTotal(all)
      bar.update(done, payload)
    },
    stop,
  }
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(1)
}
