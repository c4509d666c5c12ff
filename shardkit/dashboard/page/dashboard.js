"use strict"
// Everything that comes from outside becomes text: no markup is ever built from strings.

const VIEWS = [["/", "Overview"], ["/slow", "Slow commands"], ["/heat", "Heat"], ["/queues", "Queues"], ["/locks", "Locks"],
  ["/recorded", "Metrics"], ["/growth", "Growth"], ["/configuration", "Configuration"]]
const view = document.getElementById("view"), state = document.getElementById("state")
const banner = document.getElementById("banner"), nav = document.querySelector("nav")
const sorted = new Map(), filters = new Map(), signatures = new Map(), whole = new Set()
const ROWS = 200  // of a table, unless somebody wants all
let summary = null, shown = null, timer = 0, allowChanges = false, charts = []
let totals = { at: [], ops: [], memory: [], clients: [] }, daily = { at: [], ops: [], memory: [], clients: [] }, wholeDay = false

function h(tag, attributes, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value)
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value)
  }
  element.append(...children.flat(9).filter(child => child !== null && child !== undefined))
  return element
}

const link = (path, text) => h("a", { href: path, "data-key": path }, text)
const at = (...parts) => "/" + parts.map(encodeURIComponent).join("/")
const number = value => value === null || value === undefined ? "" : Math.round(value).toLocaleString("en")
const fixed = (value, digits) => value === null || value === undefined ? "" : value.toFixed(digits)
const percent = value => value === null || value === undefined ? "" : (value && value < 0.1 ? (100 * value).toFixed(1) : Math.round(100 * value)) + " %"
function bytes(value) {
  if (value === null || value === undefined) return ""
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (Math.abs(value) < 1000) return (value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)) + " " + unit
    value /= 1000
  }
  return value.toFixed(1) + " TB"
}
// All times are in UTC, as in the logs of servers and in `shardkit config history`.
const time = seconds => seconds ? new Date(1000 * seconds).toISOString().slice(0, 19).replace("T", " ") : ""
function span(seconds) {
  if (seconds === null || seconds === undefined) return ""
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= 2 * size) return Math.round(seconds / size) + " " + unit
  return (seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)) + " s"
}
const clock = seconds => new Date(1000 * seconds).toISOString().slice(11, wholeDay ? 16 : 19)
// A canvas takes no variable of a style sheet: the browser resolves it for an element, once a scheme.
const colours = new Map()
function colour(variable) {
  if (!colours.has(variable)) {
    const probe = document.body.appendChild(h("i", { class: variable.slice(2) + "-colour" }))
    colours.set(variable, getComputedStyle(probe).color)
    probe.remove()
  }
  return colours.get(variable)
}
const stateOf = value => h("span", { class: { up: "good", down: "bad" }[value] || "warn" }, value)

// Each column: title, value for sorting, and optionally what is shown of a row.
function table(name, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "note" }, empty)
  const [column, down] = sorted.get(name) || [-1, false], filter = (filters.get(name) || "").toLowerCase()
  const text = row => columns.map(each => String(each[1](row) ?? "")).join(" ").toLowerCase()
  let kept = filter ? rows.filter(row => text(row).includes(filter)) : [...rows]
  if (column >= 0) {
    const value = columns[column][1]
    kept.sort((a, b) => {
      const x = value(a), y = value(b)
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x ?? "").localeCompare(String(y ?? ""), "en", { numeric: true })
      return down ? -order : order
    })
  }
  const isNumber = each => rows.some(row => typeof each[1](row) === "number") && !each[3]
  const head = columns.map((each, n) => h("th", {
    scope: "col", class: isNumber(each) ? "number" : null,
    "aria-sort": n === column ? (down ? "descending" : "ascending") : null,
  }, h("button", { "data-key": name + ":" + n, onclick: () => { sorted.set(name, [n, n === column ? !down : isNumber(each)]); draw(true) } }, each[0])))
  const shownRows = whole.has(name) ? kept : kept.slice(0, ROWS)
  const body = shownRows.map(row => h("tr", {}, columns.map(each =>
    h("td", { class: each[3] || (isNumber(each) ? "number" : null) }, each[2] ? each[2](row) : each[1](row) ?? ""))))
  const found = h("div", { class: "scroll" + (rows.length > 20 ? " tall" : "") + (columns === PROBLEMS ? " stacked" : ""), tabindex: rows.length > 20 ? 0 : null, "data-key": name },
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)))
  if (rows.length <= 8) return found
  return [h("input", { type: "search", placeholder: "Filter " + number(rows.length) + " rows", "aria-label": "Filter", value: filters.get(name) || "",
    "data-key": name + ":filter", oninput: event => { filters.set(name, event.target.value); draw(true) } }), found,
    shownRows.length < kept.length ? h("p", { class: "more" }, h("button", { class: "action", "data-key": name + ":all", onclick: () => { whole.add(name); draw(true) } },
      "Show all " + number(kept.length)), " The first " + number(ROWS) + " are shown. Sorting and filtering look at all.") : null]
}

