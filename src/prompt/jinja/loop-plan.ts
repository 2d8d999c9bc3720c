// What a loop's body depends on beside its item, read off the syntax tree: the basis of loop-memo.ts. Invariant: a body
// with a plan gives the same text, the same ending and the same writes whenever its item and the values of all contexts
// are the same; what cannot be shown to be so has no plan.
//
//   {% if loop.index0 > ns.last %}                     outer: a context, of which only the truth counts
//   {{ '<s>' + message.role + suffix }}                local, with the outer name `suffix` in it: a context
//   {% set ns.first = false %}                         a write; `ns.first` as it was before is a context

import type * as Ast from './nodes.js'

/** An expression whose value is looked at before the body runs. */
export interface Context {
  readonly node: Ast.Node
  /** Only whether it is true counts. */
  readonly truth: boolean
}

export interface LoopPlan {
  readonly contexts: readonly Context[]
  /** Attributes of outer namespaces that the body sets. */
  readonly writes: readonly { readonly namespace: string; readonly name: string }[]
}

/** `outer` can be known before the body runs, `local` cannot, `constant` never changes. */
type Kind = 'constant' | 'outer' | 'local'

/** The body does something that cannot be planned. */
class Unplanned extends Error {}

const BUILTINS = new Set(['range', 'namespace', 'dict', 'raise_exception'])
const CONSTANTS = new Set(['true', 'True', 'false', 'False', 'none', 'None'])
const MUTATORS = new Set(['append', 'extend', 'insert', 'pop', 'update', 'setdefault', 'clear', 'remove', 'sort'])

/** Plans of the loops of a template that stand in no other loop and in no macro. */
export function planLoops(program: readonly Ast.Node[]): ReadonlyMap<Ast.Node, LoopPlan> {
  const macros = macrosOf(program)
  const plans = new Map<Ast.Node, LoopPlan>()
  const visit = (nodes: readonly Ast.Node[]): void => {
    for (const node of nodes) {
      if (node.type === 'If') visit([...(node as Ast.If).body, ...(node as Ast.If).alternate])
      if (node.type !== 'For') continue
      const plan = planOf(node as Ast.For, macros)
      if (plan !== undefined) plans.set(node, plan)
    }
  }
  visit(program)
  return plans
}

/** Macros outside of loops, by names that mean nothing else. */
function macrosOf(program: readonly Ast.Node[]): ReadonlyMap<string, Ast.Macro> {
  const found = new Map<string, Ast.Macro | undefined>()
  const taken = new Set<string>()
  const visit = (nodes: readonly Ast.Node[], place: 'loop' | 'top'): void => {
    for (const node of nodes) {
      if (node.type === 'Macro') {
        const name = (node as Ast.Macro).name.value
        found.set(name, found.has(name) || place === 'loop' ? undefined : (node as Ast.Macro))
        visit((node as Ast.Macro).body, 'loop')
      }
      for (const name of namesSetBy(node)) taken.add(name)
      if (node.type === 'If') visit([...(node as Ast.If).body, ...(node as Ast.If).alternate], place)
      if (node.type === 'For') visit([...(node as Ast.For).body, ...(node as Ast.For).defaultBlock], 'loop')
      if (node.type === 'Set') visit((node as Ast.SetNode).body, 'loop')
    }
  }
  visit(program, 'top')
  return new Map([...found].flatMap(([name, macro]) => (macro === undefined || taken.has(name) ? [] : [[name, macro]])))
}

/** Names that a statement itself gives a value to. */
function namesSetBy(node: Ast.Node): string[] {
  if (node.type === 'Set') return targetNames((node as Ast.SetNode).assignee)
  return node.type === 'For' ? targetNames((node as Ast.For).loopvar) : []
}

function targetNames(target: Ast.Node): string[] {
  if (target.type === 'Identifier') return [(target as Ast.Identifier).value]
  return target.type === 'TupleLiteral' ? (target as Ast.ListLiteral).value.flatMap(targetNames) : []
}

function planOf(loop: Ast.For, macros: ReadonlyMap<string, Ast.Macro>): LoopPlan | undefined {
  if (!writesText(loop.body)) return undefined
  try {
    return new Planner(loop, macros).plan()
  } catch (error) {
    if (error instanceof Unplanned) return undefined
    throw error
  }
}

