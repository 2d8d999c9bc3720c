// The command line: serve, pull, import, config. Invariant: a fault of the user's is one line and exit code 2, a fault of
// the program's has its stack and exit code 1; SIGTERM ends in a drain and exit code 0, a second signal ends at once.

import { Command, InvalidArgumentError } from 'commander'
import { stringify } from 'yaml'
import { type ComposeOptions, compose } from './compose.js'
import { type Config, ConfigError, loadConfig, maskedConfig } from './config.js'
import { startLog } from './telemetry/log.js'
import { VERSION } from './version.js'

interface ConfigFlags {
  readonly config?: string
  readonly host?: string
  readonly port?: number
  readonly dataDir?: string
  readonly model?: string
  readonly logLevel?: string
  readonly scripted?: boolean
}

const EXIT = { ok: 0, fault: 1, user: 2 } as const

function withConfigFlags(command: Command): Command {
  return command
    .option('-c, --config <file>', 'YAML config; see config/reference.yaml')
    .option('--host <address>', 'server.host')
    .option('-p, --port <number>', 'server.port; 0 takes any that is free', port)
    .option('-d, --data-dir <folder>', 'dataDir')
    .option('-m, --model <name>', 'model.name: a card of models/ or the path of a GGUF file')
    .option('--log-level <level>', 'log.level')
    .option('--scripted', 'no model: answers with the prompt, for tests of clients')
}

function port(text: string): number {
  const number = Number(text)
  if (/^\d+$/.test(text) && number <= 65535) return number
  throw new InvalidArgumentError('a port is a number from 0 to 65535')
}

function configFrom(flags: ConfigFlags): Config {
  return loadConfig(flags.config, {
    'server.host': flags.host,
    'server.port': flags.port,
    dataDir: flags.dataDir,
    'model.name': flags.model,
    'log.level': flags.logLevel,
    'backend.kind': flags.scripted === true ? 'scripted' : undefined,
  })
}

async function serve(flags: ConfigFlags): Promise<void> {
  const config = configFrom(flags)
  const log = startLog(config.log.level)
  log.say('info', 'config', { config: maskedConfig(config) })
  const options: ComposeOptions = {}
  const program = await compose(config, options)
  let signals = 0
  const onSignal = (signal: NodeJS.Signals) => {
    if (++signals > 1) process.exit(EXIT.fault)
    log.say('info', 'draining', { signal, running: config.server.drainMs })
    program.stop().then(
      () => {
        log.say('info', 'stopped')
        log.close()
        process.exit(EXIT.ok)
      },
      (error) => fail(error),
    )
  }
  process.on('SIGTERM', onSignal)
  process.on('SIGINT', onSignal)
  const url = await program.start()
  log.say('info', `listening on ${url}`, { url, model: program.model })
  if (process.stderr.isTTY) process.stderr.write(welcome(url, program.model))
}

/** What a person at a terminal wants next. */
function welcome(url: string, model: string): string {
  const body = `{"model":"${model}","messages":[{"role":"user","content":"Hello"}]}`
  return `\n  Refrain serves ${model} at ${url}/v1\n\n  curl ${url}/v1/chat/completions -H 'content-type: application/json' -d '${body}'\n\n`
}

/** One line for what the user can mend, the stack for what we must. */
function fail(error: unknown): never {
  const isUsers = isUserFault(error)
  const text = error instanceof Error ? (isUsers ? error.message : (error.stack ?? error.message)) : String(error)
  process.stderr.write(`refrain: ${text}\n`)
  process.exit(isUsers ? EXIT.user : EXIT.fault)
}

function isUserFault(error: unknown): boolean {
  const { code } = error as { code?: string }
  return error instanceof ConfigError || code === 'EADDRINUSE' || code === 'EACCES' || code === 'EADDRNOTAVAIL'
}

const program = new Command('refrain')
  .description('OpenAI-compatible serving of open-weight models with a prefix cache that survives restarts.')
  .version(VERSION)

withConfigFlags(program.command('serve').description('serve the model')).action(serve)

withConfigFlags(program.command('config').description('print the effective config, secrets masked'))
  .option('--check', 'only say whether it is right')
  .action((flags: ConfigFlags & { check?: boolean }) => {
    const config = configFrom(flags)
    process.stdout.write(flags.check === true ? 'the config is right\n' : stringify(maskedConfig(config)))
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