const tile = (label, value, note) => h("div", { class: "tile" }, h("b", {}, value || "–"), h("span", {}, label + (note ? " " + note : "")))

// A server that did not answer leaves a gap; a limit is a line where the values come near it.
function chart(title, stamps, values, show, limit) {
  const near = limit && values.some(each => each > limit / 2)
  const box = h("div", { class: "chart" }, h("h3", {}, title, limit ? h("span", { class: near ? "limit" : "" }, ", limit " + show(limit)) : null))
  const most = Math.max(wholeDay ? 900 : 30, 3 * (summary ? summary.interval : 2)), at = [], drawn = []
  stamps.forEach((stamp, n) => {
    if (n && stamp - stamps[n - 1] > most && stamp % 300) { at.push(stamps[n - 1] + 1); drawn.push(null) }  // not between points of five minutes
    at.push(stamp)
    drawn.push(values[n])
  })
  if (!at.length) return h("div", { class: "chart" }, h("h3", {}, title), h("p", { class: "muted" }, "No sample yet."))
  charts.push(() => {
    const line = colour("--line"), axis = { stroke: colour("--muted"), grid: { stroke: line, width: 1 }, ticks: { stroke: line }, font: "12px system-ui" }
    const plot = new uPlot({
      width: box.clientWidth - 24, height: 170, legend: { show: false }, cursor: { points: { size: 6 } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, size: 30, space: 70, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 64, values: (_, ticks) => ticks.map(show) }],
      tzDate: stamp => uPlot.tzDate(new Date(1000 * stamp), "UTC"),
      series: [{}, { stroke: colour("--link"), width: 1.5, points: { show: at.length < 3 } }, ...(near ? [{ stroke: colour("--bad"), width: 1, dash: [6, 4], points: { show: false } }] : [])],
    }, [at, drawn, ...(near ? [at.map(() => limit)] : [])], box)
    box.plot = plot
  })
  return box
}

const rate = value => value ? (value < 10 ? Number(value.toPrecision(2)).toString() : number(value)) : "0"
const meter = value => h("span", { class: "meter" }, h("meter", { min: 0, max: 1, value: value || 0 }), percent(value))
const NODES = [["node", row => row.address], ["state", row => row.state, row => stateOf(row.state)], ["role", row => row.role], ["slots", row => row.slots, row => number(row.slots)],
  ["keys", row => row.keys, row => number(row.keys)], ["commands/s", row => row.ops, row => number(row.ops)], ["memory", row => row.memory, row => bytes(row.memory)],
  ["conns", row => row.clients, row => number(row.clients)], ["lag", row => row.lag, row => row.lag === null || row.lag === undefined ? "" : bytes(row.lag)], ["why", row => row.error, null, "wrap"]]
const nodesOf = answer => answer.nodes.length ? [h("h2", {}, "Nodes of the cluster"), table("nodes", NODES, answer.nodes, "")] : null

// Where a problem is: the page of its server, or of its component.
function place(row) {
  if (summary && summary.servers.some(each => each.address === row.where)) return link(at("servers", row.where), row.where)
  const name = (row.shards || []).map(each => each.split(/[: ]/)[0]).find(each => summary && summary.components.some(known => known.name === each))
  return name ? link(at("components", name), row.where) : row.where
}
const PAGES = { failover: "failover", replicas: "failover", config: "config-server", move: "growth", changes: "growth", keys: "operations", clients: "operations" }
// What to do: commands as code, with the page of the guide that explains them.
function remedy(row) {
  const page = PAGES[(row.remedy.match(/shardkit (\w+)/) || [])[1]] || "operations"
  return row.remedy ? h("a", { href: "https://github.com/shardkit/shardkit/blob/main/docs/" + page + ".md", target: "_blank", rel: "noreferrer" }, row.remedy) : ""
}
const PROBLEMS = [["", row => row.severity, row => h("span", { class: row.severity > 1 ? "bad" : "warn" }, row.severity > 1 ? "problem" : "warning"), " "],
  ["where", row => row.where, place, "wrap"], ["what", row => row.text, null, "wrap"], ["remedy", row => row.remedy, remedy, "wrap"]]
const count = (n, noun) => number(n) + " " + noun + (n === 1 ? "" : "s")
// What is wrong, worst first: its class, and the words of the first line and of the tab's title.
function verdict() {
  const bad = summary.problems.filter(each => each.severity > 1).length, down = summary.servers.filter(each => each.state === "down").length
  if (summary.unusable) return ["bad", count(summary.unusable, "shard") + " cannot be used" + (down ? ": " + count(down, "server") + " down" : "")]
  if (down || bad) return ["bad", down ? count(down, "server") + " down" : count(bad, "problem")]
  return summary.problems.length || summary.banner ? ["warn", summary.banner ? "The config server cannot be read" : count(summary.problems.length, "warning")] : ["good", "All is well"]
}
const spans = () => h("p", { class: "spans" }, [["Last hour", false], ["Last day", true]].map(([text, day]) => h("button", { class: "action", "data-key": "span:" + day, "aria-pressed": String(wholeDay === day), onclick: () => { wholeDay = day; draw(true) } }, text)))
const CHANGES = [["change", row => row.kind], ["of", row => row.name, null, "wrap"], ["phase", row => row.phase, row => h("span", { class: "warn" }, row.phase || "at work")],
  ["how far", row => row.text, null, "wrap"], ["a second", row => row.rate, row => row.rate ? rate(row.rate) : ""], ["left", row => row.left, row => span(row.left)], ["since", row => row.started, row => time(row.started), " "], ["by", row => row.owner]]
