// Publishes what the embedded engine's cache does, in the protocol of vLLM, so that other routers can follow it as they follow
// that: a PUB socket for batches, and a ROUTER that gives old ones again. Invariant: with no publisher nobody listens to
// blocks; a slow or silent subscriber costs it messages, never the engine a wait.

import { Publisher, Router } from 'zeromq'
import { type BlockPlaced, blockPlaced } from '../../core/signals.js'
import { PublishLog } from './publish-log.js'

/** Config `events`. */
export interface PublishOptions {
  /** Bound here: `tcp://127.0.0.1:5557`, `tcp://*:5557`. Whoever reaches it learns the token ids of all prompts. */
  readonly publish: string
  /** Bound here; undefined: nothing is given again. */
  readonly replay?: string
  readonly topic: string
  /** Batches that are kept to be given again, and their bytes. */
  readonly bufferSteps: number
  readonly bufferBytes: number
}

export interface BlockPublisher {
  /** Where it listens, with the ports that were found. */
  readonly endpoints: { readonly publish: string; readonly replay?: string }
  close(): Promise<void>
}

const HIGH_WATER = 100_000
const END = Buffer.alloc(8, 0xff)
const EMPTY = Buffer.alloc(0)

/** Listens to the signals of blocks from now on. @throws Error where an endpoint can't be bound. */
export async function publishBlocks(options: PublishOptions): Promise<BlockPublisher> {
  const { topic, bufferSteps: steps, bufferBytes: bytes } = options
  const pub = new Publisher({ sendHighWaterMark: HIGH_WATER, linger: 0 })
  const router = options.replay === undefined ? undefined : new Router({ sendHighWaterMark: HIGH_WATER, linger: 0 })
  try {
    await pub.bind(options.publish)
    await router?.bind(options.replay as string)
  } catch (fault) {
    pub.close()
    router?.close()
    throw new Error(`events: ${options.publish} can't be bound: ${(fault as Error).message}`, { cause: fault })
  }
  const log = new PublishLog({ steps, bytes, now: Date.now })
  const topicFrame = Buffer.from(topic)
  let sending = Promise.resolve()
  let isOpen = true
  let batch: BlockPlaced[] = []
  const flush = () => {
    const message = log.add(batch)
    batch = []
    if (message === undefined) return
    // One send at a time: a socket takes no second one before.
    sending = sending.then(async () => {
      if (isOpen) await pub.send([topicFrame, numbered(message.seq), message.payload])
    })
  }
  const unsubscribe = blockPlaced.subscribe((block) => {
    if (batch.push(block) === 1) setImmediate(flush)
  })
  if (router !== undefined) void answer(router, { log, topic: topicFrame, isOpen: () => isOpen })
  return {
    endpoints: {
      publish: pub.lastEndpoint as string,
      ...(router && { replay: router.lastEndpoint as string }),
    },
    async close() {
      unsubscribe()
      await sending
      isOpen = false
      pub.close()
      router?.close()
    },
  }
}

function numbered(seq: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64BE(BigInt(seq))
  return bytes
}

interface Answering {
  readonly log: PublishLog
  readonly topic: Buffer
  isOpen(): boolean
}

/** `[peer, '', from]` -> `[peer, '', topic, number, payload]` for each batch, then an end mark. */
async function answer(router: Router, { log, topic, isOpen }: Answering): Promise<void> {
  for await (const [peer, empty, from] of router) {
    if (peer === undefined || empty?.length !== 0 || from?.length !== 8) continue
    const first = from.readBigUInt64BE()
    for (const { seq, payload } of log.since(Number(first))) {
      if (!isOpen()) return
      if (!(await reply(router, [peer, EMPTY, topic, numbered(seq), payload]))) break
    }
    if (isOpen()) await reply(router, [peer, EMPTY, EMPTY, END, EMPTY])
  }
}

/** False: the peer has gone, or takes nothing more. */
async function reply(router: Router, frames: Buffer[]): Promise<boolean> {
  try {
    await router.send(frames)
    return true
  } catch (fault) {
    const { code } = fault as { code?: string }
    if (code === 'EHOSTUNREACH' || code === 'EAGAIN') return false
    throw fault
  }
}
