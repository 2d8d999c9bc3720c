// What clients ask about models: which there are, how large their windows are, how a text is cut into tokens.
// https://platform.openai.com/docs/api-reference/models, and vLLM's tokenize and detokenize.
// Invariant: the first model listed is the default; the window stands under every name that clients look for.

import type { FastifyRequest } from 'fastify'
import { readBody } from './body.js'
import type { ApiOptions, ServedModel, TokenizeInput } from './contract.js'
import { accepted, boolean, invalid, readFields, readingOf, required, schemaOf, text } from './dialect/fields.js'
import { messages, tools } from './dialect/openai-messages.js'
import { idList } from './dialect/openai-sampling.js'
import type { Route } from './route.js'

const tokenizeFields = {
  model: text('Absent: the default model.'),
  prompt: text('Plain text; also `content`.'),
  content: text('The same as prompt.'),
  messages,
  tools,
  add_special_tokens: boolean('BOS in front of plain text where the model has one. Default true.'),
  add_generation_prompt: accepted('always true'),
  return_token_strs: boolean('Each token as the vocabulary spells it.'),
  with_pieces: accepted('send return_token_strs'),
}

const detokenizeFields = {
  model: text('Absent: the default model.'),
  tokens: idList('Token ids.'),
}

export function modelRoutes(options: ApiOptions): Route[] {
  const { service } = options
  const tokenize = (request: FastifyRequest) => tokenizeAnswer(request, options)
  const detokenize = (request: FastifyRequest) => {
    const raw = readBody(request.body)
    const read = readFields(detokenizeFields, raw.value, '', readingOf(raw.text, options.limits.jsonDepth))
    const decoded = service.detokenize(service.resolve(read.model), required(read.tokens, 'tokens'))
    return { prompt: decoded, content: decoded }
  }
  return [
    {
      method: 'GET',
      path: '/v1/models',
      right: 'tenant',
      summary: 'Lists the models; the first is the default.',
      handler: () => ({
        object: 'list',
        data: service.models.map(modelObject),
        // Anthropic's clients read pages; there is one.
        has_more: false,
        first_id: service.models[0]?.name ?? null,
        last_id: service.models.at(-1)?.name ?? null,
      }),
    },
    {
      method: 'GET',
      path: '/v1/models/*',
      right: 'tenant',
      summary: 'One model, by its name or by an alias.',
      handler: (request) => modelObject(service.resolve((request.params as { '*': string })['*'])),
    },
    ...['/v1/tokenize', '/tokenize'].map(
      (path): Route => ({
        method: 'POST',
        path,
        right: 'tenant',
        summary: 'The token ids of a text, or of a chat as it would be rendered.',
        body: schemaOf(tokenizeFields),
        handler: tokenize,
      }),
    ),
    ...['/v1/detokenize', '/detokenize'].map(
      (path): Route => ({
        method: 'POST',
        path,
        right: 'tenant',
        summary: 'The text of token ids.',
        body: schemaOf(detokenizeFields, ['tokens']),
        handler: detokenize,
      }),
    ),
  ]
}

async function tokenizeAnswer(request: FastifyRequest, options: ApiOptions) {
  const { service } = options
  const raw = readBody(request.body)
  const read = readFields(tokenizeFields, raw.value, '', readingOf(raw.text, options.limits.jsonDepth))
  const model = service.resolve(read.model)
  const plain = read.prompt ?? read.content
  if ((plain === undefined) === (read.messages === undefined)) {
    throw invalid('prompt', 'or messages is required, not both')
  }
  const input: TokenizeInput =
    plain === undefined
      ? { kind: 'chat', messages: read.messages ?? [], tools: read.tools ?? [] }
      : { kind: 'text', text: plain, bos: read.add_special_tokens === false ? 'none' : 'add' }
  const ids = [...(await service.tokenize(model, input))]
  return {
    count: ids.length,
    max_model_len: model.contextLength,
    tokens: ids,
    ...(read.return_token_strs === true ? { token_strs: ids.map((id) => service.spellingOf(model, id)) } : {}),
  }
}

/** Each client reads the window under another name; all of them are here. */
function modelObject(model: ServedModel) {
  const window = model.contextLength
  return {
    id: model.name,
    object: 'model',
    type: 'model',
    display_name: model.name,
    created: model.created,
    created_at: new Date(model.created * 1000).toISOString(),
    owned_by: 'refrain',
    root: model.name,
    parent: null,
    max_model_len: window,
    context_length: window,
    context_window: window,
    max_context: window,
    max_context_length: window,
    max_input_tokens: window,
    max_tokens: window,
    meta: { n_ctx: window, n_ctx_train: window },
  }
}