const SLOW = [["at", row => row.at, row => time(row.at), " "], ["server", row => row.server, row => link(at("servers", row.server), row.server)],
  ["kind", row => row.kind], ["amount", row => row.amount, row => row.kind === "slow" ? fixed(row.amount / 1000, 1) + " ms" : bytes(row.amount)],
  ["command", row => row.command], ["key", row => row.key, null, "wrap"]]

function overview() {
  const up = summary.servers.filter(each => each.state === "up").length
  const sum = field => summary.servers.reduce((all, each) => all + (each[field] || 0), 0)
  const series = wholeDay ? daily : totals, [how, words] = verdict()
  const wrong = [
    summary.problems.length ? [h("h2", {}, "Problems"), table("problems", PROBLEMS, summary.problems, "")] : null,
    Object.keys(summary.broken).length ? table("broken", [["component", row => row[0]], ["why it cannot be used", row => row[1], null, "wrap"]], Object.entries(summary.broken), "") : null,
    summary.changes.length ? [h("h2", {}, "Changes at work"), table("changes-at-work", CHANGES, summary.changes, "")] : null]
  return [
    h("h1", {}, h("span", { class: how }, words)), wrong,
    h("div", { class: "tiles" },
      tile("servers up", up + " of " + summary.servers.length), tile("components", number(summary.components.length)),
      tile("keys", number(sum("keys"))), tile("commands a second", number(sum("ops"))), tile("memory", bytes(sum("memory"))),
      tile("connections", number(sum("clients")))),
    spans(),
    h("div", { class: "charts" }, chart("Commands a second, all servers", series.at, series.ops, rate),
      chart("Memory, all servers", series.at, series.memory, bytes)),
    summary.problems.length ? null : h("p", { class: "muted" }, "The last check found nothing. `shardkit check` looks at data, too."),
    h("h2", {}, "Components"), table("components", [
      ["component", row => row.name, row => link(at("components", row.name), row.name)], ["shards", row => row.shards], ["placement", row => row.placement],
      ["servers", row => row.servers], ["keys", row => row.keys, row => number(row.keys)], ["epoch", row => row.epoch],
      ["state", row => row.down, row => row.down ? h("span", { class: "bad" }, row.down + " down") : stateOf("up"), " "]],
      summary.components, "No component yet. Push a shard map: shardkit config push MAP."),
    h("h2", {}, "Servers"), table("servers", [
      ["server", row => row.address, row => link(at("servers", row.address), row.address)], ["state", row => row.state, row => stateOf(row.state)],
      ["version", row => row.software + " " + row.version], ["role", row => row.role], ["shards", row => row.shards], ["keys", row => row.keys, row => number(row.keys)],
      ["commands/s", row => row.ops, row => number(row.ops)], ["memory", row => row.memory, row => bytes(row.memory)],
      ["of limit", row => row.max_memory ? row.memory / row.max_memory : null, row => row.max_memory ? percent(row.memory / row.max_memory) : ""],
      ["conns", row => row.clients, row => number(row.clients)], ["CPU", row => row.cpu, row => percent(row.cpu)],
      ["hits", row => row.hits, row => percent(row.hits)], ["evicted/s", row => row.evicted || null, row => row.evicted ? rate(row.evicted) : ""],
      ["network/s", row => row.sent === null ? null : row.received + row.sent, row => row.sent === null ? "" : bytes(row.received + row.sent)],
      ["lag", row => row.lag, row => row.lag === null || row.lag === undefined ? "" : bytes(row.lag)],
      ["ms", row => row.latency, row => row.latency === null ? "" : fixed(1000 * row.latency, 2)]]
      .filter(column => !["of limit", "hits", "evicted/s", "lag"].includes(column[0]) || summary.servers.some(row => ![null, undefined].includes(column[1](row)))),
      summary.servers, "No server is known yet."),
    h("h2", {}, "What changed"), table("events", [["at", row => row.at, row => time(row.at), " "], ["where", row => row.where], ["what", row => row.text, null, "wrap"]],
      summary.events, "Nothing since this dashboard was started."),
  ]
}

