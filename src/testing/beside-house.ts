// Stub upstreams that tell side questions from chats, for tests of questions beside an answer.

import { type FleetHouse, fleetHouse, type HouseOptions } from './fleet-house.js'
import { type StubAnswer, type StubOptions, type StubRequest, saying } from './stub-upstream.js'

export const messages = [{ role: 'user', content: 'Who won the 2031 cup?' }]
export const action = { task: 'action' }
export const title = { task: 'title' }
export const quick = { tasks: [action, title] }

/** What words of our questions are answered with. */
export const WORDS = { 'web search': 'search', 'Write a title': 'The 2031 cup' }
/** What that comes to. */
export const RESULTS = [
  { task: 'action', form: 'instruction', choice: 'search' },
  { task: 'title', form: 'instruction', text: 'The 2031 cup' },
]

export interface BesideHouse extends FleetHouse {
  /** What `words` of the last message are answered with, where it asks on the side; all else is `main`'s. */
  asides(answers: Readonly<Record<string, string | StubAnswer>>, main: StubAnswer): void
  /** All requests that generate. */
  all(): StubRequest[]
  asked(): StubRequest[]
}

/** A fleet of `count` stubs that are alike. */
export async function besideHouse(
  stub: StubOptions = {},
  { count = 1, ...more }: HouseOptions & { readonly count?: number } = {},
): Promise<BesideHouse> {
  const house = await fleetHouse({ stubs: Array.from({ length: count }, () => stub), ...more })
  const all = () => house.stubs.flatMap(({ requests }) => requests)
  return {
    ...house,
    all,
    asked: () => all().filter(isAside),
    asides(answers, main) {
      for (const each of house.stubs) {
        each.answer = (request, response, socket) => {
          const key = Object.keys(answers).find((word) => isAside(request) && wordsOf(request).includes(word))
          const answer = key === undefined ? main : (answers[key] as string | StubAnswer)
          const say = typeof answer === 'string' ? saying([answer], 8) : answer
          say(request, response, socket)
        }
      }
    },
  }
}

/** Houses of a test file: those that `open` gave are closed by `closeAll`. */
export function besideHouses() {
  const houses: BesideHouse[] = []
  return {
    async open(...how: Parameters<typeof besideHouse>): Promise<BesideHouse> {
      const house = await besideHouse(...how)
      houses.push(house)
      return house
    },
    async closeAll(): Promise<void> {
      await Promise.all(houses.splice(0).map((house) => house.close()))
    },
  }
}

/** Only questions are greedy in these tests. */
export const isAside = ({ body }: StubRequest) => body['temperature'] === 0
export const listOf = ({ body }: StubRequest) => body['messages'] as { role: string; content: unknown }[]
const wordsOf = (request: StubRequest) => String(listOf(request).at(-1)?.content)

export const outOfMemory: StubAnswer = (_, response) => {
  response.writeHead(500, { 'content-type': 'application/json' })
  response.end('{"error":{"message":"out of memory"}}')
}

export interface Told {
  readonly quick: { results: { error?: { code: string; message: string } }[]; usage: Record<string, number> }
  readonly error?: { code: string; param: string; message: string }
}

export const jsonOf = async (response: Response) => (await response.json()) as Told & Record<string, unknown>
