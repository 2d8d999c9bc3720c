// The ZeroMQ side of following: a SUB socket that hears batches, and a DEALER that asks for old ones. With the publisher's own
// (publisher-sockets.ts) the only place that knows ZeroMQ. Invariant: frames of any shape are taken or left out, never an error; connections
// come back by themselves, in growing intervals.

import { Dealer, Subscriber } from 'zeromq'
import type { ReplaySource } from './event-stream.js'

export interface SubscriptionOptions {
  readonly endpoint: string
  /** The publisher connects here. */
  readonly bind: boolean
  readonly topic: string
}

export interface SubscriptionHearing {
  connected(): void
  disconnected(): void
  message(seq: number, payload: Uint8Array): void
  /** A message that is no batch. */
  stray(): void
}

const RECONNECT_MS = 100
const MAX_RECONNECT_MS = 5000
const HEARTBEAT_MS = 5000
const HEARTBEAT_TIMEOUT_MS = 15_000
/** What engines queue at their end (SNDHWM); beyond it messages are lost, which the stream sees as a gap. */
const HIGH_WATER = 100_000
/** Of one frame; a batch of a 1M-token prefill has 5 MB. */
const MAX_FRAME_BYTES = 64 * 1024 * 1024
/** Work on messages before others have their turn. */
const TURN_MS = 4
/** Silence of a replay after which it has failed. */
const REPLAY_MS = 5000
/** Of the last batches' end mark: -1. */
const END = 0xffffffffffffffffn

/** @throws Error where the endpoint can't be bound or is no address. */
export async function subscribe(options: SubscriptionOptions, hearing: SubscriptionHearing): Promise<() => void> {
  const socket = new Subscriber({
    receiveHighWaterMark: HIGH_WATER,
    maxMessageSize: MAX_FRAME_BYTES,
    reconnectInterval: RECONNECT_MS,
    reconnectMaxInterval: MAX_RECONNECT_MS,
    heartbeatInterval: HEARTBEAT_MS,
    heartbeatTimeout: HEARTBEAT_TIMEOUT_MS,
    linger: 0,
  })
  const { events } = socket
  events.on('handshake', () => hearing.connected())
  events.on('disconnect', () => hearing.disconnected())
  socket.subscribe(options.topic)
  if (options.bind) await socket.bind(options.endpoint)
  else socket.connect(options.endpoint)
  let isOpen = true
  void pump(socket, hearing, () => isOpen)
  return () => {
    isOpen = false
    socket.close()
  }
}

async function pump(socket: Subscriber, hearing: SubscriptionHearing, isOpen: () => boolean): Promise<void> {
  let turnStart = performance.now()
  while (isOpen()) {
    let frames: Buffer[]
    try {
      frames = await socket.receive()
    } catch (fault) {
      if (!isOpen()) return
      throw fault
    }
    const message = batchOf(frames)
    if (message === undefined) hearing.stray()
    else hearing.message(message.seq, message.payload)
    if (performance.now() - turnStart < TURN_MS) continue
    await new Promise((resolve) => setImmediate(resolve))
    turnStart = performance.now()
  }
}

/** `[topic, seq, payload]`, or without the topic. */
function batchOf(frames: readonly Buffer[]): { seq: number; payload: Buffer } | undefined {
  const [payload, number] = [frames.at(-1), frames.at(-2)]
  if (payload === undefined || number?.length !== 8 || frames.length > 3) return undefined
  const seq = number.readBigUInt64BE()
  return seq > BigInt(Number.MAX_SAFE_INTEGER) ? undefined : { seq: Number(seq), payload }
}

/** Every question has a socket of its own: what is left of an answer that was given up can't mix with the next one. */
export function createReplay(endpoint: string, timeoutMs = REPLAY_MS): ReplaySource {
  return {
    async ask(from, take) {
      const socket = new Dealer({
        receiveHighWaterMark: 0,
        receiveTimeout: timeoutMs,
        sendTimeout: timeoutMs,
        linger: 0,
      })
      try {
        socket.connect(endpoint)
        const number = Buffer.alloc(8)
        number.writeBigUInt64BE(BigInt(from))
        await socket.send([Buffer.alloc(0), number])
        return await hear(socket, take)
      } catch (fault) {
        if (isTimeout(fault)) return 'failed'
        throw fault
      } finally {
        socket.close()
      }
    },
  }
}

async function hear(
  socket: Dealer,
  take: (seq: number, payload: Uint8Array) => boolean,
): Promise<'end' | 'stopped' | 'failed'> {
  let turnStart = performance.now()
  while (true) {
    const frames = await socket.receive()
    // The delimiter, then the batch as it was published, or without its topic (before vLLM 0.26, SGLang).
    const parts = frames[0]?.length === 0 && frames.length > 2 ? frames.slice(1) : frames
    if (parts.at(-2)?.length === 8 && parts.at(-2)?.readBigUInt64BE() === END) return 'end'
    const message = batchOf(parts)
    if (message === undefined) return 'failed'
    if (!take(message.seq, message.payload)) return 'stopped'
    if (performance.now() - turnStart < TURN_MS) continue
    await new Promise((resolve) => setImmediate(resolve))
    turnStart = performance.now()
  }
}

/** EAGAIN: nothing came in the socket's time. */
function isTimeout(fault: unknown): boolean {
  return fault instanceof Error && (fault as { code?: string }).code === 'EAGAIN'
}
