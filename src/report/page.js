// The report in a browser: reads the JSON that lies in the page and draws it with uPlot. Invariant: text goes in as text,
// never as markup; pictures are drawn anew when the theme or the width changes. Runs on no server.

;(() => {
  const { uPlot } = window
  const report = JSON.parse(document.getElementById('report').textContent)
  const { runs, kind } = report
  const $ = (id) => document.getElementById(id)
  const HEIGHT = 260
  /** Lines that are shown from the start; the others by a click on the legend. */
  const MOST_LINES = 8
  const MOST_TICKS = 12
  const MOST_COLUMNS = 16
  const COLUMN_PIXELS = 44
  /** Seconds between ticks: what clocks are read in. */
  const CLOCK_STEPS = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200,
    86400,
  ]

  // --- words and numbers ---------------------------------------------------------------------------------------------

  const percent = (value) => (value === undefined || value === null ? '–' : `${(100 * value).toFixed(1)} %`)
  const count = (value) => (value === undefined || value === null ? '–' : Math.round(value).toLocaleString('en-US'))
  const short = (value) => {
    if (value === null || value === undefined) return '–'
    const units = ['', 'k', 'M', 'G', 'T']
    let at = 0
    let left = value
    while (Math.abs(left) >= 999.5 && at < units.length - 1) {
      left /= 1000
      at++
    }
    return `${Number(left.toPrecision(3))}${units[at]}`
  }
  const time = (ms) => {
    if (ms === null || ms === undefined) return '–'
    if (ms >= 1000) return `${Number((ms / 1000).toPrecision(3))} s`
    return `${Number(ms.toPrecision(3))} ms`
  }
  const clock = (seconds) => {
    if (seconds >= 7200) return `${Number((seconds / 3600).toPrecision(3))} h`
    return seconds >= 180 ? `${Number((seconds / 60).toPrecision(3))} min` : `${Number(seconds.toPrecision(3))} s`
  }
  const { currency } = report.prices
  const money = (value) => {
    if (value === undefined || value === null) return '–'
    const digits = value === 0 ? 0 : value < 1 ? 3 : 2
    const text = value !== 0 && value < 0.01 ? String(Number(value.toPrecision(2))) : value.toFixed(digits)
    return currency === 'USD' ? `$${text}` : `${text} ${currency}`
  }
  const size = (value) => (report.capacity.unit === 'bytes' ? `${short(value)}B` : short(value))

  const element = (tag, text, className) => {
    const made = document.createElement(tag)
    if (text !== undefined) made.textContent = text
    if (className) made.className = className
    return made
  }

  function fillTable(table, head, rows) {
    const line = (cells, tag) => {
      const row = element('tr')
      for (const cell of cells) row.append(typeof cell === 'object' ? cell : element(tag, cell))
      return row
    }
    const top = element('thead')
    top.append(line(head, 'th'))
    const body = element('tbody')
    for (const { cells, className } of rows) {
      const row = line(cells, 'td')
      if (className) row.className = className
      body.append(row)
    }
    table.replaceChildren(top, body)
  }

  // --- what stands in words ------------------------------------------------------------------------------------------

  function tile(what, value, more) {
    const made = element('div', undefined, 'tile')
    made.append(element('div', what, 'what'), element('div', value, 'value'), element('div', more, 'more'))
    return made
  }

  const best = (list, of) =>
    list.reduce((found, run) => (of(run) !== undefined && (!found || of(run) > of(found)) ? run : found), undefined)

  function tiles() {
    const whose = (run) => (runs.length > 1 ? `best: ${run.name}` : run.name)
    const hit = best(runs, (run) => run.hitRate)
    const ideal = Math.max(0, ...runs.map((run) => run.idealHitRate))
    const made = []
    if (hit) made.push(tile('Prompt tokens reused', percent(hit.hitRate), whose(hit)))
    made.push(tile('If everything were kept', percent(ideal), 'the ideal on the same requests'))
    const saved = best(runs, (run) => run.cost.savedShare)
    if (saved) {
      const most = saved.cost.idealSavedShare
      const of = most > 0 ? `${percent(saved.cost.savedShare / most)} of what the ideal saves` : 'nothing to save'
      made.push(tile('Saved against no cache', percent(saved.cost.savedShare), of))
    }
    const fast = best(runs, (run) => (run.ttft ? -run.ttft.p50Ms : undefined))
    if (fast) made.push(tile('Time to first token, p50', time(fast.ttft.p50Ms), whose(fast)))
    const failed = runs.reduce((sum, run) => sum + run.failed, 0)
    if (failed > 0) {
      const bad = tile('Failed requests', count(failed), 'they count in nothing else')
      bad.children[1].classList.add('bad')
      made.push(bad)
    }
    $('tiles').replaceChildren(...made)
  }

  function table() {
    const timed = runs.some((run) => run.ttft)
    const failing = runs.some((run) => run.failed > 0)
    const head = [
      ...['run', 'requests'],
      ...(failing ? ['failed'] : []),
      ...['prompt tokens', 'reused', 'ideal', 'of ideal'],
      ...(timed ? ['TTFT p50', 'p90', 'p99'] : []),
      ...['cost', 'no cache', 'saved', 'ideal saves'],
    ]
    const rows = runs.map((run) => {
      const { cost, ttft } = run
      const name = element('td', run.name)
      name.title = run.detail
      const failed = element('td', count(run.failed), run.failed > 0 ? 'bad' : '')
      const ofIdeal =
        run.hitRate === undefined ? undefined : run.idealTokens === 0 ? 1 : run.reusedTokens / run.idealTokens
      return {
        cells: [
          ...[name, count(run.requests)],
          ...(failing ? [failed] : []),
          ...[count(run.promptTokens), percent(run.hitRate), percent(run.idealHitRate), percent(ofIdeal)],
          ...(timed ? [time(ttft?.p50Ms), time(ttft?.p90Ms), time(ttft?.p99Ms)] : []),
          ...[money(cost.actual?.all), money(cost.none), percent(cost.savedShare), percent(cost.idealSavedShare)],
        ],
      }
    })
    fillTable($('table'), head, rows)
  }

  function errors() {
    const rows = runs.flatMap((run) =>
      run.errors.map(({ what, count: times }) => ({ cells: [run.name, count(times), what] })),
    )
    $('errors-section').hidden = rows.length === 0
    fillTable($('errors'), ['run', 'times', 'what'], rows)
  }

  // --- pictures ------------------------------------------------------------------------------------------------------

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
  const lineColour = (i) => colour(`c${i % 8}`)
  const plots = []

  function axis(values, more = {}) {
    const line = { stroke: colour('line'), width: 1 }
    return { stroke: colour('soft'), grid: line, ticks: line, font: '12px system-ui, sans-serif', values, ...more }
  }
  const shares = () => axis((_, ticks) => ticks.map((tick) => `${Math.round(100 * tick)} %`), { size: 56 })
  const numbers = () => axis((_, ticks) => ticks.map(short), { size: 56 })

  /** Draws into the element `id`; the legend of a line shows its value by `value`. */
  function draw(id, options, data) {
    const place = $(id)
    place.replaceChildren()
    const plot = new uPlot(
      { width: Math.max(200, place.clientWidth), height: HEIGHT, padding: [12, 24, 0, 0], ...options },
      data,
      place,
    )
    plots.push({ plot, place })
  }

  function nothing(id, why) {
    $(id).replaceChildren(element('p', why, 'empty'))
  }

  function line(name, i, value, more = {}) {
    return {
      label: name,
      stroke: lineColour(i),
      width: 2,
      spanGaps: true,
      show: i < MOST_LINES,
      points: { size: 6, fill: lineColour(i) },
      value: (_, shown) => value(shown),
      ...more,
    }
  }
  const idealLine = (value) => ({
    label: 'ideal',
    stroke: colour('ideal'),
    width: 2,
    dash: [6, 5],
    points: { show: false },
    value: (_, shown) => value(shown),
  })

  function capacity() {
    const { capacity: shown } = report
    $('capacity-section').hidden = !shown
    if (!shown) return
    const xs = [...new Set(shown.lines.flatMap(({ points }) => points.map((point) => point.capacity)))].sort(
      (a, b) => a - b,
    )
    const lines = shown.lines.map(({ points }) => {
      const at = new Map(points.map((point) => [point.capacity, point.hitRate]))
      return xs.map((x) => at.get(x) ?? null)
    })
    const options = {
      scales: { x: { time: false, distr: 3, log: 2 }, y: { range: [0, 1] } },
      axes: [
        axis((_, ticks) => ticks.map((tick) => (tick === null ? '' : size(tick))), {
          space: 70,
          // Those that were simulated, where there is room for them.
          ...(xs.length <= MOST_TICKS && { splits: () => xs }),
        }),
        shares(),
      ],
      series: [
        {
          label: report.capacity.unit === 'bytes' ? 'memory' : 'memory blocks',
          value: (_, x) => (x === null ? '–' : size(x)),
        },
        ...shown.lines.map(({ name }, i) => line(name, i, percent)),
        idealLine(percent),
      ],
    }
    draw('capacity', options, [xs, ...lines, xs.map(() => shown.ideal)])
  }

  function timeline() {
    const run = runs[Number($('run').value) || 0]
    if (!run || run.requests === 0) return nothing('timeline', 'no request was answered')
    const { seconds, computed, reused } = run.timeline
    const known = run.reusedTokens !== undefined
    const width = seconds.length > 1 ? seconds[1] - seconds[0] : 1
    const bars = uPlot.paths.bars({ size: [0.9, 60], align: 1 })
    const value = (of) => (_, __, ___, i) => (i === null || i === undefined ? '–' : count(of[i]))
    const all = computed.map((tokens, i) => tokens + reused[i])
    const options = {
      scales: { x: { time: false, range: [0, seconds.at(-1) + width] } },
      axes: [axis((_, ticks) => ticks.map(clock), { space: 70, incrs: CLOCK_STEPS }), numbers()],
      series: [
        { label: 'from', value: (_, x) => (x === null ? '–' : clock(x)) },
        // What is drawn first lies behind: the sum, of which the reused ones cover their part.
        {
          label: 'computed',
          stroke: colour('computed'),
          fill: colour('computed'),
          width: 0,
          paths: bars,
          points: { show: false },
          value: value(computed),
        },
        ...(known
          ? [
              {
                label: 'reused',
                stroke: colour('reused'),
                fill: colour('reused'),
                width: 0,
                paths: bars,
                points: { show: false },
                value: value(reused),
              },
            ]
          : []),
      ],
    }
    draw('timeline', options, known ? [seconds, all, reused] : [seconds, all])
  }

  function turns() {
    const most = Math.max(0, ...runs.flatMap((run) => run.turns.map(({ turn }) => turn)))
    $('turns-section').hidden = most === 0
    if (most === 0) return
    const xs = Array.from({ length: most }, (_, i) => i + 1)
    const of = (run, field) => {
      const at = new Map(run.turns.map((turn) => [turn.turn, turn[field]]))
      return xs.map((turn) => at.get(turn) ?? null)
    }
    const longest = runs.reduce((a, b) => (b.turns.length > a.turns.length ? b : a))
    const options = {
      scales: { x: { time: false, range: [0.5, most + 0.5] }, y: { range: [0, 1] } },
      axes: [axis((_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : ''))), shares()],
      series: [{ label: 'turn' }, ...runs.map((run, i) => line(run.name, i, percent)), idealLine(percent)],
    }
    draw('turns', options, [xs, ...runs.map((run) => of(run, 'hitRate')), of(longest, 'idealHitRate')])
  }

  function ttft() {
    const timed = runs.filter((run) => run.ttft)
    $('ttft-section').hidden = timed.length === 0
    if (timed.length === 0) return
    // uPlot has one list of x for all lines: all times that occur, each run's share of requests at or below.
    const xs = [...new Set(timed.flatMap((run) => run.ttft.percentiles))].sort((a, b) => a - b)
    const lines = timed.map((run) => {
      const { percentiles } = run.ttft
      let at = 0
      return xs.map((x) => {
        while (at < 101 && percentiles[at] <= x) at++
        return x < percentiles[0] ? null : Math.min(1, (at - 1) / 100)
      })
    })
    // Whole powers of ten, so that the ticks are round.
    const low = 10 ** Math.floor(Math.log10(Math.max(0.1, xs[0])))
    const high = Math.max(10 * low, 10 ** Math.ceil(Math.log10(Math.max(0.1, xs.at(-1)))))
    const options = {
      scales: { x: { time: false, distr: 3, range: [low, high] }, y: { range: [0, 1] } },
      axes: [axis((_, ticks) => ticks.map((tick) => (tick === null ? '' : time(tick))), { space: 60 }), shares()],
      series: [
        { label: 'within', value: (_, x) => time(x) },
        ...timed.map((run, i) =>
          line(run.name, runs.indexOf(run), percent, {
            points: { show: false },
            paths: uPlot.paths.stepped({ align: 1 }),
            show: i < MOST_LINES,
          }),
        ),
      ],
    }
    draw('ttft', options, [xs, ...lines])
  }

  function cost() {
    const { input, read, write, output } = report.prices
    $('prices').textContent =
      `A million tokens: input ${money(input)}, read from cache ${money(read)}, written to it ${money(write)}, output ${money(output)}.`
    const shown = runs.filter((run) => run.cost.actual && run.requests > 0)
    if (shown.length === 0)
      return nothing(
        'cost',
        'No server said what it reused (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report).',
      )
    const [first] = shown
    // Servers count the same prompts differently.
    const differs = shown.some((run) => Math.abs(run.cost.none / first.cost.none - 1) > 0.01)
    const whose = differs ? ` (${first.name})` : ''
    const none = {
      name: `no cache${whose}`,
      parts: { read: 0, write: first.cost.none - first.cost.ideal.output, output: first.cost.ideal.output },
    }
    const ideal = { name: `ideal${whose}`, parts: first.cost.ideal }
    const fitting = Math.max(1, Math.min(MOST_COLUMNS, Math.floor($('cost').clientWidth / COLUMN_PIXELS) - 2))
    const columns = shown.slice(0, fitting).map((run) => ({ name: run.name, parts: run.cost.actual }))
    const bars = [none, ...columns, ideal]
    const stacked = [
      bars.map(({ parts }) => parts.output + parts.read + parts.write),
      bars.map(({ parts }) => parts.output + parts.read),
      bars.map(({ parts }) => parts.output),
    ]
    const value = (of) => (_, __, ___, i) => (i === null || i === undefined ? '–' : money(of(bars[i].parts)))
    const paths = uPlot.paths.bars({ size: [0.6, 90] })
    const layer = (label, name, of) => ({
      label,
      stroke: colour(name),
      fill: colour(name),
      width: 0,
      paths,
      points: { show: false },
      value: value(of),
    })
    // Names that are too wide for their column lean.
    const room = Math.floor($('cost').clientWidth / bars.length / 7)
    const leans = bars.some(({ name }) => name.length > room)
    const most = leans ? 28 : 80
    const fits = (name) => (name.length > most ? `${name.slice(0, most - 1)}…` : name)
    const options = {
      ...(leans && { height: HEIGHT + 70 }),
      scales: {
        x: { time: false, range: [-0.6, bars.length - 0.4] },
        y: { range: (_, __, high) => [0, high * 1.05 || 1] },
      },
      axes: [
        axis((_, ticks) => ticks.map((tick) => fits(bars[tick]?.name ?? '')), {
          splits: () => bars.map((_, i) => i),
          grid: { show: false },
          ...(leans && { rotate: -30, size: 120 }),
        }),
        axis((_, ticks) => ticks.map(money), { size: 70 }),
      ],
      series: [
        { label: 'of', value: (_, x) => (x === null ? '–' : (bars[x]?.name ?? '–')) },
        layer('computed', 'computed', (parts) => parts.write),
        layer('read', 'reused', (parts) => parts.read),
        layer('output', 'output', (parts) => parts.output),
      ],
    }
    draw('cost', options, [bars.map((_, i) => i), ...stacked])
  }

  function pictures() {
    for (const { plot } of plots.splice(0)) plot.destroy()
    capacity()
    timeline()
    turns()
    ttft()
    cost()
  }

  // --- the page ------------------------------------------------------------------------------------------------------

  function theme(name) {
    document.documentElement.dataset.theme = name
    pictures()
  }

  $('title').textContent = report.title
  $('subtitle').textContent = report.subtitle
  $('notes').replaceChildren(...report.notes.map((note) => element('li', note)))
  $('run').replaceChildren(
    ...runs.map((run, i) => {
      const option = element('option', run.name)
      option.value = String(i)
      return option
    }),
  )
  $('run').hidden = runs.length < 2
  $('run').addEventListener('change', pictures)
  tiles()
  table()
  errors()
  const dark = matchMedia('(prefers-color-scheme: dark)')
  $('theme').addEventListener('click', () =>
    theme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'),
  )
  dark.addEventListener('change', () => theme(dark.matches ? 'dark' : 'light'))
  theme(dark.matches ? 'dark' : 'light')
  let waiting = 0
  addEventListener('resize', () => {
    cancelAnimationFrame(waiting)
    waiting = requestAnimationFrame(() => {
      for (const { plot, place } of plots)
        plot.setSize({ width: Math.max(200, place.clientWidth), height: plot.height })
    })
  })
  document.documentElement.dataset.kind = kind
})()
