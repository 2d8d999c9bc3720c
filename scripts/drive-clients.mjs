// Drives real command-line agents against a local Refrain with a scripted model through a loop of two tool calls, and
// says what each turn reused. Not in CI: the clients are large, and come from npm as they are on the day.
//
//   npm install --prefix /some/folder @openai/codex opencode-ai @qwen-code/qwen-code @anthropic-ai/claude-code
//   npm run build && node scripts/drive-clients.mjs --bin /some/folder/node_modules/.bin [codex opencode qwen claude]
//
// Each client gets an empty home, no account, and a network namespace in which there is nothing but loopback (needs
// unshare; without it, --any-network says that this is meant). Exit status 0: every client asked for was taken to the end.

import { spawn, spawnSync } from 'node:child_process'
import diagnostics from 'node:diagnostics_channel'
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { bin: { type: 'string' }, 'any-network': { type: 'boolean' }, verbose: { type: 'boolean' } },
})
if (values.bin === undefined || !existsSync(values.bin)) {
  process.stderr.write('drive-clients: --bin FOLDER names the node_modules/.bin with the clients\n')
  process.exit(2)
}
if (!values['any-network'] && process.env.REFRAIN_DRIVE_INSIDE === undefined) {
  const self = [process.execPath, fileURLToPath(import.meta.url), ...process.argv.slice(2)]
  const inside = spawnSync('unshare', ['-rn', 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh', ...self], {
    stdio: 'inherit',
    env: { ...process.env, REFRAIN_DRIVE_INSIDE: '1' },
  })
  if (inside.error !== undefined) {
    process.stderr.write('drive-clients: no network namespace can be made here; --any-network goes on without\n')
    process.exit(2)
  }
  process.exit(inside.status ?? 1)
}

const { compose } = await import('../dist/compose.js')
const { makeConfig } = await import('../dist/config.js')

const MODEL = 'refrain-scripted'
const SECRET = 'the word is heliotrope'
const LIMIT_MS = 120_000
const PROMPT = 'Read the file notes.txt, then list the folder, then tell me the word.'

/** Arguments that a tool takes: what its schema requires, filled by the names of the properties. */
function argumentsFor(tool, command, folder) {
  const definition = JSON.parse(tool.json).function
  const schema = definition.parameters ?? {}
  const filled = {}
  for (const key of schema.required ?? Object.keys(schema.properties ?? {})) {
    const { type } = schema.properties?.[key] ?? {}
    if (/command|cmd|script/i.test(key)) filled[key] = type === 'array' ? ['bash', '-lc', command] : command
    else if (/path|file/i.test(key)) filled[key] = join(folder, 'notes.txt')
    else if (type === 'boolean') filled[key] = false
    else if (type === 'integer' || type === 'number') filled[key] = 1
    else if (type === 'string') filled[key] = 'a look'
  }
  return filled
}

/** The model: a call that reads, a call that lists, then the word. What is no main request gets one sentence. */
function scriptOf(folder) {
  return (job) => {
    const { prompt } = job.request
    if (prompt.kind !== 'chat' || prompt.tools.length === 0) return 'A short answer.'
    const lastUser = prompt.messages.findLastIndex(
      ({ role, content }) => role === 'user' && content.includes('notes.txt'),
    )
    const done = prompt.messages.slice(lastUser + 1).filter(({ role }) => role === 'tool').length
    if (done >= 2) return `<think>\nI have seen it.\n</think>\n\nI read it: ${SECRET}.`
    const shell = prompt.tools.find(({ name }) => /^(exec_command|shell|bash|run_shell_command)$/i.test(name))
    if (shell === undefined) return `I have no shell, but ${SECRET}.`
    const command = done === 0 ? 'cat notes.txt' : 'ls'
    const call = JSON.stringify({ name: shell.name, arguments: argumentsFor(shell, command, folder) })
    return `<think>\nStep ${done + 1}.\n</think>\n\nLet me look.\n<tool_call>\n${call}\n</tool_call>`
  }
}

