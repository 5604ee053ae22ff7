// The dashboard: asks the API once a second and shows what it says. It asks nothing else.
"use strict";

const PAUSE_MS = 1000;
// Ten minutes.
const POINTS = 600;
// Changes that the log shows.
const CHANGES = 50;
// Days before a certificate's end from which on it is pointed out.
const DAYS_LEFT = 14;
const numbers = new Intl.NumberFormat("en");

const api = document.body.dataset.api.replace(/\/$/, "") + "/9";
const writes = document.body.dataset.writes === "on";
const plots = new Map();
const tables = new Map();
let before = null;

async function ask(path) {
  const response = await fetch(api + path, { cache: "no-store" });
  if (response.status === 404) return "{}";
  if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
  return response.text();
}

async function change(method, path, body, question) {
  if (!window.confirm(question)) return;
  let outcome = "done";
  try {
    const response = await fetch(api + path, { method, body: body && JSON.stringify(body) });
    if (!response.ok) {
      const told = await response.json().catch(() => null);
      throw new Error(told?.error?.text ?? response.statusText);
    }
    trouble(null);
  } catch (error) {
    outcome = `refused: ${error.message}`;
    trouble(error.message);
  }
  note(`${method} ${path}${body ? ` ${JSON.stringify(body)}` : ""}`, outcome);
}

// The log of changes that this page has asked for, the last one first.
function note(what, outcome) {
  const list = document.getElementById("changes");
  document.getElementById("log").hidden = false;
  const line = document.createElement("li");
  line.textContent = `${new Date().toLocaleTimeString("en")} ${what}: ${outcome}`;
  list.prepend(line);
  while (list.children.length > CHANGES) list.lastChild.remove();
}

function trouble(text) {
  const place = document.getElementById("trouble");
  place.hidden = text === null;
  place.textContent = text ?? "";
}

// Changes the page only where something else is to be seen.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(name, text, parent) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function count(number) {
  return number === undefined ? "" : numbers.format(number);
}

function bytes(number) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (number >= 1000 && at < units.length - 1) {
    number /= 1000;
    at += 1;
  }
  return `${number.toFixed(at === 0 ? 0 : 1)} ${units[at]}`;
}

function card(list, name, text) {
  let value = list.querySelector(`[data-name="${name}"]`);
  if (!value) {
    const box = make("div", undefined, list);
    make("dt", name, box);
    value = make("dd", undefined, box);
    value.dataset.name = name;
  }
  say(value, text);
}

function plot(name, value) {
  let known = plots.get(name);
  if (!known) {
    const figure = make("figure", undefined, document.getElementById("plots"));
    const caption = make("figcaption", undefined, figure);
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", `0 0 ${POINTS} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    const line = document.createElementNS(space, "polyline");
    svg.append(line);
    figure.append(svg);
    known = { caption, svg, line, values: [] };
    plots.set(name, known);
  }
  known.values.push(value);
  if (known.values.length > POINTS) known.values.shift();
  const most = Math.max(1, ...known.values);
  const start = POINTS - known.values.length;
  const points = known.values.map((one, at) => `${start + at},${98 - (one / most) * 94}`);
  known.line.setAttribute("points", points.join(" "));
  const text = `${name}: ${count(Math.round(value))}, at most ${count(Math.round(most))} in ten minutes`;
  say(known.caption, text);
  known.svg.setAttribute("aria-label", text);
}

// Rows that are not on the screen are written when they come there: thousands of servers cost as
// much as those that are seen.
const lines = new WeakMap();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const shown = lines.get(entry.target);
    shown.onScreen = entry.isIntersecting;
    if (shown.onScreen) fill(shown);
  }
}, { rootMargin: "50%" });

function fill(shown) {
  shown.row.cells().forEach((text, at) => {
    if (shown.texts[at].data !== text) shown.texts[at].data = text;
  });
}

