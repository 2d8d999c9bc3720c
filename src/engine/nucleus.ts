// Draws a token from logits that temperature, top_k, top_p and min_p shape, without sorting the vocabulary. Invariant:
// the candidates are the exact ones (of equal logits the lower id is in first); only weights are approximated, to 1e-8.
//
//   distance = (best - logit) / temperature, counted in 1/64 nats; whole ones are buckets
//   |  0 |  1 |  2 | ... |  b  | ... | 511 | ...                    | 5631 |  from 88 nats on (1e-38): never drawn
//    whole buckets stay   ^ the cut: sorted  ^ near: enough for most a top_k

const STEPS = 64
const RANGE = 88
const BUCKETS = STEPS * RANGE
const NEAR = STEPS * 8
const BLOCK = 512

const EXP = Float64Array.from({ length: BUCKETS }, (_, i) => Math.exp(-i / STEPS))

// Scratch of one call; calls are synchronous and never nest.
const counts = new Int32Array(BUCKETS)
const masses = new Float64Array(BUCKETS)
const blockMasses: number[] = []
let ids = new Int32Array(0)
let distances = new Float64Array(0)
let keys = new Float64Array(0)

/** `topK` 0, `topP` 1 and `minP` 0 are off. Applied in this order; min_p compares with the best token. */
export interface Truncation {
  readonly topK: number
  readonly topP: number
  readonly minP: number
}

/** `best` is the largest logit; `inverse` is 1 / temperature, finite. */
export interface Scale {
  readonly best: number
  readonly inverse: number
}

/** exp(-distance), `0 <= distance < BUCKETS`: a table and three terms of the series for the rest. */
function weightOf(distance: number): number {
  const bucket = distance | 0
  const rest = (distance - bucket) * (1 / STEPS)
  return EXP[bucket]! * (1 - rest * (1 - rest * (0.5 - rest * (1 / 6))))
}

/**
 * The id that `random` in [0, 1) falls on. Logits may be -Infinity: never drawn. At least the best token has a weight,
 * so there always is an answer.
 */
export function drawToken(logits: Float32Array, scale: Scale, truncation: Truncation, random: number): number {
  const topK = truncation.topK > 0 && truncation.topK < logits.length ? truncation.topK : 0
  if (topK === 1) return logits.indexOf(scale.best)
  if (topK === 0 && truncation.topP >= 1 && truncation.minP <= 0) return drawAny(logits, scale, random)
  reserve(logits.length)
  const furthest = truncation.minP > 0 ? Math.max(0, -Math.log(truncation.minP) * STEPS) : BUCKETS
  if (topK > 0) return drawCandidate(takeBoth(logits, scale, topK, truncation.topP), furthest, random)
  if (truncation.topP < 1) return drawCandidate(takeMass(logits, scale, truncation.topP), furthest, random)
  return drawCandidate(collect(logits, scale, furthest), furthest, random)
}

/** Natural logarithm of the sum of all exponentials; `best` is the largest logit. */
export function logSumExp(logits: Float32Array, best: number): number {
  return best + Math.log(massOf(logits, { best, inverse: 1 }))
}

/** No truncation: masses of blocks, then the block that `random` falls into again. */
function drawAny(logits: Float32Array, scale: Scale, random: number): number {
  const { best } = scale
  const inverse = scale.inverse * STEPS
  const blocks = Math.ceil(logits.length / BLOCK)
  let total = 0
  for (let block = 0; block < blocks; block++) {
    const mass = massOf(logits.subarray(block * BLOCK, (block + 1) * BLOCK), scale)
    blockMasses[block] = mass
    total += mass
  }
  let left = random * total
  let block = 0
  while (block < blocks - 1 && left >= blockMasses[block]!) left -= blockMasses[block++]!
  let last = -1
  for (let id = block * BLOCK; id < logits.length; id++) {
    const distance = (best - logits[id]!) * inverse
    if (!(distance < BUCKETS)) continue
    last = id
    left -= weightOf(distance)
    if (left < 0) return id
  }
  // Rounding left a crumb past the last token.
  return last >= 0 ? last : logits.indexOf(best)
}

/** Draws among the first `count` candidates that are not further than `furthest`. */
function drawCandidate(count: number, furthest: number, random: number): number {
  let total = 0
  for (let i = 0; i < count; i++) if (distances[i]! <= furthest) total += weightOf(distances[i]!)
  let left = random * total
  let last = 0
  for (let i = 0; i < count; i++) {
    if (distances[i]! > furthest) continue
    last = i
    left -= weightOf(distances[i]!)
    if (left < 0) break
  }
  return ids[last]!
}

/** Makes candidates of all tokens that are not further than `limit`; returns how many. */
function collect(logits: Float32Array, scale: Scale, limit: number): number {
  const { best } = scale
  const inverse = scale.inverse * STEPS
  let count = 0
  for (let id = 0; id < logits.length; id++) {
    const distance = (best - logits[id]!) * inverse
    if (distance > limit || distance >= BUCKETS) continue
    ids[count] = id
    distances[count++] = distance
  }
  return count
}

