// `npm run build`: kernels/ to build/refrain_kernels.node, then src/ to dist/. Invariant: a part whose inputs are those of
// its last success is left alone, so that `npm start` may always come through here. All that it says goes to stderr.
//
//   node scripts/build.mjs                      no compiler, or one that fails: the TypeScript twin serves, said in a line
//   node scripts/build.mjs --require-kernels    the same is an error (CI)

import { execFile, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  accessSync,
  constants,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { availableParallelism } from 'node:os'
import { basename, delimiter, dirname, join, relative, sep } from 'node:path'
import { fileURLToPath } from 'node:url'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const say = (text) => process.stderr.write(`build: ${text}\n`)

/** Builds what is out of date. Resolves with whether all went well. */
export async function build({ requireKernels = false } = {}) {
  const kernels = await buildKernels()
  if (kernels !== undefined) say(`${kernels}; the TypeScript twin of the kernels is used`)
  await bundleTypebox()
  return buildProgram() && (kernels === undefined || !requireKernels)
}

/** Files below `folder` (relative to the root) that `wanted` accepts, sorted. */
function filesIn(folder, wanted) {
  return readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && wanted(entry.name))
    .map((entry) => relative(ROOT, join(entry.parentPath ?? entry.path, entry.name)))
    .sort()
}

/** Changes when one of `files` is added, removed or written to, and with `recipe`. */
function fingerprint(files, recipe) {
  const hash = createHash('sha256').update(recipe)
  for (const file of files) {
    const { size, mtimeMs } = statSync(join(ROOT, file))
    hash.update(`${file}\0${size}\0${mtimeMs}\n`)
  }
  return hash.digest('hex')
}

function readIfThere(path) {
  return existsSync(path) ? readFileSync(path, 'utf8') : undefined
}

// --- kernels ---------------------------------------------------------------------------------------------------------

const ADDON = join(ROOT, 'build', 'refrain_kernels.node')
const KERNELS_STAMP = join(ROOT, 'build', 'kernels.stamp')
const COMPILER_LOG = join(ROOT, 'build', 'kernels.log')

const FLAGS = [
  ...['-std=c++17', '-O3', '-fPIC', '-fvisibility=hidden', '-fno-exceptions', '-DNAPI_VERSION=8'],
  // A product and a sum are fused where the source says so and nowhere else: forms must give the same bits.
  ...['-ffp-contract=off', '-pthread', '-Wno-psabi', '-Wno-maybe-uninitialized'],
  ...['-DNODE_ADDON_API_DISABLE_CPP_EXCEPTIONS', '-DNODE_ADDON_API_DISABLE_DEPRECATED'],
]
// Node's own symbols are there only once the addon is loaded.
const LINK = ['-shared', '-pthread', ...(process.platform === 'darwin' ? ['-undefined', 'dynamic_lookup'] : [])]

/** Undefined when the addon is there and fresh, else why not. The last failure's log is kept and it is not tried again. */
async function buildKernels() {
  const compiler = findCompiler()
  const sources = filesIn('kernels', (name) => /\.(cc|h)$/.test(name))
  const recipe = [process.platform, process.arch, ...(compiler ?? ['none']), ...FLAGS, ...LINK].join(' ')
  const print = fingerprint(sources, recipe)
  const stamp = readIfThere(KERNELS_STAMP)
  if (stamp === `built ${print}` && existsSync(ADDON)) return undefined
  if (stamp === `failed ${print}`) return `the kernels do not compile (see ${relative(ROOT, COMPILER_LOG)})`
  // What is there was built from other sources: better the twin than an old copy.
  rmSync(ADDON, { force: true })
  const headers = compiler && headerFolders()
  if (compiler === undefined) return 'no C++ compiler (CXX, c++, g++, clang++)'
  if (headers === undefined) return 'node-addon-api or node-api-headers is not installed'
  return await compile(compiler, headers, sources, print)
}

/** As many units at a time as there are cores. */
async function compile(compiler, headers, sources, print) {
  mkdirSync(dirname(ADDON), { recursive: true })
  say(`compiling kernels/ with ${compiler.join(' ')}`)
  // Written beside and moved over: a running server keeps the library that it has mapped.
  const fresh = `${ADDON}.${process.pid}`
  const [command, ...first] = compiler
  const units = sources.filter((file) => file.endsWith('.cc'))
  const objects = units.map((unit) => `${fresh}.${basename(unit)}.o`)
  const includes = headers.map((folder) => `-I${folder}`)
  const words = []
  const run = (args) =>
    new Promise((resolve) => {
      execFile(command, [...first, ...args], { cwd: ROOT, maxBuffer: 2 ** 26 }, (error, stdout, stderr) => {
        words.push(stdout, stderr === '' ? (error?.message ?? '') : stderr)
        resolve(error === null)
      })
    })
  const left = [...units.keys()]
  const compileRest = async () => {
    // The row kernels, which take longest, are last by name.
    for (let i = left.pop(); i !== undefined; i = left.pop()) {
      if (!(await run([...FLAGS, ...includes, '-c', units[i], '-o', objects[i]]))) return false
    }
    return true
  }
  const lanes = await Promise.all(Array.from({ length: availableParallelism() }, compileRest))
  const isDone = lanes.every(Boolean) && (await run([...LINK, ...objects, '-o', fresh]))
  for (const object of objects) rmSync(object, { force: true })
  writeFileSync(COMPILER_LOG, words.join(''))
  if (!isDone) {
    rmSync(fresh, { force: true })
    writeFileSync(KERNELS_STAMP, `failed ${print}`)
    return `the kernels do not compile (see ${relative(ROOT, COMPILER_LOG)})`
  }
  renameSync(fresh, ADDON)
  writeFileSync(KERNELS_STAMP, `built ${print}`)
  return undefined
}

