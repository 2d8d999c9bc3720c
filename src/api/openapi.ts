// The API's description, made from the same tables that read the bodies. https://spec.openapis.org/oas/v3.1.0

import { ERRORS } from '../core/errors.js'
import type { ApiOptions } from './contract.js'
import type { Dialect } from './dialect/contract.js'
import * as dialects from './dialect/index.js'
import type { Route } from './route.js'

/** The route that answers with the description of all others and of itself. */
export function openapi(routes: readonly Route[], options: Pick<ApiOptions, 'version'>): Route {
  const own: Route = {
    method: 'GET',
    path: '/openapi.json',
    right: 'anyone',
    summary: 'This description.',
    handler: () => document,
  }
  const document = describe([...routes, own], options.version)
  return own
}

function describe(routes: readonly Route[], version: string) {
  const byPath: Record<string, Record<string, object>> = {}
  const schemas = new Map((Object.values(dialects) as Dialect[]).map((dialect) => [dialect.path, dialect]))
  for (const route of routes) {
    const path = route.path.replace(/:(\w+)/g, '{$1}').replace('*', '{id}')
    const dialect = schemas.get(route.path)
    const body = dialect?.schema ?? route.body
    byPath[path] ??= {}
    byPath[path][route.method.toLowerCase()] = {
      summary: route.summary ?? `The dialect ${dialect?.name}.`,
      ...parametersOf(path),
      ...(body === undefined
        ? {}
        : { requestBody: { required: true, content: { 'application/json': { schema: body } } } }),
      ...(route.right === 'anyone' ? {} : { security: [{ key: [] }, {}] }),
      responses: {
        200: { description: 'The answer.' },
        default: {
          description: 'An error of the catalogue.',
          content: {
            'application/json': { schema: dialect?.errors?.schema ?? { $ref: '#/components/schemas/Error' } },
          },
        },
      },
    }
  }
  return {
    openapi: '3.1.0',
    info: { title: 'Refrain', version, description: 'OpenAI-compatible serving with a prefix cache.' },
    paths: byPath,
    components: {
      schemas: { Error: errorSchema },
      securitySchemes: { key: { type: 'http', scheme: 'bearer' } },
    },
  }
}

function parametersOf(path: string): object {
  const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)
  if (names.length === 0) return {}
  return { parameters: names.map((name) => ({ name, in: 'path', required: true, schema: { type: 'string' } })) }
}

const errorSchema = {
  type: 'object',
  required: ['error'],
  properties: {
    error: {
      type: 'object',
      required: ['message', 'type', 'param', 'code'],
      properties: {
        message: { type: 'string' },
        type: { type: 'string' },
        param: { type: ['string', 'null'] },
        code: { enum: Object.keys(ERRORS) },
      },
    },
  },
}
