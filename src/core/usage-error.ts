// A fault in what the user gave to a command: a flag, a file, a name. Invariant: the message names what was given and what
// would be right; the command line prints it as one line and exits with 2.

/** The user's to mend; the message is all that is shown. */
export class UsageError extends Error {
  override readonly name = 'UsageError'
}
