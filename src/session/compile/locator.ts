// Names of results that stand in the log: what a placeholder gives a model to read on with, where nothing was spilled.
// Invariant: a position names the same result in a session and in all of its forks.

const AT = /^event-([1-9]\d{0,14})$/

/** The locator of the result whose event is at `position`. */
export function locatorAt(position: number): string {
  return `event-${position}`
}

/** Position of the event that `locator` names; undefined: it names something in the result store, or nothing. */
export function positionOf(locator: string): number | undefined {
  const digits = AT.exec(locator)?.[1]
  return digits === undefined ? undefined : Number(digits)
}
