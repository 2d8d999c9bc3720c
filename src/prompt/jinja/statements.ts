// Compiles a template's statements to closures that append to an output. A statement answers how it ended: on its way,
// or with the break or continue that its loop waits for.

import { callArguments, callable, type Expression, expression, filtered } from './expressions.js'
import { LoopMemo } from './loop-memo.js'
import { type LoopPlan, planLoops } from './loop-plan.js'
import type * as Ast from './nodes.js'
import { str } from './print.js'
import { Output, Scope } from './scope.js'
import {
  type Callable,
  isList,
  iterate,
  type Kwargs,
  Loop,
  Namespace,
  SharedDict,
  TemplateFault,
  truthy,
  type Value,
} from './values.js'

/** How a statement ended. */
export type Ending = 'on' | 'break' | 'continue'
export type Statement = (scope: Scope, out: Output) => Ending

// Of the template that is being compiled.
let plans: ReadonlyMap<Ast.Node, LoopPlan> = new Map()

/** A whole template. */
export function program(nodes: readonly Ast.Node[]): Statement {
  plans = planLoops(nodes)
  try {
    return block(nodes)
  } finally {
    plans = new Map()
  }
}

/** The statements of `nodes`, one after another. */
export function block(nodes: readonly Ast.Node[]): Statement {
  const steps = nodes.filter((node) => node.type !== 'Comment').map(statement)
  return (scope, out) => {
    for (const step of steps) {
      const ending = step(scope, out)
      if (ending !== 'on') return ending
    }
    return 'on'
  }
}

function statement(node: Ast.Node): Statement {
  const compile = COMPILERS[node.type]
  if (compile !== undefined) return compile(node as never)
  if (node.type === 'StringLiteral') {
    const text = String((node as Ast.Literal).value)
    return (_, out) => {
      out.text += text
      return 'on'
    }
  }
  const value = expression(node)
  return (scope, out) => {
    out.text += str(value(scope))
    return 'on'
  }
}

const COMPILERS: Readonly<Record<string, (node: never) => Statement>> = {
  If: (node: Ast.If) => {
    const [test, yes, no] = [expression(node.test), block(node.body), block(node.alternate)]
    return (scope, out) => (truthy(test(scope)) ? yes(scope, out) : no(scope, out))
  },
  For: forLoop,
  Set: set,
  Macro: (node: Ast.Macro) => {
    const make = macro(node.name.value, node.args, node.body)
    return (scope) => {
      scope.set(node.name.value, make(scope))
      return 'on'
    }
  },
  CallStatement: callBlock,
  FilterStatement: (node: Ast.FilterBlock) => {
    const body = block(node.body)
    const value = filtered((scope) => capture(body, scope), node.filter)
    return (scope, out) => {
      out.text += str(value(new Scope(scope)))
      return 'on'
    }
  },
  Break: () => () => 'break',
  Continue: () => () => 'continue',
}

function capture(body: Statement, scope: Scope): string {
  const out = new Output()
  body(scope, out)
  return out.text
}

type Assign = (scope: Scope, value: Value) => void

function assign(target: Ast.Node): Assign {
  if (target.type === 'Identifier') {
    const name = (target as Ast.Identifier).value
    return (scope, value) => scope.set(name, value)
  }
  if (target.type === 'TupleLiteral') {
    const targets = (target as Ast.ListLiteral).value.map(assign)
    return (scope, value) => {
      const items = isList(value) ? value : iterate(value)
      if (items.length !== targets.length) {
        throw new TemplateFault(`cannot unpack ${items.length} values into ${targets.length} names`)
      }
      for (const [i, to] of targets.entries()) to(scope, items[i])
    }
  }
  const { object, property } = target as Ast.Member
  if (target.type !== 'MemberExpression' || property.type !== 'Identifier') throw new SyntaxError('Cannot set this')
  const holder = expression(object)
  const name = (property as Ast.Identifier).value
  return (scope, value) => {
    const namespace = holder(scope)
    if (!(namespace instanceof Namespace)) throw new TemplateFault('cannot assign attribute on non-namespace object')
    namespace.values.set(name, value)
  }
}

function set(node: Ast.SetNode): Statement {
  const to = assign(node.assignee)
  const body = block(node.body)
  const value: Expression = node.value === null ? (scope) => capture(body, new Scope(scope)) : expression(node.value)
  return (scope) => {
    to(scope, value(scope))
    return 'on'
  }
}

function forLoop(node: Ast.For): Statement {
  const select = node.iterable.type === 'SelectExpression' ? (node.iterable as Ast.Select) : undefined
  const iterable = expression(select?.lhs ?? node.iterable)
  const test = select && expression(select.test)
  const to = assign(node.loopvar)
  const [body, otherwise] = [block(node.body), block(node.defaultBlock)]
  const plan = plans.get(node)
  const memo = plan && new LoopMemo(plan, body)
  const accepted = (scope: Scope, items: readonly Value[]): readonly Value[] => {
    if (test === undefined) return items
    return items.filter((entry) => {
      const inner = new Scope(scope)
      to(inner, entry)
      return truthy(test(inner))
    })
  }
  return (scope, out) => {
    const items = accepted(scope, iterate(iterable(scope)))
    const outer = scope.get('loop')
    const loop = new Loop(items, 0, outer instanceof Loop ? outer.depth + 1 : 1)
    for (; loop.index0 < items.length; loop.index0++) {
      const inner = new Scope(scope)
      inner.set('loop', loop)
      to(inner, items[loop.index0])
      const start = out.text.length
      out.watch?.enter(inner)
      const item = items[loop.index0]
      const ending = memo !== undefined && item instanceof SharedDict ? memo.run(item, inner, out) : body(inner, out)
      out.watch?.leave(inner, start, out.text.length)
      if (ending === 'break') break
    }
    return items.length === 0 ? otherwise(scope, out) : 'on'
  }
}

type MakeMacro = (scope: Scope, caller?: Callable) => Callable

function macro(name: string, parameters: Ast.Macro['args'], nodes: readonly Ast.Node[]): MakeMacro {
  const body = block(nodes)
  const known = parameters.map((parameter) => {
    if (parameter.type === 'Identifier') return { name: (parameter as Ast.Identifier).value, otherwise: undefined }
    const { key, value } = parameter as Ast.KeywordArgument
    return { name: key.value, otherwise: expression(value) }
  })
  return (scope) => (args, kwargs) => {
    const inner = new Scope(scope)
    const extra = new Map(kwargs)
    known.forEach(({ name: parameter, otherwise }, i) => {
      const given = i < args.length ? args[i] : extra.get(parameter)
      extra.delete(parameter)
      inner.set(parameter, given === undefined && i >= args.length ? otherwise?.(inner) : given)
    })
    inner.set('varargs', args.slice(known.length))
    inner.set('kwargs', new Map(extra))
    if (extra.has('caller')) inner.set('caller', extra.get('caller'))
    return runMacro(name, body, inner)
  }
}

function runMacro(name: string, body: Statement, scope: Scope): string {
  const out = new Output()
  if (body(scope, out) !== 'on') throw new TemplateFault(`break or continue outside of a loop in macro '${name}'`)
  return out.text
}

function callBlock(node: Ast.CallBlock): Statement {
  const evaluate = callArguments(node.call.args)
  const callee = expression(node.call.callee)
  const make = macro('caller', node.callerArgs ?? [], node.body)
  return (scope, out) => {
    const { args, kwargs } = evaluate(scope)
    const withCaller: Kwargs = new Map([...kwargs, ['caller', make(scope)]])
    out.text += str(callable(callee(scope), node.call.callee)(args, withCaller))
    return 'on'
  }
}
