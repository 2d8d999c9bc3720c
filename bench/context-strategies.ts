// What do ways of keeping a context short save, cost and lose, on the textbook case, tau-airline and recorded coding agents?
// Ceiling: none; append-only behind a prefix cache is the baseline, and what a cache saves on it is the yardstick.
//
//   npm run bench -- context-strategies [share of what a conversation grows by that its window has, default 0.5]
//
// Nothing is generated and nothing is timed: conversations are played through the log, the compiler and the plan
// (src/testing/context-play.ts), tokens are a fourth of the characters, a cache has whole blocks of 64 tokens of everything
// that the same conversation sent before. Prices of a token of input: 1 plain, 1.25 computed and kept, 0.1 read. Summaries are
// empty, so what is left of the history is what the check adds; their requests are counted. Conversations of
// tau-airline are played eight in a row as one session. The window of each
// conversation holds its first prompt and a share of what it grows by, so that there is something to shorten. Recordings of coding agents have
// counts of tokens only: their texts are made up, and what is lost can be said in tokens, not in names.

import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageModels } from '../src/model/card.js'
import type { EventBody } from '../src/session/log/event.js'
import { type Play, type Played, type PlayStrategy, playContext } from '../src/testing/context-play.js'
import {
  countedPlays,
  messagesPlay,
  type PlainMessage,
  STRATEGIES,
  TOKEN_CHARS,
  textbook,
} from '../src/testing/context-plays.js'
import { readClaudeCode } from '../src/trace/claude-code.js'

const share = Number(process.argv[2] ?? 0.5)
const DATA = join(packageModels(), '..', '..', 'shared', 'data')
/** Shorter conversations have nothing to shorten. */
const MIN_STEPS = 6
/** Prompts of the longest recordings make minutes of compiling. */
const MAX_TOKENS = 20_000_000

const countTokens = (text: string) => Math.ceil(text.length / TOKEN_CHARS)

/** One conversation is too short to need shortening: so many in a row are one. */
const IN_A_ROW = 8

function tau(): Play[] {
  const rows = readFileSync(join(DATA, 'tau-airline', 'sessions_40.jsonl'), 'utf8')
    .trim()
    .split('\n')
  const plays = rows.map((row) => messagesPlay((JSON.parse(row) as { messages: PlainMessage[] }).messages))
  const groups = Array.from({ length: Math.ceil(plays.length / IN_A_ROW) }, (_, i) =>
    plays.slice(i * IN_A_ROW, (i + 1) * IN_A_ROW),
  )
  return groups.map((group) => ({ head: group[0]?.head ?? [], steps: group.flatMap(({ steps }) => steps) }))
}

function recorded(): Play[] {
  const folder = join(DATA, 'claude-code-traces')
  const files = readdirSync(folder).filter((file) => file.endsWith('.json'))
  return files.flatMap((file) => {
    const { requests } = readClaudeCode(JSON.parse(readFileSync(join(folder, file), 'utf8')), file)
    const sessions = new Map<string, (typeof requests)[number][]>()
    for (const request of requests) {
      const session = request.session ?? ''
      sessions.set(session, [...(sessions.get(session) ?? []), request])
    }
    return [...sessions.values()].flatMap((list) => countedPlays(list, list[0]?.headTokens ?? 1000))
  })
}

const tokensOf = (events: readonly EventBody[]) => countTokens(events.map((body) => JSON.stringify(body)).join(''))

/** Tokens of the longest prompt that only grows. */
function longest({ head, steps }: Play): number {
  return tokensOf([...head, ...steps.flatMap(({ said, answer }) => [...said, ...answer])])
}

function windowOf(play: Play): number {
  const first = tokensOf([...play.head, ...(play.steps[0]?.said ?? [])])
  return Math.round(first + share * (longest(play) - first))
}

function sum(all: readonly Played[]): Played {
  return all.reduce((a, b) => {
    const keys = Object.keys(a) as (keyof Played)[]
    return Object.fromEntries(keys.map((key) => [key, a[key] + b[key]])) as unknown as Played
  })
}

async function played(plays: readonly Play[], strategy: PlayStrategy): Promise<Played> {
  const all: Played[] = []
  for (const play of plays) all.push(await playContext(play, strategy, { window: windowOf(play), countTokens }))
  return sum(all)
}

const sets: [string, Play[]][] = [['textbook', [textbook()]]]
if (existsSync(DATA)) sets.push(['tau-airline', tau()], ['coding agents', recorded()])
else process.stderr.write('recordings lie in ../shared/data, which is not here: the textbook case alone\n')

const result: Record<string, unknown>[] = []
for (const [name, all] of sets) {
  const plays = all.filter(({ steps }) => steps.length >= MIN_STEPS)
  let budget = MAX_TOKENS
  const taken = plays.filter((play) => {
    budget -= (longest(play) * play.steps.length) / 2
    return budget >= 0
  })
  process.stdout.write(
    `\n${name}: ${taken.length} conversations of ${MIN_STEPS} steps or more (${plays.length - taken.length} left out)\n`,
  )
  process.stdout.write(
    '| strategy | input tokens | computed | hit rate | cost | against append-only | boundaries | summaries | rejected | over the window | names missed | hidden at the end |\n',
  )
  process.stdout.write('| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n')
  let base = 0
  for (const strategy of STRATEGIES) {
    const figures = await played(taken, strategy)
    if (base === 0) base = figures.cost
    const hit = figures.cachedTokens / figures.inputTokens
    const row = [
      ...[
        strategy.name,
        figures.inputTokens,
        figures.computedTokens,
        `${(hit * 100).toFixed(1)} %`,
        Math.round(figures.cost),
      ],
      ...[
        `${(figures.cost / base).toFixed(2)}x`,
        figures.boundaries,
        figures.summaries,
        figures.rejected,
        figures.overflows,
      ],
      ...[`${figures.missed} of ${figures.needed}`, figures.hiddenTokens],
    ]
    process.stdout.write(`| ${row.join(' | ')} |\n`)
    result.push({
      set: name,
      strategy: strategy.name,
      ...figures,
      cost: Math.round(figures.cost),
      hitRate: Math.round(hit * 1000) / 1000,
    })
  }
}
process.stdout.write(`${JSON.stringify({ bench: 'context-strategies', share, result })}\n`)
