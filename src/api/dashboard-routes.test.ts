// The page over HTTP: its files and their policy, keys, what a tenant is told, and the same in front of a fleet.

import { readdirSync, readFileSync } from 'node:fs'
import { afterEach, describe, expect, test } from 'vitest'
import { dashboardHouse } from '../testing/dashboard-house.js'
import { fleetHouse } from '../testing/fleet-house.js'
import { scriptedProgram } from '../testing/scripted-program.js'

let house: { close(): Promise<void> } | undefined

afterEach(async () => {
  await house?.close()
  house = undefined
})

// biome-ignore lint/suspicious/noExplicitAny: an answer's shape is what the test is about to assert
type Json = any

async function json(url: string, headers: Readonly<Record<string, string>> = {}): Promise<Json> {
  return (await fetch(url, { headers })).json()
}

/** Closed behind the test. */
async function opened<T extends { close(): Promise<void> }>(opening: Promise<T>): Promise<T> {
  const own = await opening
  house = own
  return own
}

const TENANTS = [
  { name: 'anna', key: 'key-of-anna', admin: false },
  { name: 'bert', key: 'key-of-bert', admin: false },
  { name: 'ops', key: 'key-of-ops', admin: true },
]
const key = (name: string) => ({ authorization: `Bearer key-of-${name}` })

describe("the page's files", () => {
  test('come with a policy that lets in nothing from elsewhere, and with an etag', async () => {
    const own = await opened(dashboardHouse())
    const { url } = own
    const page = await fetch(`${url}/dashboard`)
    expect(page.headers.get('content-security-policy')).toMatch(/^default-src 'self';/)
    expect(page.headers.get('content-security-policy')).not.toMatch(/unsafe|http|\*|data:/)
    expect(page.headers.get('x-content-type-options')).toBe('nosniff')
    const html = await page.text()
    expect(html).not.toMatch(/<script>|<style|\son\w+=|style=|https?:/)
    const etag = page.headers.get('etag') as string
    expect((await fetch(`${url}/dashboard`, { headers: { 'if-none-match': etag } })).status).toBe(304)
    // Whatever it names is there.
    const named = [...html.matchAll(/(?:src|href)="(dashboard\/[^"]+)"/g)].map(([, path]) => path)
    expect(named.length).toBeGreaterThan(6)
    for (const path of named) expect((await fetch(`${url}/${path}`)).status, path).toBe(200)
  })

  test('never read words as markup', () => {
    const folder = new URL('../dashboard/page/', import.meta.url)
    const scripts = readdirSync(folder).filter((name) => name.endsWith('.js'))
    expect(scripts.length).toBeGreaterThan(8)
    for (const name of scripts) {
      const text = readFileSync(new URL(name, folder), 'utf8')
      expect(text, name).not.toMatch(
        /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc/,
      )
    }
  })

  test('are those of one folder: others are not found', async () => {
    const own = await opened(dashboardHouse())
    const { url, program } = own
    for (const path of ['nope.js', '..%2fcontract.ts', '%2e%2e/%2e%2e/package.json', 'index.html/', 'types.d.ts']) {
      expect((await fetch(`${url}/dashboard/${path}`)).status, path).toBe(404)
    }
    const slash = await program.server.app.inject({ method: 'GET', url: '/dashboard/' })
    expect([slash.statusCode, slash.headers['location']]).toEqual([308, '../dashboard'])
  })

  test('are not there where server.dashboard is false', async () => {
    const program = await scriptedProgram({ 'server.dashboard': false })
    for (const url of ['/dashboard', '/v1/dashboard/feed']) {
      expect((await program.server.app.inject({ method: 'GET', url })).statusCode).toBe(404)
    }
    await program.stop(0)
  })
})

describe('what it shows', () => {
  test('is asked for with a key, and a tenant is told about its own alone', async () => {
    const own = await opened(dashboardHouse({ tenants: TENANTS }))
    const { url, ...rest } = own
    expect((await fetch(`${url}/dashboard`)).status).toBe(200)
    for (const path of ['feed', 'tree', 'sessions/a/turns']) {
      expect((await fetch(`${url}/v1/dashboard/${path}`)).status, path).toBe(401)
    }
    await rest.goOn(0, key('anna'))
    await rest.goOn(1, key('bert'))
    await rest.goOn(1, { ...key('bert') })
    const ask = (path: string, who: string) => json(`${url}/v1/dashboard/${path}`, key(who))
    const feeds = { anna: await ask('feed', 'anna'), ops: await ask('feed', 'ops') }
    expect(feeds.anna).toMatchObject({
      object: 'dashboard.feed',
      viewer: { tenant: 'anna', admin: false },
      sessions: [{ session: 'fix-login-0', tenant: 'anna', turns: 1 }],
    })
    expect(feeds.anna).not.toHaveProperty('backends')
    expect(feeds.ops.sessions).toHaveLength(2)
    expect(feeds.ops.backends).toMatchObject([{ id: 'scripted', state: 'up' }])

    const trees = { anna: await ask('tree', 'anna'), bert: await ask('tree', 'bert'), ops: await ask('tree', 'ops') }
    expect(trees.anna.nodes.flatMap(({ names }: { names: string[] }) => names)).toEqual(['fix-login-0'])
    expect(trees.bert.nodes[0]).toMatchObject({ names: ['triage-1'] })
    const tops = trees.ops.nodes.filter(({ parent }: { parent?: string }) => parent === undefined)
    expect(tops.map(({ tenant }: { tenant: string }) => tenant).sort()).toEqual(['anna', 'bert'])
    expect(trees.ops.tokens).toBe(trees.anna.tokens + trees.bert.tokens)

    expect(await ask('sessions/triage-1/turns', 'bert')).toMatchObject({ session: { turns: 2 }, turns: [{}, {}] })
    expect(await ask('sessions/triage-1/turns', 'anna')).toMatchObject({ error: { code: 'not_found' } })
    expect(await ask('sessions/triage-1/turns?tenant=bert', 'anna')).toMatchObject({ error: { code: 'not_found' } })
    expect(await ask('sessions/triage-1/turns?tenant=bert', 'ops')).toMatchObject({ session: { tenant: 'bert' } })
  })

  test('in front of a fleet: backends, their overlap, and sessions as they end', async () => {
    const fleet = await opened(fleetHouse())
    const feed = () => json(`${fleet.url}/v1/dashboard/feed`)
    expect(await feed()).toMatchObject({ server: { kind: 'fleet' }, sessions: [] })
    for (let i = 0; i < 3; i++) await (await fleet.chat({}, { 'x-refrain-session': 'talk' })).text()
    let now = await feed()
    // Sessions are looked at twice a second.
    for (let i = 0; i < 50 && now.sessions[0]?.turns !== 3; i++) {
      await new Promise((resolve) => setTimeout(resolve, 100))
      now = await feed()
    }
    expect(now.sessions).toMatchObject([{ session: 'talk', turns: 3 }])
    expect(now.backends).toHaveLength(2)
    const counted = now.backends.map(({ overlap }: { overlap?: { requests: number } }) => overlap?.requests ?? 0)
    expect(counted.reduce((a: number, b: number) => a + b)).toBe(3)
    const turns = await json(`${fleet.url}/v1/dashboard/sessions/talk/turns`)
    expect(turns.turns.at(-1).backend).toMatch(/^http/)
    expect((await fetch(`${fleet.url}/v1/dashboard/tree`)).status).toBe(404)
    expect((await fetch(`${fleet.url}/dashboard`)).status).toBe(200)
  })
})
