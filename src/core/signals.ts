// Names and payloads of what the program tells to whoever listens (node:diagnostics_channel). Publishing is free when
// nobody subscribes; telemetry is the only subscriber and never a parameter.

import { type Channel, channel } from 'node:diagnostics_channel'

export interface RequestSettled {
  readonly id: string
  readonly tenant: string
  readonly route: string
  readonly model: string
  readonly status: number
  readonly error?: string
  readonly promptTokens: number
  readonly completionTokens: number
  readonly working: number
  readonly memory: number
  readonly disk: number
  readonly computed: number
  readonly ttftMs?: number
  readonly durationMs: number
  readonly session?: string
}

export interface CacheMoved {
  readonly what: 'commit' | 'evict' | 'restore' | 'write' | 'corrupt' | 'collision' | 'dropped-write' | 'expired'
  readonly tier: 'memory' | 'disk'
  readonly blocks: number
  readonly bytes: number
  readonly durationMs?: number
}

export interface StepDone {
  readonly prefillTokens: number
  readonly decodeTokens: number
  readonly running: number
  readonly waiting: number
  readonly durationMs: number
}

export interface Note {
  readonly level: 'info' | 'warn' | 'error'
  readonly text: string
  readonly detail?: Readonly<Record<string, unknown>>
}

interface Signal<T> {
  readonly channel: Channel
  publish(payload: T): void
  subscribe(listener: (payload: T) => void): () => void
}

function signal<T>(name: string): Signal<T> {
  const inner = channel(`refrain:${name}`)
  return {
    channel: inner,
    publish(payload) {
      if (inner.hasSubscribers) inner.publish(payload)
    },
    subscribe(listener) {
      const wrapped = (payload: unknown) => listener(payload as T)
      inner.subscribe(wrapped)
      return () => inner.unsubscribe(wrapped)
    },
  }
}

export const requestSettled = signal<RequestSettled>('request-settled')
export const cacheMoved = signal<CacheMoved>('cache-moved')
export const stepDone = signal<StepDone>('step-done')
export const note = signal<Note>('note')