function component(answer) {
  const most = Math.max(1, ...answer.shards.map(each => each.keys || 0))
  return [
    h("h1", {}, answer.name),
    h("div", { class: "tiles" }, tile("shards", number(answer.shards.length)), tile("placement", answer.placement || "none"),
      tile("keys", number(answer.shards.reduce((all, each) => all + (each.keys || 0), 0))),
      tile("largest shard", number(most), "keys"), tile("epoch", number(answer.epoch))),
    h("h2", {}, "Problems"), table("component-problems", PROBLEMS, answer.problems, "The last check found nothing."),
    h("h2", {}, "What it is made of"),
    answer.contents ? [
      h("p", { class: "muted" }, "From a sample of " + number(answer.contents.sampled) + " of " + number(answer.contents.keys) + " keys."),
      table("contents", [["structure", row => row.structure || "other keys"], ["kind", row => row.kind], ["encoding", row => row.encoding],
        ["keys", row => row.keys, row => number(row.keys)], ["bytes", row => row.bytes, row => bytes(row.bytes)], ["compact", row => row.compact, row => percent(row.compact)]],
        answer.contents.groups, "No keys."),
      table("findings", [["what", row => (row.structure || row.subject || "") + " " + (row.text || ""), null, "wrap"], ["remedy", row => row.remedy, null, "wrap"]],
        answer.contents.findings, "Everything that was looked at is stored compactly."),
    ] : h("p", { class: "note" }, "Looking at a sample of its keys …"),
    nodesOf(answer),
    h("h2", {}, "Shards"), table("shards", [
      ["shard", row => row.shard], ["server", row => row.server, row => link(at("servers", row.server), row.server)], ["database", row => row.database],
      ["state", row => row.state, row => stateOf(row.state)], ["keys", row => row.keys, row => number(row.keys)],
      ["of the largest", row => row.keys === null ? null : row.keys / most, row => row.keys === null ? "" : percent(row.keys / most)], ["moving", row => row.held]],
      answer.shards, "It has no shards."),
  ]
}

function server(answer) {
  const samples = wholeDay ? answer.day : answer.samples, stamps = samples.at || []
  const wrong = summary ? summary.problems.filter(each => each.where === answer.address) : []
  const facts = object => h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, Object.entries(object).filter(each => each[1] !== null).map(([name, value]) =>
    h("tr", {}, h("th", { scope: "row" }, name.replaceAll("_", " ")), h("td", {}, typeof value === "object" ? JSON.stringify(value) : String(value)))))))
  return [
    h("h1", {}, answer.address, " ", stateOf(answer.state)),
    answer.error ? h("p", { class: "note" }, "It has not answered since " + time(answer.since) + ": " + answer.error) : null,
    wrong.length ? [h("h2", {}, "Problems"), table("server-problems", PROBLEMS, wrong, "")] : null,
    h("div", { class: "tiles" }, tile(answer.software || "version", answer.version), tile("role", answer.role), tile("commands a second", number(answer.ops)),
      tile("memory", bytes(answer.memory), answer.max_memory === null ? "" : answer.max_memory ? "of " + bytes(answer.max_memory) : "without a limit"),
      tile("connections", number(answer.clients), answer.max_clients ? "of " + number(answer.max_clients) : ""), tile("blocked", number(answer.blocked)), tile("replicas", number(answer.replicas))),
    spans(),
    !stamps.length ? h("p", { class: "note" }, "No sample yet.") : h("div", { class: "charts" }, [["Commands a second", "ops", rate], ["Memory", "memory", bytes, answer.max_memory], ["Connections", "clients", number, answer.max_clients],
      ["CPU, share of a core", "cpu", percent, 1], ["INFO, milliseconds", "latency", value => fixed(1000 * value, 1), 0.25], ["Hit rate", "hits", percent], ["Evicted keys a second", "evicted", rate],
      ["Received, bytes a second", "received", bytes], ["Sent, bytes a second", "sent", bytes]]
      .map(([title, field, show, limit]) => chart(title, stamps, samples[field] || [], show, limit))),
    nodesOf(answer),
    h("h2", {}, "Databases"), table("databases", [["database", row => row.number], ["keys", row => row.keys, row => number(row.keys)], ["shards", row => row.shards.join(", "), null, "wrap"]], answer.databases, "No entry names it."),
    h("h2", {}, "Slow and large commands"), table("server-slow", SLOW, answer.slow, "None in the last day."),
    h("h2", {}, "Persistence"), facts({ ...answer.persistence, rdb_last_save_time: time(answer.persistence.rdb_last_save_time) }),
    Object.keys(answer.replication).length ? [h("h2", {}, "Replication"), facts(answer.replication)] : null,
  ]
}

