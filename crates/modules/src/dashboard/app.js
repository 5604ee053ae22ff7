// The dashboard: asks the API once a second and shows what it says. It asks nothing else.
"use strict";

const PAUSE_MS = 1000;
// Ten minutes.
const POINTS = 600;

const api = document.body.dataset.api.replace(/\/$/, "") + "/9";
const writes = document.body.dataset.writes === "on";
const plots = new Map();
const tables = new Map();
let before = null;

async function ask(path) {
  const response = await fetch(api + path, { cache: "no-store" });
  if (response.status === 404) return {};
  if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
  return response.json();
}

async function change(method, path, body, question) {
  if (!window.confirm(question)) return;
  try {
    const response = await fetch(api + path, { method, body: body && JSON.stringify(body) });
    if (!response.ok) {
      const told = await response.json().catch(() => null);
      throw new Error(told?.error?.text ?? response.statusText);
    }
    trouble(null);
  } catch (error) {
    trouble(error.message);
  }
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
  return number === undefined ? "" : Number(number).toLocaleString("en");
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
  const gone = new Set(known.rows.keys());
  for (const row of rows) {
    gone.delete(row.key);
    let line = known.rows.get(row.key);
    if (!line) {
      line = make("tr", undefined, known.body);
      for (const _ of columns) make("td", undefined, line);
      if (row.buttons) line.lastChild.append(...row.buttons());
      known.rows.set(row.key, line);
    }
    row.cells.forEach((text, at) => say(line.children[at], text));
    if (row.state !== undefined && line.children[1].className !== row.state) line.children[1].className = row.state;
  }
  for (const key of gone) {
    known.rows.get(key).remove();
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
  const columns = ["Server", "State", "Weight", "Active", "Requests", "Fails", "Out"];
  if (writes) columns.push("Change");
  for (const [name, group] of Object.entries(groups)) {
    const rows = group.peers.map((peer) => {
      const path = `/${of}/upstreams/${encodeURIComponent(name)}/servers/${peer.id}`;
      const server = peer.backup ? `${peer.server} (backup)` : peer.server;
      return {
        key: peer.id,
        state: peer.state,
        buttons: writes && group.zone !== undefined ? () => buttons(path, peer) : undefined,
        cells: [server, peer.state, count(peer.weight), count(peer.active), count(peer.requests), count(peer.fails), count(peer.unavail)],
      };
    });
    table(place, `Upstream ${name}`, columns, rows);
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
      cells: [name, rate.toFixed(1), count(zone.requests), count(by["2xx"]), count(by["3xx"]), count(by["4xx"]), count(by["5xx"]),
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
    return { key: name, cells: [name, count(zone.passed), count(zone.delayed), count(zone.rejected)] };
  });
  table(document.getElementById("zones"), title, ["Zone", "Passed", "Delayed", "Refused"], rows);
}

async function look() {
  const paths = ["/nginx", "/connections", "/http/requests", "/http/upstreams", "/stream/upstreams",
    "/http/server_zones", "/http/location_zones", "/http/limit_reqs", "/http/limit_conns"];
  const [nginx, connections, requests, http, stream, servers, locations, rates, limits] =
    await Promise.all(paths.map(ask));
  const now = performance.now();
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
  plot("Requests a second", rate);
  plot("Connections", connections.active + connections.idle);
  for (const known of tables.values()) known.seen = false;
  showUpstreams("http", http);
  showUpstreams("stream", stream);
  showZones("Zones of servers", servers, seconds);
  showZones("Zones of locations", locations, seconds);
  showLimits("Limits of rates", rates);
  showLimits("Limits of connections", limits);
  for (const [title, known] of tables) {
    if (known.seen) continue;
    known.section.remove();
    tables.delete(title);
  }
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
