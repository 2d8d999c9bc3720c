// Numbers and times as people read them.

const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 })
const plain = new Intl.NumberFormat('en')
const minutes = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' })
const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit' })

/** @param {number} value */
export const count = (value) => (Math.abs(value) < 1000 ? plain.format(Math.round(value)) : compact.format(value))

/** @param {number} value */
export const exact = (value) => plain.format(value)

/** @param {number} part @param {number} whole */
export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : '–')

/** @param {number} bytes */
export function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  const step = bytes < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10))
  const value = bytes / 1024 ** step
  return `${value < 10 && step > 0 ? value.toFixed(1) : Math.round(value)} ${units[step]}`
}

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`
  const seconds = ms / 1000
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`
  return seconds < 86_400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`
}

/** @param {number} at @param {number} now */
export const ago = (at, now) => (now - at < 2000 ? 'now' : `${duration(Math.max(0, now - at))} ago`)

/** @param {number} at */
export const minute = (at) => minutes.format(at)

/** @param {number} at */
export const time = (at) => clock.format(at)

/** `tools_changed` -> `tools changed` @param {string} reason */
export const words = (reason) => reason.replaceAll('_', ' ')

/** @param {number} value @param {string} one @param {string} [many] */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`

/** @type {Record<string, string>} */
const PARTS = { working: 'working set' }

/** What people call where tokens came from; the backends of a fleet say what they had, not where. @param {string} part */
export function tierName(part) {
  if (part === 'memory' && document.body.classList.contains('fleet')) return 'had by a backend'
  return PARTS[part] ?? part
}