const CLIENTS = {
  codex: {
    prepare(home, url) {
      mkdirSync(join(home, 'codex'))
      const provider = `[model_providers.local]\nname = "local"\nbase_url = "${url}/v1"\nenv_key = "LOCAL_KEY"\nwire_api = "responses"\n`
      writeFileSync(join(home, 'codex', 'config.toml'), `model = "${MODEL}"\nmodel_provider = "local"\n${provider}`)
      return { CODEX_HOME: join(home, 'codex'), LOCAL_KEY: 'none-needed' }
    },
    args: ['exec', '--dangerously-bypass-approvals-and-sandbox', '--skip-git-repo-check', '--json', PROMPT],
  },
  opencode: {
    prepare(_home, url, folder) {
      const models = { [MODEL]: { name: MODEL } }
      const options = { baseURL: `${url}/v1`, apiKey: 'none-needed' }
      const provider = { local: { npm: '@ai-sdk/openai-compatible', options, models } }
      writeFileSync(
        join(folder, 'opencode.json'),
        JSON.stringify({ provider, model: `local/${MODEL}`, autoupdate: false }),
      )
      return { OPENCODE_DISABLE_AUTOUPDATE: '1' }
    },
    args: ['run', '--auto', '--format', 'json', PROMPT],
  },
  qwen: {
    prepare: (_home, url) => ({ OPENAI_API_KEY: 'none-needed', OPENAI_BASE_URL: `${url}/v1` }),
    args: ['--yolo', '--auth-type', 'openai', '-m', MODEL, PROMPT],
  },
  claude: {
    prepare: (_home, url) => ({
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_AUTH_TOKEN: 'none-needed',
      ANTHROPIC_MODEL: MODEL,
      ANTHROPIC_SMALL_FAST_MODEL: MODEL,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      IS_SANDBOX: '1',
    }),
    args: ['-p', '--dangerously-skip-permissions', PROMPT],
  },
}

async function drive(name) {
  const client = CLIENTS[name]
  const root = mkdtempSync(join(tmpdir(), `refrain-drive-${name}-`))
  const [home, folder] = ['home', 'project'].map((part) => join(root, part))
  for (const each of [home, folder]) mkdirSync(each)
  writeFileSync(join(folder, 'notes.txt'), `${SECRET}\n`)
  const flags = {
    dataDir: join(root, 'data'),
    'server.port': 0,
    'backend.kind': 'scripted',
    'backend.options': { template: 'chatml', toolCalls: 'hermes', reasoning: 'think' },
    'model.name': MODEL,
    'model.aliases': { 'claude-*': MODEL },
  }
  const program = await compose(makeConfig({ flags }), { script: scriptOf(folder) })
  const url = await program.start()
  const turns = []
  const onSettled = (message) => turns.push(message)
  diagnostics.subscribe('refrain:request-settled', onSettled)
  try {
    const env = { PATH: process.env.PATH, HOME: home, XDG_CONFIG_HOME: join(home, 'config'), NO_COLOR: '1' }
    Object.assign(env, client.prepare(home, url, folder))
    const output = await run(resolve(values.bin, name), client.args, { cwd: folder, env })
    if (values.verbose) process.stderr.write(output)
    const generating = turns.filter(({ promptTokens }) => promptTokens > 0)
    for (const turn of generating) {
      const reused = turn.working + turn.memory + turn.disk
      process.stdout.write(`${name}: ${turn.route} ${turn.status} prompt ${turn.promptTokens}, reused ${reused}\n`)
    }
    const ok = output.includes(SECRET) && generating.length >= 3
    process.stdout.write(`${name}: ${ok ? 'taken to the end' : `NOT taken to the end\n${output.slice(-2000)}`}\n`)
    return ok
  } finally {
    diagnostics.unsubscribe('refrain:request-settled', onSettled)
    await program.stop(1000)
    rmSync(root, { recursive: true, force: true })
  }
}

function run(command, args, options) {
  return new Promise((done) => {
    const child = spawn(command, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    const add = (chunk) => {
      output += chunk
    }
    child.stdout.on('data', add)
    child.stderr.on('data', add)
    const timer = setTimeout(() => child.kill('SIGKILL'), LIMIT_MS)
    child.on('close', () => {
      clearTimeout(timer)
      done(output)
    })
    child.on('error', (error) => {
      clearTimeout(timer)
      done(String(error))
    })
  })
}

const names = positionals.length > 0 ? positionals : Object.keys(CLIENTS)
let failed = 0
for (const name of names) {
  if (!Object.hasOwn(CLIENTS, name) || !existsSync(join(values.bin, name))) {
    process.stdout.write(`${name}: not there\n`)
    failed++
  } else if (!(await drive(name))) failed++
}
process.exit(failed === 0 ? 0 : 1)