function heat(answer) {
  if (answer.banner) return [h("h1", {}, "Heat"), h("p", { class: "note" }, answer.banner)]
  if (!answer.day_seconds) return [h("h1", {}, "Heat"), h("p", { class: "note" },
    "No process has reported what it uses. Open kits with heat=0.005, or set SHARDKIT_HEAT=0.005 in their environment: each then counts in 0.5 % of the time."), observed(answer)]
  const named = (title, what) => [[title, row => row.name, null, "wrap"],
    [what + "/s now", row => row.now, row => rate(row.now)], ["of all", row => row.share, row => meter(row.share), "meters"],
    [what + "/s in 24 h", row => row.day, row => rate(row.day)], ["of all in 24 h", row => row.day_share, row => meter(row.day_share), "meters"],
    ["component", row => row.component, row => row.component ? link(at("components", row.component), row.component) : ""]]
  const section = (title, name, what, rows, empty) => [h("h2", {}, title), table("heat-" + name, named(name, what), rows, empty)]
  return [h("h1", {}, "Heat"),
    h("p", { class: "muted" }, "As clients count it. Now is the last " + span(answer.seconds) + ", and the day's reports go back " + span(answer.day_seconds) + "."),
    h("h2", {}, "Servers"), table("heat-servers", [["server", row => row.server, row => row.server ? link(at("servers", row.server), row.server) : "gone"], ["hot shards", row => row.shards],
      ["commands/s now", row => row.now, row => rate(row.now)], ["of all", row => row.share, row => meter(row.share), "meters"]], answer.servers, "Nothing in the last five minutes."),
    balance(answer.moves),
    section("Keys", "key", "commands", answer.key, "None."), section("Hash tags", "tag", "commands", answer.tag, "No key with a tag is used."),
    h("h2", {}, "Shards"), table("heat-shard", [["shard", row => row.name], ["server", row => row.server, row => row.server ? link(at("servers", row.server), row.server) : "gone"],
      ["commands/s now", row => row.now, row => rate(row.now)], ["of all", row => row.share, row => meter(row.share), "meters"], ["commands/s in 24 h", row => row.day, row => rate(row.day)]], answer.shard, "None."),
    section("Components", "component", "commands", answer.component, "None."), section("Structures", "structure", "calls", answer.structure, "No structure is used."),
    section("Decorated functions", "function", "calls", answer.function, "No decorated function is called."), observed(answer)]
}
function balance(moves) {
  const title = h("h2", {}, "What would a move bring?")
  if (!moves) return [title, h("p", { class: "note" }, h("button", { class: "action", "data-key": "plan", onclick: plan }, "Plan moves"),
    " Measures 100 keys of each database, and plans as `shardkit balance --by operations` does. Nothing is moved.")]
  if (moves.banner) return [title, h("p", { class: "note" }, moves.banner)]
  return [title, table("plan", [["server", row => row[0], row => link(at("servers", row[0]), row[0])], ["times the mean now", row => row[1], row => fixed(row[1], 2)], ["afterwards", row => row[2], row => fixed(row[2], 2)]],
    Object.entries(moves.before).map(([name, times]) => [name, times, moves.after[name]]), ""),
    table("plan-moves", [["shards", row => row.shards.join(", "), null, "wrap"], ["from", row => row.source], ["to", row => row.target], ["bytes", row => row.bytes, row => bytes(row.bytes)], ["takes about", row => row.seconds, row => span(row.seconds)]],
      moves.moves, moves.fits ? "No move is needed: all servers are within " + percent(moves.tolerance) + " of the mean." : "No move helps: what is hot is on single shards or keys. Split them."),
    [...moves.uneven, ...moves.problems].map(each => h("p", { class: "note" }, each))]
}
async function plan() {
  const asked = shown
  asked.moves = { banner: "Measuring …" }
  draw(true)
  const moves = await ask("/heat/moves").catch(error => ({ banner: error.message }))
  if (shown && shown.key) { shown.moves = moves; draw(true) }
}
const observed = answer => [h("h2", {}, "As servers report it"), answer.observed ? [table("observed", [["server", row => row.server, row => link(at("servers", row.server), row.server)], ["database", row => row.database],
  ["key", row => row.key, null, "wrap"], ["by", row => row.by], ["amount", row => row.amount, row => row.by === "net" ? bytes(row.amount) : row.by === "cpu" ? number(row.amount) + " µs" : number(row.amount)]],
  answer.observed.keys, "No server has an LFU policy, or HOTKEYS tracking that was started."), failures(answer.observed.failed)] : h("p", { class: "note" }, "Asking servers …")]

function recorded(answer) {
  const drawn = answer.counters.filter(each => each.slices && each.slices.at.length).sort((a, b) => b.total - a.total).slice(0, 8)
  const averages = answer.statistics.filter(each => each.recent.at.length > 1).sort((a, b) => b.count - a.count).slice(0, 4)
  const seconds = value => value === null || value === undefined ? "" : value >= 100 ? number(value) : value.toPrecision(3)
  return [h("h1", {}, "Metrics"),
    drawn.length || averages.length ? h("div", { class: "charts" }, drawn.map(each => chart(each.name + ", a minute", each.slices.at, each.slices.count, number)),
      averages.map(each => chart(each.context + " " + each.kind + ", average", each.recent.at, each.recent.mean, seconds))) : null,
    h("h2", {}, "Counters"), table("counters", [["counter", row => row.name, null, "wrap"],
      ["in the last minute", row => row.minute, row => number(row.minute)], ["in all minutes kept", row => row.total, row => number(row.total)], ["since", row => row.since, row => time(row.since), " "],
      ["component", row => row.component, row => link(at("components", row.component), row.component)]],
      answer.counters, "No counter. kit.counters(…) counts what happens."),
    h("h2", {}, "Statistics and access times of this hour"), table("statistics", [["context", row => row.context, null, "wrap"], ["kind", row => row.kind], ["component", row => row.component, row => link(at("components", row.component), row.component)],
      ["values", row => row.count, row => number(row.count)], ...["mean", "p50", "p99", "min", "max"].map(name => [name, row => row[name], row => seconds(row[name])])],
      answer.statistics, "No statistics. kit.statistics(…) and kit.timed(…) record them."),
    h("h2", {}, "Messages"), table("messages", [["at", row => row.at, row => time(row.at), " "], ["log", row => row.log], ["severity", row => row.severity, row => h("span", { class: { error: "bad", critical: "bad", warning: "warn" }[row.severity] }, row.severity)],
      ["message", row => row.message, null, "wrap"]], answer.messages, "No message. kit.logs(…) keeps them."), failures(answer.failed)]
}

