// What the decoder is held to, after tools, tool choice, strict schemas and reasoning were worked into the request's own
// constraint; serve.ts puts it on the job. Invariant: a pure function that touches neither messages nor definitions, so
// that the prompt and its cached prefix are the same whatever may be called.
//
//   required, named   calls
//   auto, narrowed    free text without the trigger, then calls of what is allowed
//   none              free text without the trigger
//   auto, answer form the form, or calls
//   reasoning         any text up to its end, then all of the above

import { RefrainError } from '../core/errors.js'
import { isPattern, NamePatterns } from '../core/name-pattern.js'
import type { Constraint, GenerateRequest, Structure, ToolChoice, ToolDefinition } from '../core/request.js'
import type { ModelFormats } from './contract.js'
import type { CallableTool } from './tool-calls/contract.js'
import { rawMembers } from './tool-calls/raw-json.js'

export interface CallConstraintInput {
  readonly request: Pick<GenerateRequest, 'prompt' | 'toolChoice' | 'constraint'>
  readonly formats: ModelFormats
  /** The end of the rendered prompt: whether reasoning is open there. */
  readonly tail: string
  /** Tools are shown that the request does not have; none of them may be called. */
  readonly keepsTools?: boolean
}

/**
 * The constraint of a job; undefined: the model is free.
 * @throws RefrainError `invalid_request` where the choice names what is not there or leaves nothing to call,
 * `unsupported_parameter` where the model's calls have no form that could be forced.
 */
export function callConstraint({ request, formats, tail, keepsTools }: CallConstraintInput): Constraint | undefined {
  const { prompt, constraint } = request
  if (prompt.kind !== 'chat') return constraint
  const place = formats.reasoningPlace?.(tail) ?? 'behind'
  const answer = constraint && answerOf(constraint, place === 'behind' ? undefined : formats.answerStart)
  const choice: ToolChoice = keepsTools === true ? { mode: 'none' } : (request.toolChoice ?? { mode: 'auto' })
  const isShown = prompt.tools.length > 0 || keepsTools === true
  if (!isShown && choice.mode === 'required') throw refused("'tool_choice' needs 'tools'")
  const inner = isShown ? withTools(prompt.tools, choice, formats, answer) : answer
  if (inner === undefined) return undefined
  // A text that is continued is past the place where reasoning could begin.
  const isPast = place === 'behind' || (place === 'before' && prompt.continueFinal === true)
  const structure = isPast ? inner : behindReasoning(inner, place, formats)
  return structure === constraint ? constraint : { kind: 'structure', structure }
}

/** The form of a plain answer, with what stands in front of one. */
function answerOf(constraint: Constraint, start: string | undefined): Structure {
  const answer = constraint.kind === 'structure' ? constraint.structure : constraint
  return start === undefined ? answer : { kind: 'sequence', parts: [{ kind: 'literal', text: start }, answer] }
}

function withTools(
  tools: readonly ToolDefinition[],
  choice: ToolChoice,
  { callStructure, callTrigger }: ModelFormats,
  answer: Structure | undefined,
): Structure | undefined {
  const free: Structure | undefined = callTrigger ? { kind: 'free', without: [callTrigger] } : undefined
  if (choice.mode === 'none') return answer ?? free
  const callable = allowedTools(tools, choice.allowed)
  const isNarrowed = callable.length < new Set(tools.map(({ name }) => name)).size
  if (callStructure === undefined || free === undefined) {
    if (choice.mode === 'auto' && !isNarrowed) return answer
    throw new RefrainError(
      'unsupported_parameter',
      "'tool_choice' cannot be honoured: this model's calls have no form that could be forced",
      { param: 'tool_choice' },
    )
  }
  const max = choice.parallel === false ? 1 : undefined
  const read = callable.map(readTool)
  const isForced = choice.mode === 'required'
  if (!isForced && answer === undefined && !isNarrowed && max === undefined && !read.some(({ strict }) => strict)) {
    return undefined
  }
  // Where the model is free to call or not, only what is strict is held to its schema.
  const given = read.map(
    ({ name, schema, strict }): CallableTool => ({ name, schema: isForced || strict ? schema : undefined }),
  )
  const calls = marked(callStructure(given, { min: 1, ...(max === undefined ? {} : { max }) }), read)
  if (isForced) return calls
  if (answer !== undefined) return { kind: 'choice', parts: [answer, calls] }
  return { kind: 'sequence', parts: [free, { kind: 'repeat', part: calls, min: 0, max: 1 }] }
}

