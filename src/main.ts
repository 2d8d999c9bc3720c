// The command line; what each command does beside serving stands in its own room, and is loaded when it is called: most
// of the time that a command takes to start is the loading of modules. Invariant: a fault of the user's is one line and
// exit code 2, a fault of the program's has its stack and exit code 1; SIGTERM ends in a drain and exit code 0, a second
// signal ends at once.

import cluster from 'node:cluster'
import { existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { Command, InvalidArgumentError } from 'commander'
import type { OpenProgress } from './compose-embedded.js'
import type { Config } from './config.js'
import { UsageError } from './core/usage-error.js'
import type { ReportOptions } from './explain/report.js'
import type { LintFlags } from './lint/command.js'
import type { PlanFlags } from './plan/command.js'
import { createProgressBar } from './progress.js'
import type { ReplayFlags } from './replay/command.js'
import type { SimulateFlags } from './simulate/command.js'
import type { Log } from './telemetry/log.js'
import { VERSION } from './version.js'

interface ConfigFlags {
  readonly config?: string
  readonly host?: string
  readonly port?: number
  readonly dataDir?: string
  readonly model?: string
  readonly logLevel?: string
  readonly scripted?: boolean
  readonly backend?: readonly string[]
  readonly workers?: string
  readonly processes?: number
}

const EXIT = { ok: 0, fault: 1, user: 2, interrupted: 130 } as const
const SIGNALS = ['SIGTERM', 'SIGINT'] as const
/** By name, since their classes stand in modules that a command may not have loaded. */
const USERS_FAULTS: readonly string[] = ['ConfigError', 'ModelError', 'UsageError', 'ReportError']

function withConfigFlags(command: Command): Command {
  return command
    .option('-c, --config <file>', 'YAML config; see config/reference.yaml')
    .option('--host <address>', 'server.host')
    .option('-p, --port <number>', 'server.port; 0 takes any that is free', port)
    .option('-d, --data-dir <folder>', 'dataDir')
    .option('-m, --model <name>', 'model.name: a card of models/ or the path of a GGUF file')
    .option('--log-level <level>', 'log.level')
    .option('--scripted', 'no model: answers with the prompt, for tests of clients')
    .option('--backend <url...>', 'no engine: sends requests on to these servers')
    .option('--workers <urls>', 'the same, with commas between')
    .option('--processes <number>', 'router processes behind the port, for servers elsewhere: fleet.processes', count)
}

function port(text: string): number {
  const number = Number(text)
  if (/^\d+$/.test(text) && number <= 65535) return number
  throw new InvalidArgumentError('a port is a number from 0 to 65535')
}

function count(text: string): number {
  if (/^[1-9]\d{0,2}$/.test(text)) return Number(text)
  throw new InvalidArgumentError('a number from 1')
}

function turnNumber(text: string): number {
  if (/^[1-9]\d{0,8}$/.test(text)) return Number(text)
  throw new InvalidArgumentError('turns count from 1')
}

async function configFrom(flags: ConfigFlags): Promise<Config> {
  const { loadConfig } = await import('./config.js')
  return loadConfig(flags.config, overridesIn(flags))
}

function overridesIn(flags: ConfigFlags): Record<string, unknown> {
  return {
    'server.host': flags.host,
    'server.port': flags.port,
    dataDir: flags.dataDir,
    'model.name': flags.model,
    'log.level': flags.logLevel,
    'backend.kind': flags.scripted === true ? 'scripted' : undefined,
    'fleet.processes': flags.processes,
    backends: backendsOf(flags),
  }
}

/** Undefined: none was named. */
function backendsOf({ backend = [], workers }: ConfigFlags): readonly { readonly url: string }[] | undefined {
  const urls = [...backend, ...(workers?.split(',') ?? [])].map((url) => url.trim()).filter((url) => url !== '')
  return urls.length === 0 ? undefined : urls.map((url) => ({ url: url.includes('://') ? url : `http://${url}` }))
}

async function serve(flags: ConfigFlags & { readonly record?: string }): Promise<void> {
  if (cluster.isWorker) return serveOwned()
  const [{ ConfigError, maskedConfig }, { startLog }] = await Promise.all([
    import('./config.js'),
    import('./telemetry/log.js'),
  ])
  const config = await configFrom(flags)
  const { record } = flags
  if (record !== undefined && config.backends.length > 0) {
    throw new UsageError('--record: prompts of other servers are not tokenized here, so there is nothing to record')
  }
  const log = startLog(config.log.level)
  log.say('info', 'config', { config: maskedConfig(config) })
  const isMany = config.fleet.processes > 1
  if (isMany && config.backends.length === 0) {
    throw new ConfigError(
      'fleet.processes: several processes are for backends elsewhere (--workers); an engine has one',
    )
  }
  const program = await (config.backends.length > 0 ? fleetOf(config, flags) : engineOf(config, record))
  stopOnSignal(log, () => program.stop())
  const url = await program.start()
  log.say('info', `listening on ${url}`, { url, model: program.model })
  if (process.stderr.isTTY) process.stderr.write(welcome(url, program.model))
}

/** Servers elsewhere behind one port. */
async function fleetOf(config: Config, flags: ConfigFlags) {
  const { loadConfig } = await import('./config.js')
  const again = () => loadConfig(flags.config, overridesIn(flags))
  if (config.fleet.processes > 1) {
    const { composeCluster } = await import('./compose-cluster.js')
    return await composeCluster(config, { again })
  }
  const { composeFleet } = await import('./compose-fleet.js')
  return await composeFleet(config, { again, warm: true })
}

async function engineOf(config: Config, record: string | undefined) {
  const { compose } = await import('./compose.js')
  return await withProgress((progress) =>
    compose(config, { progress, ...(record !== undefined && { record: resolve(record) }) }),
  )
}

/** One of several router processes. Their owner says when they end; a terminal's Ctrl-C comes to all of them. */
async function serveOwned(): Promise<void> {
  const [{ connectToOwner }, { composeFleet }, { startLog }] = await Promise.all([
    import('./compose-cluster.js'),
    import('./compose-fleet.js'),
    import('./telemetry/log.js'),
  ])
  const { config, owner } = await connectToOwner()
  const log = startLog(config.log.level)
  let isEnding = false
  const end = (drainMs?: number) => {
    if (isEnding) return
    isEnding = true
    program.stop(drainMs).then(() => {
      log.close()
      process.exit(EXIT.ok)
    }, fail)
  }
  const program = await composeFleet(config, { owner, onStop: end, warm: true })
  process.on('SIGTERM', () => end())
  process.on('SIGINT', () => undefined)
  await program.start()
}

/** The first signal drains, the second ends at once. */
function stopOnSignal(log: Log, stop: () => Promise<void>): void {
  let signals = 0
  const onSignal = (signal: NodeJS.Signals) => {
    if (++signals > 1) process.exit(EXIT.fault)
    log.say('info', 'draining', { signal })
    stop().then(() => {
      log.say('info', 'stopped')
      log.close()
      process.exit(EXIT.ok)
    }, fail)
  }
  for (const signal of SIGNALS) process.on(signal, onSignal)
}

/** Runs something long under a bar. A signal ends it as it ends any process: the next run goes on where it was. */
async function withProgress<T>(work: (progress: Required<OpenProgress>) => Promise<T>): Promise<T> {
  const bar = createProgressBar()
  try {
    return await work({
      pull: ({ source, receivedBytes, totalBytes }) => bar.show(source, receivedBytes, totalBytes),
      import: (phase, done, total) => bar.show(phase === 'digest' ? 'checking' : 'importing', done, total),
    })
  } finally {
    bar.stop()
  }
}

/** The first Ctrl-C ends the sending, the report is still made; the second ends at once. */
async function replay(paths: string[], flags: ReplayFlags): Promise<void> {
  const stop = new AbortController()
  const onSignal = () => {
    if (stop.signal.aborted) process.exit(EXIT.interrupted)
    stop.abort()
  }
  for (const signal of SIGNALS) process.on(signal, onSignal)
  const bar = createProgressBar(process.stderr, 'requests')
  try {
    const [{ environmentValue }, { replayCommand }] = await Promise.all([
      import('./config.js'),
      import('./replay/command.js'),
    ])
    const text = await replayCommand(paths, flags, {
      environment: environmentValue,
      progress: (target, done, total) => bar.show(target, done, total),
      signal: stop.signal,
    })
    bar.stop()
    process.stdout.write(text)
    if (stop.signal.aborted) process.exitCode = EXIT.interrupted
  } finally {
    bar.stop()
    for (const signal of SIGNALS) process.off(signal, onSignal)
  }
}

interface PullFlags extends ConfigFlags {
  readonly file?: string
  readonly trust?: boolean
}

async function pullCard(name: string, flags: PullFlags): Promise<void> {
  const [{ loadCard, packageModels }, { pull }] = await Promise.all([
    import('./model/card.js'),
    import('./model/pull.js'),
  ])
  const { model, dataDir } = await configFrom(flags)
  const card = await loadCard(name, [join(dataDir, 'cards'), packageModels()])
  const path = await withProgress((progress) =>
    pull(card, {
      directory: model.directory,
      localDirectory: dataDir,
      onProgress: progress.pull,
      ...(flags.file === undefined ? {} : { sources: [{ kind: 'file', path: resolve(flags.file) }] }),
      ...(flags.trust === true ? { unpinned: 'trust' } : {}),
    }),
  )
  process.stdout.write(`${path}\n`)
}

async function importFile(file: string, flags: ConfigFlags): Promise<void> {
  const { dataDir, cache } = await configFrom(flags)
  if (!existsSync(file)) throw new UsageError(`there is no file ${resolve(file)}`)
  const [{ importGguf }, { buildTokenizerJson, tokenizerTraits }] = await Promise.all([
    import('./model/import.js'),
    import('./prompt/gguf-tokenizer.js'),
  ])
  const tokenizer = { build: buildTokenizerJson, traits: tokenizerTraits }
  const imported = await withProgress((progress) =>
    importGguf(file, { dataDir, kv: cache.kv, tokenizer, onProgress: progress.import }),
  )
  process.stdout.write(`${imported.directory}\n`)
}

async function counterOf(tokenizer: string) {
  const { openCounter } = await import('./compose-tokenizer.js')
  return await openCounter(tokenizer, await configFrom({}))
}

/** What a person at a terminal wants next. */
function welcome(url: string, model: string): string {
  const body = `{"model":"${model}","messages":[{"role":"user","content":"Hello"}]}`
  return `\n  Refrain serves ${model} at ${url}/v1\n\n  curl ${url}/v1/chat/completions -H 'content-type: application/json' -d '${body}'\n\n`
}

/** One line for what the user can mend, the stack for what we must. */
function fail(error: unknown): never {
  const { name, code, exitCode } = (error ?? {}) as { name?: string; code?: string; exitCode?: number }
  // One of several processes asked an owner that has ended, and said why.
  if (cluster.isWorker && (!process.connected || code === 'EPIPE')) process.exit(EXIT.fault)
  // It said itself why.
  if (name === 'ProcessEnded') process.exit(exitCode)
  const isUsers = isUserFault(error)
  const text = error instanceof Error ? (isUsers ? error.message : (error.stack ?? error.message)) : String(error)
  process.stderr.write(`refrain: ${text}\n`)
  process.exit(isUsers ? EXIT.user : EXIT.fault)
}

function isUserFault(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  const { code } = error as NodeJS.ErrnoException
  return USERS_FAULTS.includes(error.name) || code === 'EADDRINUSE' || code === 'EACCES' || code === 'EADDRNOTAVAIL'
}

const program = new Command('refrain')
  .description('OpenAI-compatible serving of open-weight models with a prefix cache that survives restarts.')
  .version(VERSION)

withConfigFlags(program.command('serve').description('serve the model'))
  .option('--record <folder>', 'write traces of all sessions here: lengths, times and numbers of blocks, no text')
  .action(serve)

withConfigFlags(program.command('pull').description("fetch a model's weights").argument('<name>', 'a card of models/'))
  .option('--file <file>', 'take the weights from here')
  .option('--trust', 'take what the source sends where the card has no digest, and remember it')
  .action(pullCard)

withConfigFlags(
  program.command('import').description('build the graph of a GGUF file').argument('<file>', 'the GGUF file'),
).action(importFile)

withConfigFlags(program.command('config').description('print the effective config, secrets masked'))
  .option('--check', 'only say whether it is right')
  .action(async (flags: ConfigFlags & { check?: boolean }) => {
    const [{ maskedConfig }, { stringify }] = await Promise.all([import('./config.js'), import('yaml')])
    const config = await configFrom(flags)
    process.stdout.write(flags.check === true ? 'the config is right\n' : stringify(maskedConfig(config)))
  })

program
  .command('plan')
  .description("what a model's KV takes, where it fits, and when bringing it back beats computing it")
  .argument('<shape>', 'a name of models/shapes, a GGUF file, a config.json or a YAML shape')
  .option('-t, --tokens <count>', "length of a session; absent: the model's longest")
  .option('--dtype <type>', 'count in fp32, bf16, fp16 or fp8 instead of what the shape says')
  .option('--gpu <size>', 'what is left for KV on the GPUs, as 40GB')
  .option('--host <size>', 'the same in host memory')
  .option('--disk <size>', 'the same on disk')
  .option('--host-rate <rate>', 'bytes a second from host memory, as 25GB/s')
  .option('--disk-rate <rate>', 'bytes a second from disk')
  .option('--prefill <rates>', 'prompt tokens a second, or LENGTH:RATE,LENGTH:RATE')
  .option('--overhead <time>', 'what a restore costs at any length; default 1ms from host memory, 5ms from disk')
  .option('--server <url>', 'takes rates that a running server measured')
  .option('--key <key>', 'an admin key of that server')
  .option('--json', 'the plan as JSON')
  .action(async (shape: string, flags: PlanFlags) => {
    const { planCommand } = await import('./plan/command.js')
    process.stdout.write(await planCommand(shape, flags))
  })

program
  .command('lint')
  .description('what hit rate a log of requests allows, and what breaks its prefixes')
  .argument('<file>', 'OpenAI or Anthropic requests as JSON lines or a JSON list, or a HAR file')
  .option('--bytes-per-token <number>', 'what tokens are estimated by', '4')
  .option('--tokenizer <name>', 'count them instead: a card whose weights are here, a GGUF file or a tokenizer.json')
  .option('--top <count>', 'causes to show', '10')
  .option('--json', 'the report as JSON')
  .action(async (file: string, { tokenizer, ...flags }: LintFlags & { readonly tokenizer?: string }) => {
    const counter = tokenizer === undefined ? undefined : await counterOf(tokenizer)
    const { lintCommand } = await import('./lint/command.js')
    process.stdout.write(await lintCommand(file, flags, { counter }))
  })

const bench = program.command('bench').description('what the cache would do, and does')

bench
  .command('simulate')
  .description('run the cache on traces, without a model: hit rate against capacity')
  .argument('<trace...>', 'Claude Code or Mooncake traces, own recordings, or folders of them')
  .option('--memory <budgets>', 'blocks of 64 tokens (20k), or bytes with --model (8GB); several with commas between')
  .option('--disk <budgets>', 'the same on disk; absent: no disk')
  .option('--evictor <names>', 'kinds of evictors, commas between', 'priority-lru')
  .option('--model <shape>', 'whose KV it is, see plan: gives blocks their bytes')
  .option('--backends <count>', 'so many servers behind a router; memory and disk are of each')
  .option('--router <names>', 'round-robin, session-hash, refrain; commas between; absent: all')
  .option('--prefill <rate>', 'prompt tokens a second that a backend computes: tells times to the first token')
  .option('--report <file.html>', 'a page with pictures, and its numbers as JSON beside it')
  .option('--prices <prices>', 'of a million tokens: input=3,read=0.3,write=3.75,output=15, or a YAML file')
  .option('--json', 'the report as JSON')
  .action(async (paths: string[], flags: SimulateFlags) => {
    const bar = createProgressBar(process.stderr, 'runs')
    try {
      const { simulateCommand } = await import('./simulate/command.js')
      const text = await simulateCommand(paths, flags, (done, total) => bar.show('simulating', done, total))
      bar.stop()
      process.stdout.write(text)
    } finally {
      bar.stop()
    }
  })

bench
  .command('replay')
  .description('send a trace to servers: what they reuse, how long they take, what it costs')
  .argument('<trace...>', 'as simulate takes them, or conversations with texts as JSON lines')
  .requiredOption('-t, --target <url...>', 'an OpenAI-compatible server, or several: URL or NAME=URL')
  .option('--model <name>', 'absent: the first that /v1/models names')
  .option('--key-env <names...>', 'environment variables with the keys of the targets, in their order; - for none')
  .option('--api <kind>', 'chat, completions, or tokens (ids to /v1/completions, exact lengths)', 'chat')
  .option('--token-ids <range>', 'what prompts of tokens are made of', '1000-30000')
  .option('--speed <factor>', "the trace's times pass so many times as fast; default 1")
  .option('--sessions <count>', 'closed loop: so many sessions at once, each turn right behind the one before')
  .option('--order <how>', 'several targets: after (one after the other) or interleaved (by turns)', 'after')
  .option('--limit <count>', 'only the first requests of the trace')
  .option('--max-prompt <tokens>', 'leave out longer prompts')
  .option('--max-seconds <seconds>', 'begin no request later, for each target')
  .option('--max-output <tokens>', 'of an answer', '256')
  .option('--shrink <factor>', 'make prompts and answers so many times shorter than in the trace')
  .option('--salt <text>', 'other texts in place of blocks: for servers that have seen the trace')
  .option('--ignore-eos', 'answers as long as in the trace, where the server knows ignore_eos')
  .option('--timeout <seconds>', 'for each answer', '600')
  .option('--give-up <count>', 'failures in a row after which a target is left alone', '10')
  .option('--results <file>', 'a line for each answer', 'refrain-replay.jsonl')
  .option('--resume', 'go on with the results of a run that was broken off')
  .option('--report <file.html>', 'a page with pictures, and its numbers as JSON beside it')
  .option('--prices <prices>', 'of a million tokens: input=3,read=0.3,write=3.75,output=15, or a YAML file')
  .option('--json', 'the report as JSON')
  .action(replay)

program
  .command('explain')
  .description('say why turns of a running server missed the cache')
  .argument('[session]', "a session's key; without it: the sessions that there are")
  .option('-u, --url <url>', 'the server', 'http://127.0.0.1:8080')
  .option('-t, --turn <number>', 'one turn, with the place where it parts from the one before', turnNumber)
  .option('--tenant <name>', 'whose session, for admins')
  .option('-k, --key <key>', "a tenant's key")
  .action(async (session: string | undefined, flags: Omit<ReportOptions, 'session'>) => {
    const { explainReport } = await import('./explain/report.js')
    process.stdout.write(await explainReport({ ...flags, ...(session !== undefined && { session }) }))
  })

program
  .command('version')
  .description('print the version')
  .action(() => {
    process.stdout.write(`${VERSION}\n`)
  })

process.on('uncaughtException', fail)
process.on('unhandledRejection', fail)
program.parseAsync().catch(fail)