/** The compiler's command and first arguments: CXX as it is, else the first known name on the PATH. */
function findCompiler() {
  if (process.env.CXX) return process.env.CXX.trim().split(/\s+/)
  const folders = (process.env.PATH ?? '').split(delimiter)
  const found = ['c++', 'g++', 'clang++'].find((name) => folders.some((folder) => isExecutable(join(folder, name))))
  return found === undefined ? undefined : [found]
}

function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

function headerFolders() {
  const require = createRequire(import.meta.url)
  try {
    const api = dirname(require.resolve('node-addon-api/package.json'))
    return [api, join(dirname(require.resolve('node-api-headers/package.json')), 'include')]
  } catch {
    return undefined
  }
}

// --- program ---------------------------------------------------------------------------------------------------------

const DIST = join(ROOT, 'dist')
const PROGRAM_STAMP = join(DIST, '.stamp')
/** The client's own declares it, and knows of no globals but those of browsers. */
const CLIENT_PROJECT = 'tsconfig.client.json'
const PROJECTS = ['tsconfig.json', 'tsconfig.build.json', CLIENT_PROJECT]

function buildProgram() {
  const isTest = (name) => /\.test\./.test(name)
  const sources = filesIn('src', (name) => !isTest(name))
  const recipe = `${process.version} typescript ${typescriptVersion()}`
  const print = fingerprint([...sources, ...PROJECTS], recipe)
  const [before, ...built] = (readIfThere(PROGRAM_STAMP) ?? '').split('\n')
  if (before === print) return true
  say('compiling src/')
  const tsc = join(ROOT, 'node_modules', 'typescript', 'bin', 'tsc')
  for (const project of ['tsconfig.build.json', CLIENT_PROJECT]) {
    const run = spawnSync(process.execPath, [tsc, '-p', project], { cwd: ROOT, stdio: ['ignore', 2, 2] })
    if (run.status === 0) continue
    say(run.error ? `tsc cannot run: ${run.error.message}` : `src/ does not compile (${project})`)
    return false
  }
  const outputs = [...sources.map((file) => output(file)), ...sources.filter(isOfClient).map(declaration)]
  for (const stale of built.filter((file) => file !== '' && !outputs.includes(file))) removeOutput(stale)
  for (const file of sources.filter((name) => !name.endsWith('.ts'))) cpSync(join(ROOT, file), join(ROOT, output(file)))
  writeFileSync(PROGRAM_STAMP, [print, ...outputs].join('\n'))
  return true
}

/** Where a file of src/ goes: TypeScript becomes JavaScript, anything else (a page, a shader) is copied as it is. */
function output(file) {
  return join('dist', relative('src', file)).replace(/\.ts$/, '.js')
}

function isOfClient(file) {
  return file.startsWith(join('src', 'client', sep)) && file.endsWith('.ts')
}

function declaration(file) {
  return output(file).replace(/\.js$/, '.d.ts')
}

function removeOutput(file) {
  for (const path of [file, `${file}.map`]) rmSync(join(ROOT, path), { force: true })
}

function typescriptVersion() {
  const path = join(ROOT, 'node_modules', 'typescript', 'package.json')
  return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')).version : 'absent'
}

// --- typebox ---------------------------------------------------------------------------------------------------------

const TYPEBOX = join('node_modules', 'typebox')

/**
 * typebox in two files, where modules of dist/ find it before the package itself: its 679 modules take a third of the time
 * in which the program and its engine's thread start. Where this fails, the package is found.
 */
async function bundleTypebox() {
  const place = join(ROOT, 'dist', TYPEBOX)
  const { version } = JSON.parse(readIfThere(join(ROOT, TYPEBOX, 'package.json')) ?? '{}')
  if (version === undefined || JSON.parse(readIfThere(join(place, 'package.json')) ?? '{}').version === version) return
  say('bundling typebox')
  const exports = { '.': './index.js', './value': './value.js' }
  const from = (specifier) => fileURLToPath(import.meta.resolve(specifier))
  // Written beside and moved over: a folder that is not whole would be taken for the package.
  const outDir = `${place}.${process.pid}`
  try {
    const vite = await import('vite')
    await vite.build({
      ...{ root: ROOT, configFile: false, publicDir: false, logLevel: 'error' },
      build: {
        ...{ outDir, emptyOutDir: true, target: 'node20', minify: false },
        lib: { entry: { index: from('typebox'), value: from('typebox/value') }, formats: ['es'] },
      },
    })
    const manifest = { name: 'typebox', version, type: 'module', exports }
    writeFileSync(join(outDir, 'package.json'), `${JSON.stringify(manifest, undefined, 2)}\n`)
    rmSync(place, { recursive: true, force: true })
    renameSync(outDir, place)
  } catch (error) {
    rmSync(outDir, { recursive: true, force: true })
    say(`typebox cannot be bundled: ${error.message}`)
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  process.exitCode = (await build({ requireKernels: process.argv.includes('--require-kernels') })) ? 0 : 1
}