function queues(answer) {
  return [h("h1", {}, "Queues"), table("queues", [
    ["component", row => row.component], ["queue", row => row.queue],
    ["waiting", row => row.counts.waiting, row => number(row.counts.waiting)], ["delayed", row => row.counts.delayed, row => number(row.counts.delayed)],
    ["leased", row => row.counts.taken, row => number(row.counts.taken)],
    ["dead", row => row.counts.dead, row => row.counts.dead ? link("/queues?component=" + encodeURIComponent(row.component) + "&queue=" + encodeURIComponent(row.queue), number(row.counts.dead)) : "0"],
    ["oldest", row => row.oldest, row => span(row.oldest)], ["queued/s", row => row.rates.enqueued, row => fixed(row.rates.enqueued, 1)],
    ["finished/s", row => row.rates.finished, row => fixed(row.rates.finished, 1)], ["failed/s", row => row.rates.failed, row => fixed(row.rates.failed, 2)]],
    answer.queues, "No task queue has a task, or had one in the last quarter of an hour."), failures(answer.failed),
  answer.dead ? [h("h2", {}, "Dead tasks of " + answer.dead.queue), table("dead", [
    ["died", row => row.at, row => time(row.at), " "], ["task", row => row.name], ["arguments", row => JSON.stringify(row.args), null, "wrap"], ["attempts", row => row.attempts],
    ["why", row => row.reason, row => h("pre", {}, row.reason), "wrap"],
    ...(allowChanges ? [["", () => "", row => h("button", { class: "action", onclick: () => revive(answer.dead, row.id) }, "Revive")]] : [])],
    answer.dead.dead, "No dead task is left.")] : null]
}
async function revive(dead, id) {
  await fetch("/api" + at("queues", dead.component, dead.queue, "dead", id, "revive"), { method: "POST" })
  load()
}

function locks(answer) {
  return [h("h1", {}, "Locks"), table("locks", [["name", row => row.name, null, "wrap"], ["kind", row => row.kind],
    ["state", row => row.state, row => h("span", { class: row.state === "holds" ? "good" : "warn" }, row.state)], ["who", row => row.holder.label],
    ["for", row => row.holder.held_for, row => span(row.holder.held_for)], ["ends in", row => row.holder.ends_in, row => span(row.holder.ends_in)], ["token", row => row.holder.token, null, " "], ["component", row => row.component]],
    answer.locks, "Nobody holds or waits for a lock."), failures(answer.failed)]
}

function growth(answer) {
  if (answer.banner) return [h("h1", {}, "Growth"), h("p", { class: "note" }, answer.banner)]
  return [h("h1", {}, "Growth"), h("h2", {}, "Changes at work"), table("changes-at-work", CHANGES, answer.changes, "Nothing changes."), h("h2", {}, "Moves"), table("moves", [["from", row => row.source, null, "wrap"], ["to", row => row.target, null, "wrap"], ["phase", row => row.phase, row => h("span", { class: row.is_over ? "good" : "warn" }, row.phase)], ["how far", row => row.how_far, null, "wrap"],
    ["shards", row => (row.shards || []).join(", "), null, "wrap"], ["copied", row => row.copied, row => bytes(row.copied)], ["took", row => row.seconds, row => span(row.seconds)],
    ["writers waited", row => row.held, row => row.held === null ? "" : fixed(1000 * row.held, 0) + " ms"]],
    answer.moves, "Nothing moves, and nothing has moved. `shardkit move` starts a move."),
  h("h2", {}, "Masters that were replaced"), table("fences", [["was", row => row.source], ["now", row => row.target]], answer.fences, "None is left to come back."),
  answer.unreadable.map(each => h("p", { class: "note" }, each))]
}