// A table whose rows stay where they are from one look to the next.
function table(place, title, columns, rows) {
  let known = tables.get(title);
  if (!known) {
    const section = make("div", undefined, place);
    make("h2", title, section);
    const wide = make("div", undefined, section);
    wide.className = "wide";
    wide.tabIndex = 0;
    wide.setAttribute("role", "region");
    wide.setAttribute("aria-label", title);
    const body = make("table", undefined, wide);
    const head = make("tr", undefined, make("thead", undefined, body));
    for (const column of columns) make("th", column, head).scope = "col";
    known = { section, body: make("tbody", undefined, body), rows: new Map() };
    tables.set(title, known);
  }
  known.turn = (known.turn ?? 0) + 1;
  for (const row of rows) {
    let shown = known.rows.get(row.key);
    if (!shown) {
      const line = make("tr", undefined, known.body);
      const texts = columns.map(() => make("td", undefined, line).appendChild(document.createTextNode("")));
      if (row.buttons) line.lastChild.append(...row.buttons());
      shown = { line, texts, state: undefined, onScreen: true };
      known.rows.set(row.key, shown);
      lines.set(line, shown);
      watcher.observe(line);
    }
    shown.turn = known.turn;
    shown.row = row;
    if (row.state !== shown.state) {
      shown.state = row.state;
      shown.line.children[1].className = row.state;
      fill(shown);
    } else if (shown.onScreen) {
      fill(shown);
    }
  }
  for (const [key, shown] of known.rows) {
    if (shown.turn === known.turn) continue;
    watcher.unobserve(shown.line);
    shown.line.remove();
    known.rows.delete(key);
  }
  known.seen = true;
}

function buttons(path, peer) {
  const all = [
    ["Drain", { drain: true }, "It gets no new requests but those of its sessions."],
    ["Down", { down: true }, "It gets no requests any more."],
    ["Up", { down: false }, "It gets requests again."],
  ];
  const made = all.map(([name, body, what]) => {
    const button = make("button", name);
    button.type = "button";
    button.setAttribute("aria-label", `${name} ${peer.server}`);
    button.addEventListener("click", () =>
      change("PATCH", path, body, `${name} ${peer.server}? ${what}`));
    return button;
  });
  const weight = make("button", "Weight");
  weight.type = "button";
  weight.setAttribute("aria-label", `Weight of ${peer.server}`);
  weight.addEventListener("click", () => {
    const written = window.prompt(`Weight of ${peer.server}`, peer.weight);
    if (/^\d+$/.test(written ?? "")) {
      change("PATCH", path, { weight: Number(written) }, `Give ${peer.server} the weight ${written}?`);
    }
  });
  return [...made, weight];
}

function showUpstreams(of, groups) {
  const place = document.getElementById("upstreams");
  const columns = ["Server", "State", "Weight", "Active", "Requests", "Time", "5xx", "Fails", "Out"];
  if (writes) columns.push("Change");
  for (const [name, group] of Object.entries(groups)) {
    const rows = group.peers.map((peer) => {
      const path = `/${of}/upstreams/${encodeURIComponent(name)}/servers/${peer.id}`;
      const server = peer.backup ? `${peer.server} (backup)` : peer.server;
      return {
        key: peer.id,
        state: peer.state,
        buttons: writes && group.zone !== undefined ? () => buttons(path, peer) : undefined,
        cells: () => [server, peer.state, count(peer.weight), count(peer.active), count(peer.requests ?? peer.connections),
          peer.response_time === undefined ? "" : `${count(peer.response_time)} ms`, count(peer.responses?.["5xx"]),
          count(peer.fails), count(peer.unavail)],
      };
    });
    const title = of === "http" ? `Upstream ${name}` : `Upstream ${name} (${of})`;
    table(place, title, columns, rows);
  }
}

function showZones(title, zones, seconds) {
  const names = Object.keys(zones);
  if (names.length === 0) return;
  const old = before?.zones?.[title] ?? {};
  const rows = names.map((name) => {
    const zone = zones[name];
    const known = old[name]?.requests ?? zone.requests;
    const rate = Math.max(0, (zone.requests - known) / seconds);
    const by = zone.responses;
    return {
      key: name,
      cells: () => [name, rate.toFixed(1), count(zone.requests), count(by["2xx"]), count(by["3xx"]), count(by["4xx"]), count(by["5xx"]),
        bytes(zone.received), bytes(zone.sent)],
    };
  });
  const columns = ["Zone", "Requests/s", "Requests", "2xx", "3xx", "4xx", "5xx", "Received", "Sent"];
  table(document.getElementById("zones"), title, columns, rows);
}

function showLimits(title, zones) {
  const names = Object.keys(zones);
  if (names.length === 0) return;
  const rows = names.map((name) => {
    const zone = zones[name];
    return { key: name, cells: () => [name, count(zone.passed), count(zone.delayed), count(zone.rejected)] };
  });
  table(document.getElementById("zones"), title, ["Zone", "Passed", "Delayed", "Refused"], rows);
}

