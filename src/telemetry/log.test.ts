import { afterEach, describe, expect, test } from 'vitest'
import { note, type RequestSettled, requestSettled } from '../core/signals.js'
import { type Log, startLog } from './log.js'

let log: Log
afterEach(() => log.close())

const settled: RequestSettled = {
  id: 'r1',
  tenant: 'team',
  route: '/v1/chat/completions',
  model: 'm',
  status: 200,
  promptTokens: 1000,
  completionTokens: 21,
  working: 64,
  memory: 512,
  disk: 256,
  computed: 168,
  ttftMs: 100.123,
  durationMs: 600.123,
  session: 's',
}

function lines(level: 'info' | 'warn' | 'error'): Record<string, unknown>[] {
  const written: Record<string, unknown>[] = []
  log = startLog(level, (line) => written.push(JSON.parse(line)))
  return written
}

describe('the log', () => {
  test('one line a request: total, matched by tier, computed, time to the first token, tokens a second', () => {
    const written = lines('info')
    requestSettled.publish(settled)
    expect(written).toEqual([
      {
        level: 30,
        time: expect.any(String),
        id: 'r1',
        tenant: 'team',
        route: '/v1/chat/completions',
        model: 'm',
        session: 's',
        status: 200,
        total: 1000,
        working: 64,
        memory: 512,
        disk: 256,
        computed: 168,
        generated: 21,
        ttftMs: 100.1,
        tokPerS: 40,
        ms: 600.1,
        msg: 'request',
      },
    ])
  })

  test('faults of the server are errors, those of callers are not; notes keep their level', () => {
    const written = lines('warn')
    requestSettled.publish({ ...settled, status: 404, error: 'model_not_found' })
    requestSettled.publish({ ...settled, status: 500, error: 'internal' })
    note.publish({ level: 'info', text: 'quiet' })
    note.publish({ level: 'warn', text: 'the disk is slow', detail: { ms: 5 } })
    expect(written.map(({ level, msg }) => [level, msg])).toEqual([
      [50, 'request'],
      [40, 'the disk is slow'],
    ])
    expect(written[1]).toMatchObject({ ms: 5 })
  })

  test('after close nothing is written', () => {
    const written = lines('info')
    log.close()
    requestSettled.publish(settled)
    expect(written).toEqual([])
  })
})