function massOf(logits: Float32Array, scale: Scale): number {
  const { best } = scale
  const inverse = scale.inverse * STEPS
  let mass = 0
  for (let id = 0; id < logits.length; id++) {
    const distance = (best - logits[id]!) * inverse
    if (distance < BUCKETS) mass += weightOf(distance)
  }
  return mass
}

/** top_p of the whole vocabulary: candidates are the fewest best tokens that have that share of the mass. */
function takeMass(logits: Float32Array, scale: Scale, topP: number): number {
  const { best } = scale
  const inverse = scale.inverse * STEPS
  masses.fill(0)
  let total = 0
  for (let id = 0; id < logits.length; id++) {
    const distance = (best - logits[id]!) * inverse
    if (!(distance < BUCKETS)) continue
    const weight = weightOf(distance)
    masses[distance | 0]! += weight
    total += weight
  }
  const target = total * topP
  const { bucket, before } = bucketOf(target)
  const count = collect(logits, scale, bucket + 1)
  return cutMass(divide(logits, scale, count, bucket), count, before, target)
}

/** top_k, then top_p of what it leaves. */
function takeBoth(logits: Float32Array, scale: Scale, topK: number, topP: number): number {
  let count = collect(logits, scale, NEAR)
  if (count < topK) count = collect(logits, scale, bucketOfCount(logits, scale, topK) + 1)
  if (count > topK) count = cutCount(logits, scale, count, topK)
  if (topP >= 1) return count
  masses.fill(0)
  let total = 0
  for (let i = 0; i < count; i++) {
    const weight = weightOf(distances[i]!)
    masses[distances[i]! | 0]! += weight
    total += weight
  }
  const target = total * topP
  const { bucket, before } = bucketOf(target)
  return cutMass(divide(logits, scale, count, bucket), count, before, target)
}

/** Leaves the `wanted` best of `count` candidates. */
function cutCount(logits: Float32Array, scale: Scale, count: number, wanted: number): number {
  counts.fill(0)
  for (let i = 0; i < count; i++) counts[distances[i]! | 0]!++
  let bucket = 0
  let before = 0
  while (before + counts[bucket]! < wanted) before += counts[bucket++]!
  divide(logits, scale, count, bucket)
  return wanted
}

/** The bucket in which the `wanted`-th best token lies; the last one when there are fewer. */
function bucketOfCount(logits: Float32Array, scale: Scale, wanted: number): number {
  const { best } = scale
  const inverse = scale.inverse * STEPS
  counts.fill(0)
  for (let id = 0; id < logits.length; id++) {
    const distance = (best - logits[id]!) * inverse
    if (distance < BUCKETS) counts[distance | 0]!++
  }
  let bucket = 0
  let before = 0
  while (bucket < BUCKETS - 1 && before + counts[bucket]! < wanted) before += counts[bucket++]!
  return bucket
}

/** The bucket in which the mass reaches `target`, and the mass before it. */
function bucketOf(target: number): { bucket: number; before: number } {
  let bucket = 0
  let before = 0
  while (bucket < BUCKETS - 1 && before + masses[bucket]! < target) before += masses[bucket++]!
  return { bucket, before }
}

/** Adds sorted candidates from `kept` on until the mass reaches `target`; returns how many of `count` that are: at least one. */
function cutMass(kept: number, count: number, before: number, target: number): number {
  let mass = before
  let end = kept
  while (end < count && (end === 0 || mass < target)) mass += weightOf(distances[end++]!)
  return end
}

const ID_SPAN = 2 ** 21
const float = new Float32Array(1)
const bits = new Uint32Array(float.buffer)

/** Moves candidates of lower buckets to the front and those of `bucket`, sorted, behind them; returns where these start. */
function divide(logits: Float32Array, scale: Scale, count: number, bucket: number): number {
  let below = 0
  let inside = 0
  for (let i = 0; i < count; i++) {
    const of = distances[i]! | 0
    const id = ids[i]!
    if (of < bucket) {
      ids[below] = id
      distances[below++] = distances[i]!
    } else if (of === bucket) {
      // The float's bits, turned so that a larger logit is a smaller integer; 32 bits above the id's 21 fit a double.
      float[0] = logits[id]! + 0
      const raw = bits[0]!
      keys[inside++] = (raw >= 0x80000000 ? raw : 0x7fffffff - raw) * ID_SPAN + id
    }
  }
  keys.subarray(0, inside).sort()
  for (let i = 0; i < inside; i++) {
    const id = keys[i]! % ID_SPAN
    ids[below + i] = id
    distances[below + i] = (scale.best - logits[id]!) * scale.inverse * STEPS
  }
  return below
}

function reserve(size: number): void {
  if (size > ID_SPAN) throw new Error(`the sampler holds vocabularies of up to ${ID_SPAN} tokens, not ${size}`)
  if (ids.length >= size) return
  ids = new Int32Array(size)
  distances = new Float64Array(size)
  keys = new Float64Array(size)
}