/** Loops that only look something up are not worth remembering: what they depend on is mostly different in each turn. */
function writesText(nodes: readonly Ast.Node[]): boolean {
  return nodes.some((node) => {
    if (node.type === 'StringLiteral') return String((node as Ast.Literal).value).trim() !== ''
    if (node.type === 'Set') return false
    const isStatement = ['If', 'For', 'FilterStatement', 'Break', 'Continue', 'Comment'].includes(node.type)
    return isStatement ? writesText(bodiesOf(node)) : true
  })
}

type Locals = ReadonlySet<string>

class Planner {
  readonly #loop: Ast.For
  readonly #macros: ReadonlyMap<string, Ast.Macro>
  readonly #visited = new Set<string>()
  readonly #contexts = new Map<string, Context>()
  readonly #writes = new Map<string, { readonly namespace: string; readonly name: string }>()
  /** Attribute names that are set somewhere in the body: what they were before is a context of its own. */
  readonly #written = new Set<string>()
  /** Names of the iteration itself: a macro that means another thing by one of them cannot be looked into. */
  readonly #own: Locals

  constructor(loop: Ast.For, macros: ReadonlyMap<string, Ast.Macro>) {
    this.#loop = loop
    this.#macros = macros
    this.#own = new Set([...targetNames(loop.loopvar), ...setNames(loop.body)])
    for (const nodes of [loop.body, ...[...macros.values()].map(({ body }) => body)]) {
      for (const name of attributesSet(nodes)) this.#written.add(name)
    }
  }

  plan(): LoopPlan {
    const { loopvar, body } = this.#loop
    if (loopvar.type !== 'Identifier') throw new Unplanned()
    // A name that the body sets may be read before, and then is the outer one.
    for (const name of setNames(body)) {
      if (!targetNames(loopvar).includes(name)) this.#add({ type: 'Identifier', value: name } as Ast.Identifier, false)
    }
    this.#block(body, this.#own)
    return { contexts: [...this.#contexts.values()], writes: [...this.#writes.values()] }
  }

  #add(node: Ast.Node, truth: boolean): void {
    const key = `${truth} ${JSON.stringify(node, (_, value) => (value instanceof Map ? [...value] : value))}`
    this.#contexts.set(key, { node, truth })
  }

  #block(nodes: readonly Ast.Node[], locals: Locals): void {
    for (const node of nodes) this.#statement(node, locals)
  }