function configuration(answer) {
  if (answer.banner) return [h("h1", {}, "Configuration"), h("p", { class: "note" }, answer.banner)]
  const old = answer.processes.filter(each => each.epoch !== null && each.epoch < answer.epoch)
  return [h("h1", {}, "Configuration, epoch " + answer.epoch),
    h("h2", {}, "What the last push changed"), table("changes", [["entry", row => row.entry], ["field", row => row.field, row => row.field || "all"], ["before", row => row.before, null, "wrap"], ["after", row => row.after, null, "wrap"]], answer.changes, "Nothing, or the entries were written by hand."),
    answer.undone ? h("p", { class: "note" }, answer.undone) : null,
    h("h2", {}, "Processes" + (old.length ? ", " + old.length + " with an earlier epoch" : "")), table("processes", [
      ["host", row => row.host], ["pid", row => row.pid, null, " "], ["library", row => row.library], ["epoch", row => row.epoch, row => row.epoch === null ? "" : h("span", { class: row.epoch < answer.epoch ? "warn" : "good" }, row.epoch), " "],
      ["connections", row => row.connections], ["idle", row => row.idle, row => span(row.idle)], ["age", row => row.age, row => span(row.age)], ["components", row => Object.keys(row.components).join(", "), null, "wrap"]],
      answer.processes, "No process is connected."), failures(answer.failed),
    h("h2", {}, "Pushes"), table("pushes", [["epoch", row => row.epoch], ["at", row => row.at, row => time(row.at), " "], ["who", row => row.author], ["from", row => row.source], ["why", row => row.message, null, "wrap"]], answer.pushes, "No push is recorded."),
    h("h2", {}, "Entries"), table("entries", [["entry", row => row[0]], ["fields", row => row[1], null, "wrap"]],
      Object.values(answer.entries).flatMap(each => Object.entries(each)).map(([shard, fields]) => [shard, JSON.stringify(fields)]), "No entry yet.")]
}

// Keys: what is found of a pattern, page by page, and the value of one.
function keys(answer) {
  const query = new URLSearchParams(location.search), known = summary ? summary.components.map(each => each.name) : []
  const look = (component, pattern) => { history.pushState(null, "", "/keys?" + new URLSearchParams({ component, pattern })); go() }
  const names = h("select", { "aria-label": "Component", "data-key": "keys:component", onchange: event => look(event.target.value, query.get("pattern") || "*") },
    ["", ...known].map(name => h("option", { value: name, selected: name === query.get("component") ? "" : null }, name || "Component")))
  const pattern = h("input", { type: "search", "aria-label": "Pattern", "data-key": "keys:pattern", value: query.get("pattern") || "*", onchange: event => look(query.get("component") || "", event.target.value) })
  const value = answer.value && h("div", {}, h("h2", {}, answer.value.key), h("p", { class: "muted" }, [answer.value.type, answer.value.structure && "of " + answer.value.structure, answer.value.note].filter(Boolean).join(", ") + ". At most 100 members, 64 KB of each and 4 MB of all, are shown."),
    h("pre", {}, typeof answer.value.value === "string" ? answer.value.value : JSON.stringify(answer.value.value, null, 1)))
  return [h("h1", {}, "Keys"), h("p", { class: "looked" }, names, pattern), answer.error ? h("p", { class: "note" }, answer.error) : null, failures(answer.failed), value,
    answer.keys ? table("keys", [["key", row => row.key, row => h("button", { class: "action", onclick: () => { query.set("place", row.place); query.set("key", row.id); history.pushState(null, "", "/keys?" + query); go() } }, row.key), "wrap"],
      ["type", row => row.type], ["bytes", row => row.bytes, row => bytes(row.bytes)], ["expires in", row => row.expires, row => span(row.expires)], ["shard", row => row.shard]],
      answer.keys, "No key of this pattern" + (answer.cursor ? " was found yet." : ".")) : h("p", { class: "note" }, "Choose a component. Each look is logged."),
    answer.cursor ? h("p", { class: "more" }, h("button", { class: "action", "data-key": "keys:more", onclick: async () => { const more = await ask(keysPath(query, answer.cursor)); shown = { ...answer, keys: answer.keys.concat(more.keys), failed: { ...answer.failed, ...more.failed }, cursor: more.cursor }; draw(true) } }, "Look for more")) : null]
}
const keysPath = (query, cursor) => at("keys", query.get("component")) + "?" + new URLSearchParams({ pattern: query.get("pattern") || "*", cursor: cursor || "" })

const failures = failed => Object.entries(failed || {}).map(([where, why]) => h("p", { class: "note" }, where + ": " + why))

async function ask(path) {
  const response = await fetch("/api" + path)
  if (!response.ok) {
    const why = await response.json().then(answer => answer.error, () => "")
    throw new Error(response.status === 404 ? "There is nothing of that name." : why || "The dashboard answered " + response.status + ".")
  }
  return response.json()
}

// What a path shows: a function that asks, or null where the live summary is enough, and one that draws.
function route() {
  const path = location.pathname, parts = path.split("/").slice(1), query = new URLSearchParams(location.search)
  if (path === "/") return [null, overview]
  if (parts[0] === "components") return [async () => {
    const answer = await ask(path)
    if (shown && shown.name === answer.name) answer.contents = shown.contents
    ask(path + "/contents").then(contents => { if (shown === answer) { answer.contents = contents; draw() } }).catch(() => {})
    return answer
  }, component]
  if (parts[0] === "servers") return [() => ask(path), server]
  if (parts[0] === "queues") return [async () => {
    const answer = await ask("/queues")
    if (query.get("queue")) answer.dead = await ask(at("queues", query.get("component"), query.get("queue"), "dead"))
    return answer
  }, queues]
  if (parts[0] === "slow") return [() => ask(path), answer => [h("h1", {}, "Slow and large commands of all servers"), table("slow", SLOW, answer.slow, "None in the last day. Servers record what takes longer than slowlog-log-slower-than.")]]
  if (parts[0] === "recorded") return [() => ask("/metrics"), recorded]
  if (parts[0] === "keys") return [async () => {
    if (shown) return shown  // only what somebody asks for
    const component = query.get("component")
    if (!component) return {}
    try {
      const value = query.get("key") ? await ask(at("keys", component, "value") + "?" + new URLSearchParams({ place: query.get("place"), key: query.get("key") })) : null
      return { ...(value ? {} : await ask(keysPath(query))), value }
    } catch (error) { return { error: error.message } }
  }, keys]
  if (parts[0] === "heat") return [async () => {
    const answer = await ask(path)
    if (shown) Object.assign(answer, { moves: shown.moves, observed: shown.observed })
    if (!answer.observed) ask("/heat/servers").then(found => { if (shown) { shown.observed = found; draw() } }).catch(() => {})
    return answer
  }, heat]
  return [() => ask(path), { locks, growth, configuration }[parts[0]]]
}

