// Token buckets: how many requests and tokens a tenant may ask for in a minute. Invariant: what is refused takes nothing;
// an answer's tokens are only known when it is over and may leave a bucket in debt, which later requests wait for.

import { hash } from 'node:crypto'
import type { Clock } from '../core/clock.js'
import { RefrainError } from '../core/errors.js'
import type { GenerateEvent } from '../core/events.js'
import type { Level } from './news.js'
import type { SharedLimits } from './peers.js'

/** 0: no limit. */
export interface TenantLimit {
  readonly requestsPerMinute: number
  readonly tokensPerMinute: number
}

export interface TenantLimitsOptions {
  readonly all: TenantLimit
  /** Those that a tenant has of its own, by its name. */
  readonly own: ReadonlyMap<string, Partial<TenantLimit>>
  readonly clock: Clock
  /** Told of what is taken here, with a digest of the tenant's name, for others that hold the same limits. */
  readonly told?: ((tenant: string, requests: number, tokens: number) => void) | undefined
}

export interface TenantLimits {
  /** @throws RefrainError `rate_limited`, with the time until the request would be let in. */
  take(tenant: string, promptTokens: number): void
  /** What it turned out to be: the answer's tokens, and what the prompt's estimate was short of or too high. */
  settle(tenant: string, tokens: number): void
}

/** Limits that other processes count with: each lets in by what it knows, so that little more passes than is told late. */
export interface OpenLimits extends TenantLimits {
  readonly shared: SharedLimits
}

/** The limits of a config; undefined where nobody has any. */
export function limitsIn(
  { limits, tenants }: { readonly limits: TenantLimit; readonly tenants: readonly NamedLimit[] },
  clock: Clock,
  told?: TenantLimitsOptions['told'],
): OpenLimits | undefined {
  const { requestsPerMinute, tokensPerMinute } = limits
  const some = [limits, ...tenants].some((each) => (each.requestsPerMinute ?? 0) + (each.tokensPerMinute ?? 0) > 0)
  if (!some) return undefined
  const own = new Map(tenants.map((tenant) => [tenant.name, tenant]))
  return createTenantLimits({ all: { requestsPerMinute, tokensPerMinute }, own, clock, told })
}

interface NamedLimit extends Partial<TenantLimit> {
  readonly name: string
}

/** The events of an answer, whose tokens are settled when it is over, however it ends. */
export async function* metered(
  events: AsyncIterable<GenerateEvent>,
  settle: (tokens: number) => void,
): AsyncGenerator<GenerateEvent, void> {
  let tokens = 0
  try {
    for await (const event of events) {
      if (event.type === 'token') tokens += event.ids.length
      yield event
    }
  } finally {
    settle(tokens)
  }
}

const MINUTE_MS = 60_000
/** Tenants that only others have seen; there are as many as the config names, and one without a name. */
const MAX_UNSEEN = 16

function digestOf(tenant: string): string {
  return hash('sha256', `tenant\0${tenant}`, 'base64url').slice(0, 22)
}

interface Bucket {
  readonly size: number
  /** Below 0: in debt. */
  left: number
  filledAt: number
}

interface Buckets {
  /** Of the tenant's name; empty where nobody is told. */
  readonly digest: string
  readonly requests: Bucket | undefined
  readonly tokens: Bucket | undefined
}

export function createTenantLimits({ all, own, clock, told }: TenantLimitsOptions): OpenLimits {
  const tenants = new Map<string, Buckets>()
  /** Where there are others: names by their digests, and what was heard of tenants that were not seen here yet. */
  const names = new Map([...own.keys()].map((name) => [digestOf(name), name]))
  const unseen = new Map<string, Buckets>()

  const bucketOf = (size: number): Bucket | undefined =>
    size === 0 ? undefined : { size, left: size, filledAt: clock.now() }
  const bucketsOf = (tenant: string): Buckets => {
    const known = tenants.get(tenant)
    if (known !== undefined) return known
    const mine = own.get(tenant)
    const { requestsPerMinute = all.requestsPerMinute, tokensPerMinute = all.tokensPerMinute } = mine ?? all
    const digest = told === undefined ? '' : digestOf(tenant)
    const early = unseen.get(digest)
    unseen.delete(digest)
    const buckets = early ?? { requests: bucketOf(requestsPerMinute), tokens: bucketOf(tokensPerMinute), digest }
    tenants.set(tenant, buckets)
    return buckets
  }
  /** Of a tenant that others name. */
  const bucketsAt = (digest: string): Buckets => {
    const name = names.get(digest)
    if (name !== undefined) return bucketsOf(name)
    const known = unseen.get(digest) ?? [...tenants.values()].find((each) => each.digest === digest)
    if (known !== undefined) return known
    const buckets = {
      requests: bucketOf(all.requestsPerMinute),
      tokens: bucketOf(all.tokensPerMinute),
      digest,
    }
    if (unseen.size < MAX_UNSEEN) unseen.set(digest, buckets)
    return buckets
  }
  const fill = (bucket: Bucket) => {
    const now = clock.now()
    bucket.left = Math.min(bucket.size, bucket.left + ((now - bucket.filledAt) / MINUTE_MS) * bucket.size)
    bucket.filledAt = now
  }
  const spend = (bucket: Bucket, amount: number) => {
    fill(bucket)
    bucket.left = Math.min(bucket.size, bucket.left - amount)
  }
  const levelOf = ({ digest, requests, tokens }: Buckets): Level => {
    for (const bucket of [requests, tokens]) if (bucket !== undefined) fill(bucket)
    return [digest, requests?.left ?? null, tokens?.left ?? null]
  }
  /** Until `amount` is there; a request that is larger than the bucket passes when that is full. */
  const waitMs = (bucket: Bucket, amount: number) => {
    fill(bucket)
    const missing = Math.min(amount, bucket.size) - bucket.left
    return missing <= 0 ? 0 : Math.ceil((missing / bucket.size) * MINUTE_MS)
  }

  return {
    take(tenant, promptTokens) {
      const { requests, tokens, digest } = bucketsOf(tenant)
      const forRequest = requests === undefined ? 0 : waitMs(requests, 1)
      const forTokens = tokens === undefined ? 0 : waitMs(tokens, promptTokens)
      const retryAfterMs = Math.max(forRequest, forTokens)
      if (retryAfterMs > 0) {
        const which = forRequest >= forTokens ? `${requests?.size} requests` : `${tokens?.size} tokens`
        throw new RefrainError('rate_limited', `the tenant's ${which} a minute are used up`, { retryAfterMs })
      }
      if (requests !== undefined) requests.left -= 1
      if (tokens !== undefined) tokens.left -= promptTokens
      told?.(digest, 1, promptTokens)
    },
    settle(tenant, amount) {
      const { tokens, digest } = bucketsOf(tenant)
      if (tokens === undefined) return
      spend(tokens, amount)
      told?.(digest, 0, amount)
    },
    shared: {
      took(digest, ofRequests, ofTokens) {
        const { requests, tokens } = bucketsAt(digest)
        if (requests !== undefined) spend(requests, ofRequests)
        if (tokens !== undefined) spend(tokens, ofTokens)
      },
      levels: () => [...tenants.values(), ...unseen.values()].map(levelOf),
      lower(levels) {
        for (const [digest, ofRequests, ofTokens] of levels) {
          const { requests, tokens } = bucketsAt(digest)
          if (requests !== undefined && ofRequests !== null) requests.left = Math.min(requests.left, ofRequests)
          if (tokens !== undefined && ofTokens !== null) tokens.left = Math.min(tokens.left, ofTokens)
        }
      },
    },
  }
}