  #statement(node: Ast.Node, locals: Locals): void {
    switch (node.type) {
      case 'Comment':
      case 'Break':
      case 'Continue':
        return
      case 'If': {
        const { test, body, alternate } = node as Ast.If
        this.#leaf(test, locals, true)
        this.#block(body, locals)
        this.#block(alternate, locals)
        return
      }
      case 'For': {
        const { loopvar, iterable, body, defaultBlock } = node as Ast.For
        const inner = new Set([...locals, ...targetNames(loopvar), ...setNames(body), 'loop'])
        if (iterable.type === 'SelectExpression') {
          this.#leaf((iterable as Ast.Select).lhs, locals, false)
          this.#leaf((iterable as Ast.Select).test, new Set([...locals, ...targetNames(loopvar)]), false)
        } else this.#leaf(iterable, locals, false)
        this.#block(body, inner)
        this.#block(defaultBlock, locals)
        return
      }
      case 'Set':
        this.#set(node as Ast.SetNode, locals)
        return
      case 'FilterStatement': {
        const { filter, body } = node as Ast.FilterBlock
        if (filter.type === 'CallExpression')
          for (const arg of bare((filter as Ast.Call).args)) this.#leaf(arg, locals, false)
        this.#block(body, locals)
        return
      }
      case 'Macro':
      case 'CallStatement':
        throw new Unplanned()
      default:
        this.#leaf(node, locals, false)
    }
  }

  #set({ assignee, value, body }: Ast.SetNode, locals: Locals): void {
    if (value !== null) this.#leaf(value, locals, false)
    this.#block(body, locals)
    if (assignee.type !== 'MemberExpression') return
    const { object, property } = assignee as Ast.Member
    if (object.type !== 'Identifier') throw new Unplanned()
    const [namespace, name] = [(object as Ast.Identifier).value, (property as Ast.Identifier).value]
    if (locals.has(namespace)) return
    this.#writes.set(`${namespace}.${name}`, { namespace, name })
    // A path that does not write leaves what was there.
    this.#add(assignee, false)
  }

  /** An expression that no larger one uses: outer, it is a context as a whole. */
  #leaf(node: Ast.Node, locals: Locals, truth: boolean): void {
    if (this.#kind(node, locals, truth) === 'outer') this.#add(node, truth)
  }

  /** `truth`: only whether it is true counts. */
  #kind(node: Ast.Node, locals: Locals, truth: boolean): Kind {
    switch (node.type) {
      case 'IntegerLiteral':
      case 'FloatLiteral':
      case 'StringLiteral':
        return 'constant'
      case 'Identifier':
        return this.#identifier(node as Ast.Identifier, locals)
      case 'MemberExpression':
        return this.#member(node as Ast.Member, locals)
      case 'CallExpression':
        return this.#call(node as Ast.Call, locals)
      default:
        return this.#together(partsOf(node, truth), locals)
    }
  }

  /** Outer only if all parts are; else the outer ones among them are contexts, each for itself. */
  #together(parts: readonly Context[], locals: Locals): Kind {
    const kinds = parts.map(({ node, truth }) => this.#kind(node, locals, truth))
    if (!kinds.includes('local')) return kinds.includes('outer') ? 'outer' : 'constant'
    for (const [i, { node, truth }] of parts.entries()) if (kinds[i] === 'outer') this.#add(node, truth)
    return 'local'
  }

  #identifier({ value: name }: Ast.Identifier, locals: Locals): Kind {
    if (locals.has(name)) return 'local'
    if (this.#macros.has(name) || BUILTINS.has(name)) throw new Unplanned()
    return CONSTANTS.has(name) ? 'constant' : 'outer'
  }

  #member(node: Ast.Member, locals: Locals): Kind {
    const { object, property, computed } = node
    const isNamed = !computed || property.type === 'StringLiteral'
    if (isNamed && this.#written.has(String((property as Ast.Literal).value))) {
      if (this.#kind(object, locals, false) !== 'outer') return 'local'
      this.#add(node, false)
      return 'local'
    }
    // A name that is worked out may be one that is set.
    if (!isNamed && this.#written.size > 0 && !isNumeric(property)) throw new Unplanned()
    return this.#together(values(computed ? [object, property] : [object]), locals)
  }

  #call({ callee, args }: Ast.Call, locals: Locals): Kind {
    if (callee.type === 'MemberExpression') {
      const { object, property, computed } = callee as Ast.Member
      if (computed || MUTATORS.has(String((property as Ast.Literal).value))) throw new Unplanned()
      return this.#together(values([object, ...args]), locals)
    }
    if (callee.type !== 'Identifier') throw new Unplanned()
    const name = (callee as Ast.Identifier).value
    const macro = locals.has(name) ? undefined : this.#macros.get(name)
    if (macro === undefined && (locals.has(name) || !BUILTINS.has(name)))
      return this.#together(values([callee, ...args]), locals)
    for (const arg of bare(args)) this.#leaf(arg, locals, false)
    if (macro !== undefined) this.#macro(name, macro)
    return 'local'
  }

  /** What a macro's body depends on, beside what it is called with. */
  #macro(name: string, macro: Ast.Macro): void {
    if (this.#visited.has(name)) return
    this.#visited.add(name)
    this.#add({ type: 'Identifier', value: name } as Ast.Identifier, true)
    const before = new Set(this.#contexts.keys())
    const names = macro.args.map((parameter) =>
      parameter.type === 'Identifier'
        ? (parameter as Ast.Identifier).value
        : (parameter as Ast.KeywordArgument).key.value,
    )
    const locals = new Set([...names, ...setNames(macro.body), 'varargs', 'kwargs', 'caller'])
    for (const parameter of macro.args) {
      if (parameter.type !== 'Identifier') this.#leaf((parameter as Ast.KeywordArgument).value, new Set(names), false)
    }
    for (const set of setNames(macro.body)) {
      if (!names.includes(set)) this.#add({ type: 'Identifier', value: set } as Ast.Identifier, false)
    }
    this.#block(macro.body, locals)
    // Contexts are looked at in the iteration's scope, where these names must mean what they mean to the macro.
    for (const [key, { node }] of this.#contexts) {
      if (before.has(key)) continue
      for (const used of identifiersIn(node)) if (used === 'loop' || this.#own.has(used)) throw new Unplanned()
    }
  }
}

/** It can be no name: positions in lists are sums and differences with a number in them, or slices. */
function isNumeric(node: Ast.Node): boolean {
  if (node.type === 'BinaryExpression') {
    const { operator, left, right } = node as Ast.Binary
    return operator.value === '-' || (operator.value === '+' && (isNumeric(left) || isNumeric(right)))
  }
  return ['IntegerLiteral', 'UnaryExpression', 'SliceExpression'].includes(node.type)
}

const values = (nodes: readonly Ast.Node[]): Context[] => bare(nodes).map((node) => ({ node, truth: false }))

/** Expressions that an expression is made of; `truth`: of which only the truth counts. */
function partsOf(node: Ast.Node, truth: boolean): Context[] {
  switch (node.type) {
    case 'ArrayLiteral':
    case 'TupleLiteral':
      return values((node as Ast.ListLiteral).value)
    case 'ObjectLiteral':
      return values([...(node as Ast.DictLiteral).value].flat())
    case 'BinaryExpression': {
      const { operator, left, right } = node as Ast.Binary
      const inherits = truth && (operator.value === 'and' || operator.value === 'or')
      return [left, right].map((part) => ({ node: part, truth: inherits }))
    }
    case 'UnaryExpression': {
      const { operator, argument } = node as Ast.Unary
      return [{ node: argument, truth: operator.value === 'not' }]
    }
    case 'TestExpression':
      return values([(node as Ast.Tested).operand])
    case 'FilterExpression':
      return values(filterParts(node as Ast.Filtered))
    case 'SelectExpression': {
      const { lhs, test } = node as Ast.Select
      return [
        { node: test, truth: true },
        { node: lhs, truth },
      ]
    }
    case 'Ternary': {
      const { condition, trueExpr, falseExpr } = node as Ast.Conditional
      return [{ node: condition, truth: true }, ...[trueExpr, falseExpr].map((part) => ({ node: part, truth }))]
    }
    default:
      throw new Unplanned()
  }
}

/** The expressions in `nodes`, out of what only stands in calls and brackets. */
function bare(nodes: readonly Ast.Node[]): Ast.Node[] {
  return nodes.flatMap((node) => {
    if (node.type === 'KeywordArgumentExpression') return [(node as Ast.KeywordArgument).value]
    if (node.type.endsWith('SpreadExpression')) return [(node as Ast.Spread).argument]
    if (node.type !== 'SliceExpression') return [node]
    const { start, stop, step } = node as Ast.SliceNode
    return [start, stop, step].filter((part) => part !== undefined)
  })
}

function filterParts({ operand, filter }: Ast.Filtered): Ast.Node[] {
  const isCall = filter.type === 'CallExpression'
  const named = isCall ? (filter as Ast.Call).callee : filter
  // Reads an attribute by a name that is worked out.
  if ((named as Ast.Identifier).value === 'attr') throw new Unplanned()
  return isCall ? [operand, ...(filter as Ast.Call).args] : [operand]
}

/** Names that statements in `nodes` set, inner loops' and blocks' too. */
function setNames(nodes: readonly Ast.Node[]): string[] {
  return nodes.flatMap((node) => {
    const own = node.type === 'Set' ? namesSetBy(node) : []
    return [...own, ...setNames(bodiesOf(node))]
  })
}

/** Attributes that statements in `nodes` set. */
function attributesSet(nodes: readonly Ast.Node[]): string[] {
  return nodes.flatMap((node) => {
    const { assignee } = node as Ast.SetNode
    const isOne = node.type === 'Set' && assignee.type === 'MemberExpression'
    const own = isOne ? [String(((assignee as Ast.Member).property as Ast.Identifier).value)] : []
    return [...own, ...attributesSet(bodiesOf(node))]
  })
}

function bodiesOf(node: Ast.Node): readonly Ast.Node[] {
  if (node.type === 'If') return [...(node as Ast.If).body, ...(node as Ast.If).alternate]
  if (node.type === 'For') return [...(node as Ast.For).body, ...(node as Ast.For).defaultBlock]
  return node.type === 'Set' || node.type === 'FilterStatement' ? (node as Ast.SetNode).body : []
}

function identifiersIn(node: Ast.Node): string[] {
  if (node.type === 'Identifier') return [(node as Ast.Identifier).value]
  if (node.type === 'MemberExpression') {
    const { object, property, computed } = node as Ast.Member
    return [object, ...(computed ? bare([property]) : [])].flatMap(identifiersIn)
  }
  if (node.type === 'CallExpression') {
    const { callee, args } = node as Ast.Call
    return [callee, ...bare(args)].flatMap(identifiersIn)
  }
  return node.type.endsWith('Literal') && !['ArrayLiteral', 'TupleLiteral', 'ObjectLiteral'].includes(node.type)
    ? []
    : partsOf(node, false).flatMap((part) => identifiersIn(part.node))
}
