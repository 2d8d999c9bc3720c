// The client package, `refrain/client`: sessions, turns whole and streamed, side questions, explanations. It imports nothing
// but itself; Node from 20 on, and browsers.

export type { Delta, Reply, TurnCallOptions, TurnOptions } from './chat.js'
export { type ClientCode, RefrainError } from './error.js'
export { Refrain, type RefrainOptions } from './refrain.js'
export { Session } from './session.js'
export type { CallOptions } from './transport.js'
export type * from './types.js'
