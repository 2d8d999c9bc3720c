// Versions of the compiler, all callable for ever: a turn is replayed by the version that it was compiled with. A version's
// bytes never change; what should look otherwise is a new version in a folder of its own.

import type { CompileContext, CompiledContext, IncrementalCompiler } from './contract.js'
import { compileV1, incrementalV1 } from './v1/compiler.js'

interface Compiler {
  compile(...args: Parameters<typeof compileV1>): CompiledContext
  incremental(): IncrementalCompiler
}

export const COMPILERS: Readonly<Record<number, Compiler>> = {
  1: { compile: compileV1, incremental: incrementalV1 },
}

/** What new turns are compiled with. */
export const CURRENT_COMPILER = 1

function compilerOf(version: number): Compiler {
  const compiler = Object.hasOwn(COMPILERS, version) ? COMPILERS[version] : undefined
  if (compiler === undefined) {
    throw new Error(`no compiler has version ${version}; there are ${Object.keys(COMPILERS).join(', ')}`)
  }
  return compiler
}

export const compileContext: CompileContext = (events, policy, version) => compilerOf(version).compile(events, policy)

/** A compiler that is told events as they come. @throws Error where the version is unknown. */
export function createIncrementalCompiler(version: number = CURRENT_COMPILER): IncrementalCompiler {
  return compilerOf(version).incremental()
}
