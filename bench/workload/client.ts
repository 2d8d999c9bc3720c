// A streaming chat client for benches: one request, timed, with what the server says it reused. Works against Refrain and
// against llama-server, whose `timings` tell the same.

export interface Answer {
  readonly ttftMs: number
  readonly wallMs: number
  readonly promptTokens: number
  readonly completionTokens: number
  readonly working: number
  readonly memory: number
  readonly disk: number
  /** Prompt tokens that were computed. */
  readonly computed: number
  readonly text: string
}

export interface Ask {
  readonly url: string
  readonly messages: readonly unknown[]
  readonly maxTokens: number
  readonly session?: string
}

interface Chunk {
  readonly choices?: readonly { readonly delta?: { readonly content?: string } }[]
  readonly usage?: {
    readonly prompt_tokens: number
    readonly completion_tokens: number
    readonly prompt_tokens_details?: { readonly cached_tokens?: number }
  } | null
  readonly timings?: { readonly cache_n?: number; readonly prompt_n?: number }
  readonly error?: { readonly message: string }
}

export async function ask(asked: Ask): Promise<Answer> {
  let started = performance.now()
  let response: Response
  try {
    response = await sent(asked)
  } catch {
    // llama-server closes connections that idle for 5 s, just as they are used again now and then.
    started = performance.now()
    response = await sent(asked)
  }
  if (!response.ok || response.body === null) throw new Error(`${response.status} ${await response.text()}`)
  const tiers = parseTiers(response.headers.get('x-refrain-cache'))
  let [ttftMs, text] = [0, '']
  let usage: Chunk['usage']
  let timings: Chunk['timings']
  for await (const chunk of chunksOf(response.body)) {
    if (chunk.error) throw new Error(chunk.error.message)
    const content = chunk.choices?.[0]?.delta?.content
    if (content) {
      ttftMs ||= performance.now() - started
      text += content
    }
    usage = chunk.usage ?? usage
    timings = chunk.timings ?? timings
  }
  const promptTokens = usage?.prompt_tokens ?? 0
  // The header knows the tiers unless the prompt took longer than the status line waits; the usage always knows the sum.
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n ?? 0
  const { working = 0, disk = 0, memory = cached } = tiers
  return {
    ttftMs,
    wallMs: performance.now() - started,
    promptTokens,
    completionTokens: usage?.completion_tokens ?? 0,
    working,
    memory,
    disk,
    computed: timings?.prompt_n ?? promptTokens - cached,
    text,
  }
}

function sent({ url, messages, maxTokens, session }: Ask): Promise<Response> {
  return fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(session && { 'x-refrain-session': session }) },
    body: JSON.stringify({
      model: 'smollm2-135m-instruct',
      messages,
      max_tokens: maxTokens,
      temperature: 0,
      ignore_eos: true,
      stream: true,
      stream_options: { include_usage: true },
    }),
  })
}

async function* chunksOf(body: ReadableStream<Uint8Array>): AsyncGenerator<Chunk> {
  let rest = ''
  const decoder = new TextDecoder()
  for await (const bytes of body as unknown as AsyncIterable<Uint8Array>) {
    rest += decoder.decode(bytes, { stream: true })
    const lines = rest.split('\n')
    rest = lines.pop() as string
    for (const line of lines) {
      if (line.startsWith('data: ') && !line.startsWith('data: [DONE]')) yield JSON.parse(line.slice(6)) as Chunk
    }
  }
}

function parseTiers(header: string | null): Record<string, number | undefined> {
  const pairs = (header ?? '').split(',').map((part) => part.trim().split('='))
  return Object.fromEntries(pairs.filter(([key]) => key).map(([key, value]) => [key, Number(value)]))
}

/** The p-th percentile (0 to 100) by nearest rank. */
export function percentile(values: readonly number[], p: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil((p / 100) * sorted.length) - 1))] ?? Number.NaN
}

/** Runs every item of `lanes` lists at once, each list in order. */
export async function inLanes<T>(lists: readonly (readonly T[])[], lanes: number, each: (item: T) => Promise<void>) {
  const waiting = [...lists]
  const lane = async () => {
    for (let list = waiting.shift(); list !== undefined; list = waiting.shift())
      for (const item of list) await each(item)
  }
  await Promise.all(Array.from({ length: lanes }, lane))
}
