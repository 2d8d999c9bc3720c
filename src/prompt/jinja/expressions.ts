// Compiles a template's expressions to closures, once per template; running one needs no syntax tree. Operators mean what
// they mean in Python.

import { attribute, callMethod, item, slice } from './access.js'
import { contains, filterNamed, testNamed } from './filters.js'
import type * as Ast from './nodes.js'
import { str } from './print.js'
import type { Scope } from './scope.js'
import { percent } from './text.js'
import {
  type Callable,
  compare,
  type Dict,
  equals,
  Float,
  isList,
  iterate,
  type Kwargs,
  NO_KWARGS,
  numeric,
  TemplateFault,
  Tuple,
  truthy,
  typeName,
  type Value,
} from './values.js'

export type Expression = (scope: Scope) => Value

export function expression(node: Ast.Node): Expression {
  const compile = COMPILERS[node.type]
  if (compile === undefined) throw new SyntaxError(`Unexpected ${node.type} in an expression`)
  return compile(node as never)
}

const COMPILERS: Readonly<Record<string, (node: never) => Expression>> = {
  IntegerLiteral: constant,
  StringLiteral: constant,
  FloatLiteral: (node: Ast.Literal) => {
    const value = new Float(Number(node.value))
    return () => value
  },
  ArrayLiteral: (node: Ast.ListLiteral) => {
    const items = node.value.map(expression)
    return (scope) => items.map((entry) => entry(scope))
  },
  TupleLiteral: (node: Ast.ListLiteral) => {
    const items = node.value.map(expression)
    return (scope) => Tuple.from(items, (entry) => entry(scope))
  },
  ObjectLiteral: dict,
  Identifier: (node: Ast.Identifier) => (scope) => scope.get(node.value),
  MemberExpression: member,
  CallExpression: call,
  FilterExpression: (node: Ast.Filtered) => filtered(expression(node.operand), node.filter),
  TestExpression: tested,
  UnaryExpression: unary,
  BinaryExpression: binary,
  Ternary: (node: Ast.Conditional) => {
    const [test, yes, no] = [expression(node.condition), expression(node.trueExpr), expression(node.falseExpr)]
    return (scope) => (truthy(test(scope)) ? yes(scope) : no(scope))
  },
  SelectExpression: (node: Ast.Select) => {
    const [test, yes] = [expression(node.test), expression(node.lhs)]
    return (scope) => (truthy(test(scope)) ? yes(scope) : undefined)
  },
}

function constant(node: Ast.Literal): Expression {
  return () => node.value
}

function dict(node: Ast.DictLiteral): Expression {
  const entries = [...node.value].map(([key, value]) => [expression(key), expression(value)] as const)
  return (scope) => {
    const made: Dict = new Map()
    for (const [key, value] of entries) made.set(key(scope), value(scope))
    return made
  }
}

function member(node: Ast.Member): Expression {
  const object = expression(node.object)
  const holder = (scope: Scope): Value => defined(object(scope), node.object)
  if (!node.computed) {
    const name = (node.property as Ast.Literal).value
    return typeof name === 'number' ? (scope) => item(holder(scope), name) : (scope) => attribute(holder(scope), name)
  }
  if (node.property.type === 'SliceExpression') {
    const { start, stop, step } = node.property as Ast.SliceNode
    const [from, to, by] = [start, stop, step].map((part) => (part === undefined ? undefined : expression(part)))
    return (scope) => slice(holder(scope), from?.(scope), to?.(scope), by?.(scope))
  }
  const key = expression(node.property)
  return (scope) => item(holder(scope), key(scope))
}

function describe(node: Ast.Node): string {
  if (node.type === 'Identifier') return (node as Ast.Identifier).value
  if (node.type !== 'MemberExpression') return 'value'
  const { object, property, computed } = node as Ast.Member
  const name = property.type === 'IntegerLiteral' || property.type === 'StringLiteral' || !computed
  return name ? `${describe(object)}.${(property as Ast.Literal).value}` : `${describe(object)}[...]`
}

/** Evaluates the arguments of a call: positional, then by name. */
export type Arguments = (scope: Scope) => { readonly args: readonly Value[]; readonly kwargs: Kwargs }

export function callArguments(nodes: readonly Ast.Node[]): Arguments {
  const positional = nodes.filter((node) => node.type !== 'KeywordArgumentExpression' && !node.type.includes('Spread'))
  const named = nodes.filter((node) => node.type === 'KeywordArgumentExpression') as Ast.KeywordArgument[]
  const spread = nodes.find((node) => node.type === 'SpreadExpression') as Ast.Spread | undefined
  const namedSpread = nodes.find((node) => node.type === 'KeywordSpreadExpression') as Ast.Spread | undefined
  const values = positional.map(expression)
  const kwValues = named.map((node) => [node.key.value, expression(node.value)] as const)
  const rest = spread && expression(spread.argument)
  const kwRest = namedSpread && expression(namedSpread.argument)
  return (scope) => {
    const args = values.map((value) => value(scope))
    if (rest !== undefined) args.push(...iterate(rest(scope)))
    if (kwValues.length === 0 && kwRest === undefined) return { args, kwargs: NO_KWARGS }
    const kwargs = new Map<string, Value>(kwValues.map(([name, value]) => [name, value(scope)]))
    const more = kwRest?.(scope)
    if (more instanceof Map) for (const [name, value] of more) kwargs.set(str(name), value)
    return { args, kwargs }
  }
}