function showCaches(caches) {
  const names = Object.keys(caches);
  if (names.length === 0) return;
  const columns = ["Cache", "Size", "At most", "Entries", "Hits", "Misses", "Expired", "Stale", "Bypassed"];
  if (writes) columns.push("Change");
  const rows = names.map((name) => {
    const cache = caches[name];
    const answered = (kind) => count(cache[kind]?.responses);
    const purge = () => {
      const button = make("button", "Purge");
      button.type = "button";
      button.setAttribute("aria-label", `Purge ${name}`);
      button.addEventListener("click", () =>
        change("DELETE", `/http/caches/${encodeURIComponent(name)}/entries`, undefined,
          `Purge ${name}? All its entries are fetched anew.`));
      return [button];
    };
    return {
      key: name,
      buttons: writes ? purge : undefined,
      cells: () => [name, bytes(cache.size), cache.max_size === undefined ? "" : bytes(cache.max_size), count(cache.entries),
        answered("hit"), answered("miss"), answered("expired"), answered("stale"), answered("bypass")],
    };
  });
  table(document.getElementById("zones"), "Caches", columns, rows);
}

function showCertificates(certificates) {
  if (!Array.isArray(certificates) || certificates.length === 0) return;
  const rows = certificates.map((known) => {
    const left = known.days_left;
    return {
      key: `${known.certificate} ${known.names.join(" ")}`,
      state: left < 0 ? "down" : left < DAYS_LEFT ? "draining" : "up",
      cells: () => [known.names.join(", "), left < 0 ? "over" : `${count(left)} days left`, known.not_after, known.certificate],
    };
  });
  table(document.getElementById("zones"), "Certificates", ["Names", "State", "Ends", "File"], rows);
}

function showWorkers(workers) {
  if (!Array.isArray(workers)) return;
  const rows = workers.map((worker) => {
    const { connections, http } = worker;
    return {
      key: worker.id,
      cells: () => [`Thread ${worker.id}`, count(http.requests.total), count(http.requests.current), count(connections.accepted),
        count(connections.active), count(connections.idle), count(connections.dropped)],
    };
  });
  const columns = ["Worker", "Requests", "Being answered", "Accepted", "Active", "Idle", "Dropped"];
  table(document.getElementById("zones"), "Workers", columns, rows);
}

async function look() {
  const paths = ["/nginx", "/connections", "/http/requests", "/http/upstreams", "/stream/upstreams",
    "/http/server_zones", "/http/location_zones", "/http/limit_reqs", "/http/limit_conns", "/http/caches",
    "/ssl/certificates", "/workers", "/processes"];
  const texts = await Promise.all(paths.map(ask));
  const now = performance.now();
  const [nginx, connections, requests, http, stream, servers, locations, rates, limits, caches, certificates, workers,
    process] = texts.map((text) => JSON.parse(text));
  const seconds = before ? Math.max(0.001, (now - before.now) / 1000) : 1;
  const since = (name, value, known) => (before ? Math.max(0, (value - known) / seconds) : 0);
  const list = document.getElementById("overview");
  say(document.getElementById("about"),
    `${nginx.version} at ${nginx.address}, configuration ${nginx.generation} of ${nginx.load_timestamp}, process ${nginx.pid}`);
  const rate = since("requests", requests.total, before?.requests.total);
  card(list, "Requests/s", rate.toFixed(1));
  card(list, "Requests", count(requests.total));
  card(list, "Being answered", count(requests.current));
  card(list, "Connections", count(connections.active + connections.idle));
  card(list, "Idle", count(connections.idle));
  card(list, "Accepted", count(connections.accepted));
  card(list, "Dropped", count(connections.dropped));
  if (process.memory !== undefined) card(list, "Memory", bytes(process.memory));
  if (process.descriptors !== undefined) card(list, "Descriptors", count(process.descriptors));
  plot("Requests a second", rate);
  plot("Connections", connections.active + connections.idle);
  for (const known of tables.values()) known.seen = false;
  showUpstreams("http", http);
  showUpstreams("stream", stream);
  showZones("Zones of servers", servers, seconds);
  showZones("Zones of locations", locations, seconds);
  showLimits("Limits of rates", rates);
  showLimits("Limits of connections", limits);
  showCaches(caches);
  showCertificates(certificates);
  showWorkers(workers);
  for (const [title, known] of tables) {
    if (known.seen) continue;
    known.section.remove();
    tables.delete(title);
  }
  performance.clearMeasures("refresh");
  performance.measure("refresh", { start: now, end: performance.now() });
  before = { now, requests, zones: { "Zones of servers": servers, "Zones of locations": locations } };
}

async function run() {
  let failed = false;
  for (;;) {
    try {
      if (!document.hidden) await look();
      if (failed) trouble(null);
      failed = false;
    } catch (error) {
      failed = true;
      trouble(`The API does not answer: ${error.message}`);
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

run();