/** Tools that may be called, in the order of their definitions; of two with one name the first. */
function allowedTools(tools: readonly ToolDefinition[], allowed: ToolChoice['allowed']): readonly ToolDefinition[] {
  const byName = new Map(tools.toReversed().map((tool) => [tool.name, tool]))
  const unknown = allowed?.find((name) => !isPattern(name) && !byName.has(name))
  if (unknown !== undefined) throw refused(`'tool_choice' names '${unknown.slice(0, 64)}', which is not in 'tools'`)
  const set = allowed && new NamePatterns(allowed)
  const left = tools.filter((tool) => byName.get(tool.name) === tool && (set?.has(tool.name) ?? true))
  if (left.length === 0) throw refused("'tool_choice' leaves no tool of 'tools' that may be called")
  return left
}

function refused(message: string): RefrainError {
  return new RefrainError('invalid_request', message, { param: 'tool_choice' })
}

interface ReadTool extends CallableTool {
  readonly strict: boolean
}

/** A definition as any dialect has it: the function's members nested or flat. */
function readTool({ name, json }: ToolDefinition): ReadTool {
  const outer = rawMembers(json)
  const members = rawMembers(outer?.get('function') ?? '') ?? outer
  const schema = members?.get('parameters') ?? members?.get('input_schema')
  const strict = (members?.get('strict') ?? outer?.get('strict')) === 'true'
  return { name, schema: schema && objectSchema(schema), strict }
}

/** A schema of arguments, which are an object even where it does not say so; undefined: it says nothing. */
function objectSchema(schema: string): string | undefined {
  const members = rawMembers(schema)
  if (members === undefined || members.size === 0) return undefined
  if (members.has('type') || members.has('$ref')) return schema
  return `{"type": "object", ${schema.trim().slice(1)}`
}

/**
 * Schemas of tools that are not strict give way where no grammar can be written for them. Strict ones never do, nor do
 * pieces of schemas that cannot be told apart.
 */
function marked(structure: Structure, tools: readonly ReadTool[]): Structure {
  const ofStrict = tools.filter(({ strict }) => strict).map(({ schema }) => schema ?? '')
  const others = tools.filter(({ strict }) => !strict).map(({ schema }) => schema ?? '')
  const isLenient = (schema: string) =>
    ofStrict.length === 0 ||
    (others.some((each) => each.includes(schema)) && !ofStrict.some((each) => each.includes(schema)))
  const mark = (part: Structure): Structure => {
    switch (part.kind) {
      case 'json-schema':
        return { ...part, param: 'tools', ...(isLenient(part.schema) && { lenient: true }) }
      case 'repeat':
        return { ...part, part: mark(part.part) }
      case 'sequence':
      case 'choice':
        return { ...part, parts: part.parts.map(mark) }
      default:
        return part
    }
  }
  return mark(structure)
}

/** What parsers leave out between reasoning and answer. */
const BREAK: Structure = { kind: 'regex', regex: '\\n{0,2}' }

/** `answer` behind the reasoning that is open, or that the model may open. */
function behindReasoning(
  answer: Structure,
  place: 'inside' | 'before',
  { reasoningStart, reasoningEnd, answerStart }: ModelFormats,
): Structure {
  if (reasoningEnd === undefined) return answer
  const end: Structure = { kind: 'until', stop: reasoningEnd }
  const reasoned = answerStart === undefined ? [end, BREAK, answer] : [end, answer]
  if (place === 'inside') return { kind: 'sequence', parts: reasoned }
  if (reasoningStart === undefined) return answer
  const opened: Structure = { kind: 'sequence', parts: [{ kind: 'literal', text: reasoningStart }, ...reasoned] }
  return { kind: 'choice', parts: [answer, opened] }
}