function call(node: Ast.Call): Expression {
  const evaluate = callArguments(node.args)
  const callee = node.callee as Ast.Member
  if (callee.type === 'MemberExpression' && !callee.computed && callee.property.type === 'Identifier') {
    const object = expression(callee.object)
    const name = (callee.property as Ast.Identifier).value
    return (scope) => {
      const target = defined(object(scope), callee.object)
      const { args, kwargs } = evaluate(scope)
      return callMethod(target, name, args, kwargs)
    }
  }
  const target = expression(node.callee)
  return (scope) => {
    const { args, kwargs } = evaluate(scope)
    return callable(target(scope), node.callee)(args, kwargs)
  }
}

export function callable(value: Value, node: Ast.Node): Callable {
  if (typeof value === 'function') return value
  throw new TemplateFault(
    value === undefined ? `'${describe(node)}' is undefined` : `'${typeName(value)}' is not callable`,
  )
}

/** `operand | filter` */
export function filtered(operand: Expression, node: Ast.Identifier | Ast.Call): Expression {
  const isCall = node.type === 'CallExpression'
  const name = isCall ? ((node as Ast.Call).callee as Ast.Identifier).value : (node as Ast.Identifier).value
  const evaluate = callArguments(isCall ? (node as Ast.Call).args : [])
  return (scope) => {
    const { args, kwargs } = evaluate(scope)
    return filterNamed(name)(operand(scope), args, kwargs)
  }
}

function tested(node: Ast.Tested): Expression {
  const operand = expression(node.operand)
  const name = node.test.value
  return (scope) => testNamed(name)(operand(scope), []) !== node.negate
}

function unary(node: Ast.Unary): Expression {
  const argument = expression(node.argument)
  if (node.operator.value === 'not') return (scope) => !truthy(argument(scope))
  const sign = node.operator.value === '-' ? -1 : 1
  return (scope) => {
    const value = argument(scope)
    const known = numeric(value)
    if (known === undefined)
      throw new TemplateFault(`bad operand type for unary ${node.operator.value}: '${typeName(value)}'`)
    return value instanceof Float ? new Float(sign * known) : sign * known
  }
}

function binary(node: Ast.Binary): Expression {
  const [left, right] = [expression(node.left), expression(node.right)]
  switch (node.operator.value) {
    case 'and':
      return (scope) => {
        const value = left(scope)
        return truthy(value) ? right(scope) : value
      }
    case 'or':
      return (scope) => {
        const value = left(scope)
        return truthy(value) ? value : right(scope)
      }
    case '==':
      return (scope) => equals(left(scope), right(scope))
    case '!=':
      return (scope) => !equals(left(scope), right(scope))
    case 'in':
      return (scope) => contains(right(scope), left(scope))
    case 'not in':
      return (scope) => !contains(right(scope), left(scope))
    case '~':
      return (scope) => str(left(scope)) + str(right(scope))
    case '<':
      return (scope) => compare(left(scope), right(scope)) < 0
    case '<=':
      return (scope) => compare(left(scope), right(scope)) <= 0
    case '>':
      return (scope) => compare(left(scope), right(scope)) > 0
    case '>=':
      return (scope) => compare(left(scope), right(scope)) >= 0
    case '+':
      return (scope) => add(defined(left(scope), node.left), defined(right(scope), node.right))
    default:
      return (scope) =>
        arithmetic(node.operator.value, defined(left(scope), node.left), defined(right(scope), node.right))
  }
}

function defined(value: Value, node: Ast.Node): Value {
  if (value === undefined) throw new TemplateFault(`'${describe(node)}' is undefined`)
  return value
}

function add(a: Value, b: Value): Value {
  if (typeof a === 'string' && typeof b === 'string') return a + b
  if (isList(a) && isList(b)) return [...a, ...b]
  if (typeof a === 'string') throw new TemplateFault(`can only concatenate str (not "${typeName(b)}") to str`)
  return arithmetic('+', a, b)
}

function arithmetic(operator: string, a: Value, b: Value): Value {
  if (operator === '%' && typeof a === 'string') return percent(a, isList(b) ? b : [b])
  if (operator === '*' && typeof a === 'string' && typeof b === 'number') return a.repeat(Math.max(0, b))
  const [x, y] = [numeric(a), numeric(b)]
  if (x === undefined || y === undefined) {
    throw new TemplateFault(`unsupported operand types for ${operator}: '${typeName(a)}' and '${typeName(b)}'`)
  }
  if (y === 0 && ['/', '//', '%'].includes(operator)) throw new TemplateFault('division by zero')
  const result = compute(operator, x, y)
  const isFloat = a instanceof Float || b instanceof Float || operator === '/' || (operator === '**' && y < 0)
  return isFloat ? new Float(result) : result
}

function compute(operator: string, x: number, y: number): number {
  switch (operator) {
    case '+':
      return x + y
    case '-':
      return x - y
    case '*':
      return x * y
    case '/':
      return x / y
    case '//':
      return Math.floor(x / y)
    case '%':
      return x - y * Math.floor(x / y)
    case '**':
      return x ** y
    default:
      throw new SyntaxError(`Unknown operator '${operator}'`)
  }
}