function draw(always) {
  const [asks, render] = route()
  if ((asks ? !shown : !summary) || document.hidden) return
  const signature = JSON.stringify(asks ? shown : summary)
  if (!always && signatures.get("drawn") === signature) return
  signatures.set("drawn", signature)
  const key = document.activeElement?.dataset?.key, place = document.activeElement?.selectionStart
  const scrolls = [...view.querySelectorAll("[data-key].tall")].map(each => [each.dataset.key, each.scrollTop])
  charts = []
  view.replaceChildren(...[render(asks ? shown : undefined)].flat(9).filter(each => each !== null && each !== undefined))
  charts.forEach(each => each())
  for (const [name, top] of scrolls) { const box = [...view.querySelectorAll(".tall")].find(each => each.dataset.key === name); if (box) box.scrollTop = top }
  const again = key && [...view.querySelectorAll("[data-key]")].find(each => each.dataset.key === key)
  if (again) { again.focus({ preventScroll: true }); if (typeof place === "number" && again.setSelectionRange) again.setSelectionRange(place, place) }
}

async function load() {
  clearTimeout(timer)
  const [asks] = route(), path = location.href
  if (asks) {
    try {
      const answer = await asks()
      if (path !== location.href) return
      shown = answer
      draw()
    } catch (error) {
      if (path === location.href && !shown) view.replaceChildren(h("h1", {}, "Not to be shown"), h("p", { class: "note" }, error.message))
    }
    timer = setTimeout(load, 5000)
  } else draw()
}

function go() {
  shown = null
  signatures.clear()
  whole.clear()
  navigate()
  view.replaceChildren(h("p", { class: "note" }, "Asking …"))
  load()
}

function navigate() {
  const current = "/" + location.pathname.split("/")[1]
  nav.replaceChildren(...VIEWS.map(([path, title]) => h("a", { href: path, "aria-current": path === current ? "page" : null }, title)))
  entitle()
}
function entitle() {
  const what = VIEWS.find(each => each[0] === "/" + location.pathname.split("/")[1])?.[1] || decodeURIComponent(location.pathname.split("/").pop())
  const [how, words] = summary && summary.servers ? verdict() : ["good", ""]
  const title = (how === "good" ? "" : words + " · ") + what + " · shardkit"
  if (document.title !== title) document.title = title
}

document.addEventListener("click", event => {
  const anchor = event.target.closest("a[href^='/']")
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return
  event.preventDefault()
  history.pushState(null, "", anchor.href)
  go()
  scrollTo(0, 0)
})
addEventListener("popstate", go)
addEventListener("resize", () => { clearTimeout(timer); draw(true); timer = setTimeout(load, 5000) })
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours.clear(); draw(true) })
document.addEventListener("visibilitychange", () => { if (!document.hidden) draw() })

function listen() {
  const source = new EventSource("/api/events")
  source.onmessage = event => {
    summary = JSON.parse(event.data)
    if (!summary.servers) return
    const [how, words] = verdict()
    state.replaceChildren(h("span", { class: how }, words), ", every " + summary.interval + " s, times in UTC")
    entitle()
    banner.hidden = !summary.banner
    banner.textContent = summary.banner ? "The config server cannot be read; what follows is the last that is known. " + summary.banner : ""
    if (summary.servers.some(each => each.state === "up")) totals.at.push(summary.at)
    if (totals.at[totals.at.length - 1] === summary.at) for (const field of ["ops", "memory", "clients"]) totals[field].push(summary.servers.reduce((all, each) => all + (each[field] || 0), 0))
    if (totals.at.length > 1800) Object.values(totals).forEach(each => each.shift())
    draw()
  }
  source.onerror = () => { state.textContent = "connection lost, trying again" }
}

addEventListener("DOMContentLoaded", async () => {
  go()
  listen()
  try {
    const settings = await ask("/settings")
    allowChanges = settings.allow_changes
    if (settings.browse_keys) { VIEWS.push(["/keys", "Keys"]); navigate() }
    const known = await ask("/overview")
    if (known.totals) totals = known.totals
    if (known.day) daily = known.day
    draw(true)
  } catch { /* the events go on trying */ }
})
