// Reads PromQL as far as dashboards and alerts use it: what an expression selects, and by which labels. Throws at what
// Prometheus would not take either: a word that is no function, a bracket without its mate, a range where none may be.

/** A time series that an expression reads. */
export interface Selected {
  readonly metric: string
  /** Label -> what it is matched with; a pattern's alternatives apart. */
  readonly matchers: readonly { readonly label: string; readonly values: readonly string[] }[]
}

export interface Query {
  readonly selected: readonly Selected[]
  /** Labels that are grouped or joined by, with the metrics that must have them. */
  readonly grouped: readonly { readonly label: string; readonly metrics: readonly string[] }[]
}

/** Function -> whether it takes a range. */
const FUNCTIONS: Readonly<Record<string, boolean>> = {
  rate: true,
  increase: true,
  delta: true,
  avg_over_time: true,
  max_over_time: true,
  min_over_time: true,
  histogram_quantile: false,
  clamp_min: false,
  clamp_max: false,
  absent: false,
  scalar: false,
  vector: false,
}
const AGGREGATIONS = ['sum', 'min', 'max', 'avg', 'count', 'topk', 'bottomk', 'quantile']
const OPERATORS = ['or', 'and', 'unless', '==', '!=', '<=', '>=', '<', '>', '+', '-', '*', '/', '%', '^']
const DURATION = /^(\d+(ms|[smhdwy]))+$/
const TOKEN =
  /\s*("(?:[^"\\]|\\.)*"|\$__\w+|(?:\d+(?:ms|[smhdwy]))+(?![\w])|\d+(?:\.\d+)?|[a-zA-Z_:][\w:]*|[=!]~|[=!<>]=|[-+*/%^<>=(){}[\],])/y

/** @throws Error that shows the place. */
export function readQuery(text: string): Query {
  const reader = new Reader(text)
  reader.expression()
  reader.expect(undefined)
  return reader
}

class Reader implements Query {
  readonly selected: Selected[] = []
  readonly grouped: { label: string; metrics: string[] }[] = []
  readonly #tokens: string[] = []
  readonly #text: string
  #at = 0

  constructor(text: string) {
    this.#text = text
    TOKEN.lastIndex = 0
    while (TOKEN.lastIndex < text.trimEnd().length) {
      const from = TOKEN.lastIndex
      const token = TOKEN.exec(text)?.[1]
      if (token === undefined) throw new Error(`'${text.slice(from, from + 20)}' is no PromQL in: ${text}`)
      this.#tokens.push(token)
    }
  }

  /** `undefined`: the end. */
  expect(token: string | undefined): void {
    const found = this.#next()
    if (found !== token) throw new Error(`'${token ?? 'the end'}' should stand where '${found}' is in: ${this.#text}`)
  }

  /** Operators bind as they may: what is selected and grouped is the same. Returns the metrics that it reads. */
  expression(): string[] {
    const metrics = this.#operand()
    while (OPERATORS.includes(this.#peek() ?? '')) {
      this.#next()
      this.#take('bool')
      const joined = this.#take('on') || this.#take('ignoring') ? this.#labels() : []
      if (this.#take('group_left') || this.#take('group_right')) this.#labels()
      metrics.push(...this.#operand())
      // What both sides are joined on or in spite of, one of them has.
      for (const label of joined) this.grouped.push({ label, metrics: metrics.slice(0, 1) })
    }
    return metrics
  }

  #operand(): string[] {
    const token = this.#next() ?? ''
    if (token === '-') return this.#operand()
    if (token === '(') {
      const metrics = this.expression()
      this.expect(')')
      return metrics
    }
    if (/^\d/.test(token) && !DURATION.test(token)) return []
    if (AGGREGATIONS.includes(token)) return this.#aggregation()
    if (this.#peek() === '(') return this.#call(token)
    if (!/^[a-zA-Z_:]/.test(token)) throw new Error(`'${token}' cannot stand there in: ${this.#text}`)
    return this.#selector(token, false)
  }

  #aggregation(): string[] {
    let by = this.#take('by') ? this.#labels() : []
    this.expect('(')
    const metrics = this.expression()
    while (this.#take(',')) metrics.push(...this.expression())
    this.expect(')')
    if (by.length === 0 && this.#take('by')) by = this.#labels()
    for (const label of by) this.grouped.push({ label, metrics })
    return metrics
  }

  #call(name: string): string[] {
    const takesRange = FUNCTIONS[name]
    if (takesRange === undefined) throw new Error(`'${name}' is no function that is known in: ${this.#text}`)
    this.expect('(')
    const metrics = takesRange ? this.#selector(this.#next() ?? '', true) : this.expression()
    while (this.#take(',')) metrics.push(...this.expression())
    this.expect(')')
    return metrics
  }

  #selector(metric: string, takesRange: boolean): string[] {
    const matchers: { label: string; values: string[] }[] = []
    if (this.#take('{')) {
      while (!this.#take('}')) {
        const label = this.#next() ?? ''
        const operator = this.#next() ?? ''
        if (!['=', '!=', '=~', '!~'].includes(operator)) throw new Error(`'${operator}' matches nothing: ${this.#text}`)
        const value = JSON.parse(this.#next() ?? '') as string
        matchers.push({ label, values: operator.endsWith('~') ? value.split('|') : [value] })
        if (this.#peek() !== '}') this.expect(',')
      }
    }
    const hasRange = this.#take('[')
    if (hasRange) {
      const range = this.#next() ?? ''
      if (!DURATION.test(range) && !range.startsWith('$__')) throw new Error(`'${range}' is no range: ${this.#text}`)
      this.expect(']')
    }
    if (hasRange !== takesRange) throw new Error(`${metric} ${hasRange ? 'has a' : 'needs a'} range: ${this.#text}`)
    if (this.#take('offset') && !DURATION.test(this.#next() ?? '')) throw new Error(`offset of what: ${this.#text}`)
    this.selected.push({ metric, matchers })
    return [metric]
  }

  #labels(): string[] {
    const labels: string[] = []
    this.expect('(')
    while (!this.#take(')')) {
      labels.push(this.#next() ?? '')
      if (this.#peek() !== ')') this.expect(',')
    }
    return labels
  }

  #take(token: string): boolean {
    if (this.#peek() !== token) return false
    this.#at++
    return true
  }

  #peek(): string | undefined {
    return this.#tokens[this.#at]
  }

  #next(): string | undefined {
    return this.#tokens[this.#at++]
  }
}
