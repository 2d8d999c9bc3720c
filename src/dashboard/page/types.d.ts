// What the page is told, in the spelling of the wire (api/dashboard-routes.ts, api/explain-routes.ts), and what scripts in
// the head leave behind. For the checker alone.

type TierName = 'working' | 'memory' | 'disk'

interface Session {
  session: string
  tenant: string
  by_content: boolean
  turns: number
  at: number
  prompt_tokens: number
  reused_tokens: number
  missed_tokens: number
  repeats: { reason: string; changed: number; sentence: string }[]
}

interface Turn {
  turn: number
  request_id: string
  at: number
  request_class: string
  model: string
  backend: string
  status: 'running' | 'done' | 'failed'
  prompt_tokens: number
  completion_tokens: number
  cache?: Record<TierName | 'computed', number>
  miss?: { reason: string; missed_tokens: number; sentence: string }
}

interface Difference {
  token: number
  byte: number
  message?: { index: number; role: string; part: string; byte: number; change: string }
  tools?: { name: string; change: string; index: number }[]
  whitespace?: true
  before?: string
  after?: string
}

/** Of /v1/sessions/{id}/turns/{n}/explain. */
interface Explanation {
  turn: number
  id: string
  model: string
  backend: string
  template: string
  class: string
  prompt_tokens: number
  committed_tokens: number
  miss: null | {
    reason: string
    missed_tokens: number
    sentence: string
    compared_with: number | null
    difference?: Difference
    causes: { reason: string; missed_tokens: number }[]
    repeats?: { sentence: string }
  }
  segments: {
    kind: 'tool' | 'system' | 'message'
    index: number
    role?: string
    name?: string
    digest: string
    bytes: number
    byte_at?: number
    token_at?: number
    tokens?: number
  }[]
}

interface Tier {
  tier: TierName
  used_bytes: number
  capacity_bytes: number
  blocks?: number
  slots?: number
  used_slots?: number
  hits?: number
  misses?: number
  evicted_blocks?: number
  pinned_blocks?: number
  pending_writes?: number
  healthy?: boolean
  complaint?: string
  read_rate?: number
  write_rate?: number
}

interface Backend {
  id: string
  kind: string
  state: string
  notes: string[]
  models: string[]
  running: number
  waiting: number
  queued_prefill_tokens?: number
  sessions?: number
  knowledge?: string
  prediction_error?: number
  capacity_tokens?: number
  overlap?: { requests: number; prompt_tokens: number; predicted_tokens: number; cached_tokens: number }
}

interface QuickTally {
  task: string
  form: string
  answered: number
  failed: number
  prompt_tokens: number
  completion_tokens: number
  last_error?: string
}

interface Alarm {
  at: number
  tenant: string
  session?: string
  kind: string
  sentence: string
}

interface Feed {
  cursor: string
  reset: boolean
  at: number
  watched_since: number
  server: {
    version: string
    kind: 'engine' | 'fleet'
    models: string[]
    processes: number
    explains: boolean
    has_tree: boolean
  }
  missing: string[]
  viewer: { tenant: string; admin: boolean }
  bucket_ms: number
  series: (number | null)[][]
  sessions: Session[]
  gone: { tenant: string; session: string }[]
  quick: QuickTally[]
  alarms: Alarm[]
  cache?: { tiers: Tier[]; block_bytes: number; block_tokens: number; pins: number }
  backends?: Backend[]
}

interface TreeNode {
  id: string
  parent?: string
  tenant?: string
  from: number
  tokens: number
  tiers: { tier: TierName; tokens: number }[]
  uses: number
  below_tokens: number
  hidden: { branches: number; tokens: number }
  sessions: number
  names: string[]
}

interface TreePage {
  at: number
  nodes: TreeNode[]
  tokens: number
  detached_tokens: number
  complete: boolean
}

/** A part of the page. */
interface View {
  readonly element: HTMLElement
  /** Draws what is known now; called when it has changed and the part can be seen. */
  update(): void
  /** The colours have changed. */
  recolour?(): void
}

declare var refrainTheme: { isDark(): boolean; toggle(): boolean }
declare var uPlot: typeof import('uplot').default
