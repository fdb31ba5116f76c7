// The charts of runs. Columns and levels of a timeline are unpacked when it is first shown.

const STATUS = ["used", "left in the buffer", "too stale", "discarded", "timed out", "failed", "stopped", "in flight at the end"];
const STALE = ["#2c4a8a", "#4f78b8", "#8aa68c", "#c9b458", "#f0d43a"]; // fresh to stale; also apart in grey
const state = { run: 0, metric: null, against: "time", range: null, rows: null, timelines: new Map(), linking: false };
window.report = { state, ready: null, redraws: [], visible: null, linked: null };

// ---- curves ----

function band(histories, metric, against) {
  const reach = Math.min(...histories.map((h) => h[against][h[against].length - 1]));
  const x = histories[0][against].filter((v) => v <= reach);
  const rows = histories.map((h) => x.map((v) => interpolate(h[against], h[metric], v)));
  const column = (i) => rows.map((row) => row[i]);
  return {
    x,
    mean: x.map((_, i) => column(i).reduce((a, b) => a + b, 0) / rows.length),
    low: x.map((_, i) => Math.min(...column(i))),
    high: x.map((_, i) => Math.max(...column(i))),
  };
}
function interpolate(xs, ys, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  if (xs[high] <= x) return ys[high];
  const width = xs[high] - xs[low];
  return width > 0 ? ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / width : ys[low];
}
// The value of a metric that a run's configuration wants reached, or null.
function targetOf(run, metric) {
  const text = run.config[`target.${metric}`];
  return text === undefined ? null : Number(text);
}
// When a seed's history first reached the target, or null.
function reachedAt(history, metric, target) {
  const at = history[metric].findIndex((v) => metric === "accuracy" ? v >= target : v <= target);
  return at < 0 ? null : history.time[at];
}
function drawCurves() {
  const { metric, against } = state;
  const traces = [];
  data.runs.forEach((run, i) => {
    if (!run.histories[0][metric]) return;
    const style = styleOf(i);
    const b = band(run.histories, metric, against);
    if (run.histories.length > 1) {
      const edge = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: String(i) };
      traces.push({ ...edge, x: b.x, y: b.low });
      traces.push({ ...edge, x: b.x, y: b.high, fill: "tonexty", fillcolor: style.color + "38" });
    }
    traces.push({
      x: b.x, y: b.mean, mode: "lines", name: run.name, legendgroup: String(i), line: style,
    });
  });
  const logarithmic = metric === "grad_norm_sq", targets = [...new Set(data.runs.map((run) => targetOf(run, metric)))].filter((t) => t !== null);
  return Plotly.react("curves", traces, layout({
    ...legendOf(data.runs.length), hovermode: "x unified",
    shapes: targets.map((y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { dash: "dot", width: 1.5, color: "#8f8f8f" } })),
    annotations: targets.map((y) => ({
      xref: "paper", x: 1, xanchor: "right", y: logarithmic ? Math.log10(y) : y, yanchor: "bottom", showarrow: false,
      text: `target ${show(y)}`, font: { size: 11 },
    })),
    xaxis: { title: { text: AXES[against] }, range: against === "time" ? state.range : undefined },
    yaxis: { title: { text: METRICS[metric] }, type: logarithmic ? "log" : "linear" },
  }), CONFIG);
}

// ---- staleness and contribution ----

// Bars beside each other; lines where the runs have different numbers of groups, as their bars would cover each other.
function participation(ratios, i) {
  const groups = ratios.length, n = data.runs.length, width = 0.8 / (groups * n);
  const text = ratios.map((_, k) => `group ${k + 1} of ${groups}`), hovertemplate = "%{text}: %{y:.3g}";
  if (groups && data.runs.some((run) => run.contribution.length && run.contribution.length !== groups)) {
    const line = { ...styleOf(i), shape: "hv" };
    const x = [...ratios, 0].map((_, k) => k / groups), last = groups - 1;
    return { mode: "lines", line, x, y: [...ratios, ratios[last]], text: [...text, text[last]], hovertemplate };
  }
  return {
    type: "bar", marker: { color: COLOURS[i % COLOURS.length] }, width, offset: (i - n / 2) * width,
    x: ratios.map((_, k) => (k + 0.5) / groups), y: ratios, text, textposition: "none", hovertemplate,
  };
}
function drawStaleness() {
  const over = [], histogram = [], shares = [];
  data.runs.forEach((run, i) => {
    const line = styleOf(i);
    const s = run.staleness;
    over.push({ x: s.time, y: s.mean, name: run.name, mode: "lines", line });
    histogram.push({ x: s.value, y: s.share, name: run.name, mode: "lines", line: { ...line, shape: "hvh" } });
    shares.push({ ...participation(run.contribution, i), name: run.name });
  });
  const below = data.runs.length > 3 ? { showlegend: false } : { legend: { orientation: "h", y: -0.3, x: 0 }, margin: { l: 60, r: 15, t: 25, b: 90 } };
  return Promise.all([
    Plotly.react("over_time", over, layout({
      ...legendOf(data.runs.length), hovermode: "x unified", xaxis: { title: { text: AXES.time }, range: state.range }, yaxis: { title: { text: "mean staleness" }, rangemode: "tozero" },
    }), CONFIG),
    Plotly.react("histogram", histogram, layout({
      ...below, xaxis: { title: { text: "staleness (server steps)" } }, yaxis: { title: { text: "share of arrivals" }, rangemode: "tozero" },
    }), CONFIG),
    Plotly.react("contribution", shares, layout({
      ...below, barmode: "overlay", shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { dash: "dot", width: 1, color: "#8f8f8f" } }],
      xaxis: { title: { text: "groups of equally many clients" }, range: [0, 1], tickvals: [0.05, 0.95], ticktext: ["fastest", "slowest"] },
      yaxis: { title: { text: "share of arrivals / fair share" }, rangemode: "tozero" },
    }), CONFIG),
  ]);
}

// ---- timeline ----

function fromPlanes(bytes, n) {
  const values = new Uint32Array(n);
  for (let i = 0; i < n; i++) values[i] = bytes[i] | (bytes[n + i] << 8) | (bytes[2 * n + i] << 16) | (bytes[3 * n + i] << 24);
  return values;
}
async function loadTimeline(number) {
  if (state.timelines.has(number)) return state.timelines.get(number);
  const given = data.runs[number].timeline, n = given.tasks;
  const raw = {};
  for (const [name, text] of Object.entries(given.columns)) raw[name] = fromPlanes(await unpack(text), n);
  const start = new Float64Array(n), end = new Float64Array(n), version = new Int32Array(n);
  const differences = new Int32Array(raw.at.buffer);
  // When its client turned to a task, and when its upload would have been done alone; as start and end where not given.
  const turn = raw.queued ? new Float64Array(n) : start, sent = raw.shared ? new Float64Array(n) : end;
  for (let i = 0, ticks = 0, at = 0; i < n; i++) {
    ticks = (ticks + raw.end[i]) >>> 0;
    at += differences[i];
    end[i] = given.begin + ticks * given.tick;
    start[i] = given.begin + (ticks - raw.duration[i]) * given.tick;
    if (raw.queued) turn[i] = start[i] + raw.queued[i] * given.tick;
    if (raw.shared) sent[i] = end[i] - raw.shared[i] * given.tick;
    version[i] = at - raw.staleness[i];
  }
  // The least start from here on: where it is beyond a window, no later task is in it.
  const least = new Float64Array(n);
  for (let i = n - 1, low = Infinity; i >= 0; i--) least[i] = low = Math.min(low, start[i]);
  // Tasks by client, in the order of their ends.
  const offsets = new Uint32Array(given.clients + 1), order = new Uint32Array(n);
  for (let i = 0; i < n; i++) offsets[raw.client[i] + 1]++;
  for (let i = 0; i < given.clients; i++) offsets[i + 1] += offsets[i];
  const next = offsets.slice();
  for (let i = 0; i < n; i++) order[next[raw.client[i]]++] = i;
  const made = {
    ...given, start, end, turn, sent, version, least, offsets, order, client: raw.client, task: raw.task, staleness: raw.staleness,
    status: await unpack(given.status), levels: await Promise.all(given.levels.map(unpack)),
    last: given.begin + given.tick * 4294967295,
  };
  state.timelines.set(number, made);
  return made;
}
function lowerBound(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}
// Tasks in a window, or null where they are too many to be drawn one by one.
function tasksIn(t, x, y) {
  const found = [];
  for (let i = lowerBound(t.end, x[0]); i < t.tasks && t.least[i] <= x[1]; i++) {
    if (t.start[i] > x[1] || t.client[i] < y[0] || t.client[i] > y[1]) continue;
    if (found.length === t.most_tasks && t.levels.length) return null;
    found.push(i);
  }
  return found;
}
const shadeOf = (staleness, cap) => Math.sqrt(Math.min(1, staleness / cap)); // as the levels are shaded

// The canvas lies over the chart's plot area: the chart gives axes, zooming and panning, the canvas has the tasks.
function surface() {
  const canvas = byId("tasks"), size = byId("timeline")._fullLayout._size, ratio = window.devicePixelRatio || 1;
  Object.assign(canvas.style, { left: `${size.l}px`, top: `${size.t}px`, width: `${size.w}px`, height: `${size.h}px` });
  const [width, height] = [Math.round(size.w * ratio), Math.round(size.h * ratio)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, size.w, size.h);
  return { context, width: size.w, height: size.h };
}
function paint(x, y) {
  const began = performance.now();
  const t = state.timelines.get(state.run), { context, width, height } = surface();
  const X = (time) => (time - x[0]) / (x[1] - x[0]) * width, Y = (client) => (client - y[0]) / (y[1] - y[0]) * height;
  const found = tasksIn(t, x, y);
  if (found) {
    paintTasks(t, found, context, X, Y);
    paintSteps(x, context, X, height);
    byId("level").textContent = `${found.length} tasks, one by one`;
    window.report.visible = { kind: "tasks", count: found.length };
  } else {
    const { level, bins, groups } = paintLevel(t, x, y, context, X, Y);
    byId("level").textContent = `level ${level + 1} of ${t.levels.length}: ${groups} groups of clients, ${bins} bins of time`;
    window.report.visible = { kind: "level", level, cells: groups * bins };
  }
  window.report.redraws.push(performance.now() - began);
}
function paintTasks(t, found, context, X, Y) {
  const thick = Math.max(1, Math.min(18, 0.7 * (Y(1) - Y(0))));
  const groups = STALE.map(() => []);
  const unused = [], flying = [];
  for (const i of found) {
    const shade = Math.min(STALE.length - 1, Math.floor(STALE.length * shadeOf(t.staleness[i], t.cap)));
    (t.status[i] <= 1 ? groups[shade] : t.status[i] === STATUS.length - 1 ? flying : unused).push(i);
  }
  const boxes = (rows, inset) => {
    context.beginPath();
    for (const i of rows) {
      const left = X(t.start[i]), top = Y(t.client[i]) - thick / 2;
      context.rect(left + inset, top + inset, Math.max(1, X(t.end[i]) - left - 1 - 2 * inset), thick - 2 * inset);
    }
  };
  groups.forEach((rows, shade) => { context.fillStyle = STALE[shade]; boxes(rows, 0); context.fill(); });
  context.fillStyle = "#8a8a8a66";
  boxes(flying, 0);
  context.fill();
  if (t.turn !== t.start || t.sent !== t.end) { // waits, at its client or of its upload: pale
    context.fillStyle = "#d9d2ea";
    context.beginPath();
    for (const i of found) {
      const top = Y(t.client[i]) - thick / 2;
      for (const [from, to] of [[t.start[i], t.turn[i]], [t.sent[i], t.end[i]]]) {
        if (to > from) context.rect(X(from), top, X(to) - X(from), thick);
      }
    }
    context.fill();
  }
  context.strokeStyle = "#909090"; // not used: hollow
  context.lineWidth = 1;
  boxes(unused, 0.5);
  context.stroke();
}
function paintSteps(x, context, X, height) {
  const steps = data.runs[state.run].steps, first = lowerBound(steps, x[0]);
  let last = first;
  while (last < steps.length && steps[last] <= x[1]) if (++last - first > 300) return;
  context.strokeStyle = theme() === "dark" ? "#7cc0f0" : "#0060a0";
  context.beginPath();
  for (let k = first; k < last; k++) { context.moveTo(X(steps[k]), 0); context.lineTo(X(steps[k]), height); }
  context.stroke();
}
function paintLevel(t, x, y, context, X, Y) {
  const span = t.last - t.begin;
  let level = 0;
  while (level < t.levels.length - 1 && (x[1] - x[0]) / span * t.window_bins * 4 ** level < t.window_bins / 2) level++;
  const bins = t.window_bins * 4 ** level, shades = t.levels[level], perGroup = t.clients / t.groups;
  const first = Math.min(bins - 1, Math.max(0, Math.floor((x[0] - t.begin) / span * bins)));
  const last = Math.min(bins, Math.max(first + 1, Math.ceil((x[1] - t.begin) / span * bins)));
  const top = Math.min(t.groups - 1, Math.max(0, Math.floor((y[0] + 0.5) / perGroup)));
  const bottom = Math.min(t.groups, Math.max(top + 1, Math.ceil((y[1] + 0.5) / perGroup)));
  const image = new ImageData(last - first, bottom - top);
  for (let g = top, k = 0; g < bottom; g++) {
    for (let b = first; b < last; b++, k += 4) image.data.set(PALETTE[shades[g * bins + b]], k);
  }
  const small = new OffscreenCanvas(image.width, image.height);
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  const left = X(t.begin + first * span / bins), high = Y(top * perGroup - 0.5);
  context.drawImage(small, left, high, X(t.begin + last * span / bins) - left, Y(bottom * perGroup - 0.5) - high);
  return { level, bins: last - first, groups: bottom - top };
}
// A colour for each shade of a level: 0 is nobody at work, 1 .. 255 go through STALE.
const PALETTE = [[0, 0, 0, 0], ...Array.from({ length: 255 }, (_, k) => {
  const at = k / 254 * (STALE.length - 1), low = Math.min(STALE.length - 2, Math.floor(at));
  const part = (colour, channel) => parseInt(colour.slice(1 + 2 * channel, 3 + 2 * channel), 16);
  return [0, 1, 2].map((c) => Math.round(part(STALE[low], c) + (at - low) * (part(STALE[low + 1], c) - part(STALE[low], c)))).concat(255);
})];
function ranges() {
  const t = state.timelines.get(state.run);
  return [state.range || [t.begin, t.last], state.rows || [-0.6, t.clients - 0.4]];
}
async function drawTimeline() {
  const t = await loadTimeline(state.run), [x, y] = ranges();
  byId("key").style.background = `linear-gradient(to right, ${STALE.join(", ")})`;
  byId("stalest").textContent = `${t.cap} server steps stale or more`;
  const corners = { x: [t.begin, t.last], y: [0, t.clients - 1], mode: "markers", marker: { opacity: 0 }, hoverinfo: "skip" };
  await Plotly.react("timeline", [corners], layout({
    hovermode: false, dragmode: "pan", showlegend: false,
    xaxis: { title: { text: AXES.time }, range: x.slice() },
    yaxis: { title: { text: "client" }, range: [y[1], y[0]], zeroline: false },
  }), { ...CONFIG, doubleClick: "reset", modeBarButtonsToRemove: [...CONFIG.modeBarButtonsToRemove, "autoScale2d"] });
  paint(x, y);
}
function taskAt(t, time, client) {
  if (client < 0 || client >= t.clients) return -1;
  for (let k = t.offsets[client]; k < t.offsets[client + 1]; k++) {
    const i = t.order[k];
    if (t.end[i] >= time && t.start[i] <= time) return i;
  }
  return -1;
}
function hover(event) {
  const chart = byId("timeline"), tip = byId("tip"), t = state.timelines.get(state.run), full = chart._fullLayout;
  if (!t || !full) return;
  const box = chart.getBoundingClientRect();
  const px = event.clientX - box.left, py = event.clientY - box.top;
  const time = full.xaxis.p2d(px - full._size.l), client = Math.round(full.yaxis.p2d(py - full._size.t));
  const inside = px >= full._size.l && px <= full._size.l + full._size.w && py >= full._size.t && py <= full._size.t + full._size.h;
  const i = inside ? taskAt(t, time, client) : -1;
  tip.hidden = i < 0;
  if (i < 0) return;
  const used = t.status[i] === 0 ? `, server step ${t.version[i] + t.staleness[i]}` : "";
  tip.textContent = `client ${client}, task ${t.task[i]}\nfrom ${show(t.start[i])} s to ${show(t.end[i])} s (${show(t.end[i] - t.start[i])} s)\n`
    + (t.turn[i] > t.start[i] ? `waited ${show(t.turn[i] - t.start[i])} s for its client\n` : "")
    + (t.sent[i] < t.end[i] ? `${show(t.end[i] - t.sent[i])} s on the shared uplink or at the server\n` : "")
    + `version ${t.version[i]}, staleness ${t.staleness[i]}${used}\n${STATUS[t.status[i]]}`;
  tip.style.left = `${Math.min(px + 14, box.width - tip.offsetWidth - 4)}px`;
  tip.style.top = `${Math.max(0, py - tip.offsetHeight - 8)}px`;
}

// ---- linked ranges ----

function rangeOf(change, axis) {
  if (change[`${axis}.autorange`]) return null;
  if (change[`${axis}.range`]) return change[`${axis}.range`].map(Number);
  if (change[`${axis}.range[0]`] !== undefined) return [Number(change[`${axis}.range[0]`]), Number(change[`${axis}.range[1]`])];
  return undefined;
}
function follow(id, change) {
  const x = id === "curves" && state.against !== "time" ? undefined : rangeOf(change, "xaxis");
  const y = id === "timeline" ? rangeOf(change, "yaxis") : undefined;
  if (state.linking || (x === undefined && y === undefined)) return;
  if (x !== undefined) state.range = x;
  if (y !== undefined) state.rows = y && [Math.min(...y), Math.max(...y)];
  const [seen, rows] = ranges();
  paint(seen, rows);
  if (x === undefined) return;
  state.linking = true;
  const others = ["timeline", "curves", "over_time"].filter((other) => other !== id && (other !== "curves" || state.against === "time"));
  const change_ = (other) => x || other === "timeline" ? { "xaxis.range": seen.slice() } : { "xaxis.autorange": true };
  window.report.linked = Promise.all(others.map((other) => Plotly.relayout(other, change_(other)))).finally(() => { state.linking = false; });
}
// While the mouse still drags: the tasks move with the axes.
function drag(change) {
  const [x, y] = ranges(), rows = rangeOf(change, "yaxis");
  paint(rangeOf(change, "xaxis") || x, rows ? [Math.min(...rows), Math.max(...rows)] : y);
}

// ---- tables ----

// The mean over the seeds, where all of them reached the target.
function meanTime(run, metric) {
  const target = targetOf(run, metric);
  const found = target === null ? [null] : run.histories.map((h) => reachedAt(h, metric, target));
  return found.includes(null) ? (target === null ? null : "not reached") : found.reduce((a, b) => a + b, 0) / found.length;
}
function fillTables() {
  const measured = Object.keys(METRICS).filter((metric) => data.runs.some((run) => metric in run.results[0].last));
  const aims = measured.filter((metric) => data.runs.some((run) => targetOf(run, metric) !== null));
  const names = ["seeds", "server steps", "arrivals", "virtual time (s)", "at work", "mean staleness", "tau", ...measured.map((m) => METRICS[m]), ...aims.map((m) => `time to ${METRICS[m]} (s)`), "ended by"];
  const head = byId("outcomes").insertRow();
  ["run", ...names].forEach((name) => cell(head, name, "th"));
  data.runs.forEach((run, i) => {
    const row = byId("outcomes").insertRow(), first = run.results[0], plan = first.schedule;
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.borderColor = styleOf(i).color;
    cell(row, run.name).prepend(swatch);
    const mean = (key) => run.results.every((r) => typeof r.last[key] === "number") ? run.results.reduce((a, r) => a + r.last[key], 0) / run.results.length : null;
    const stale = run.results.map((r) => r.staleness || r.schedule.staleness).filter((s) => s).map((s) => s.mean); // of the run
    const staleness = stale.length ? stale.reduce((a, b) => a + b, 0) / stale.length : null;
    const values = [run.results.length, first.server_steps, plan.arrivals, plan.time, plan.at_work, staleness, plan.tau];
    const times = aims.map((metric) => meanTime(run, metric));
    [...values, ...measured.map(mean), ...times, first.exit_reason.replace("_", " ")].forEach((value) => cell(row, show(value)));
  });
  const keys = [...new Set(data.runs.flatMap((run) => Object.keys(run.config)))].sort();
  const differs = (key) => new Set(data.runs.map((run) => run.config[key])).size > 1;
  const top = byId("configs").insertRow();
  ["key", ...data.runs.map((run) => run.name)].forEach((name) => cell(top, name, "th"));
  for (const key of [...keys.filter(differs), ...keys.filter((k) => !differs(k))]) {
    const row = byId("configs").insertRow();
    if (differs(key)) row.className = "differs";
    [key, ...data.runs.map((run) => run.config[key] ?? "–")].forEach((value) => cell(row, value));
  }
  for (const run of data.runs) {
    const details = byId("provenance").appendChild(document.createElement("details"));
    details.appendChild(document.createElement("summary")).textContent = `${run.name} — ${run.folder}`;
    const hashes = run.results.map((r) => ({ seed: r.seed, schedule_sha256: r.schedule_sha256, model_sha256: r.model_sha256, seconds: r.seconds }));
    details.appendChild(document.createElement("pre")).textContent = JSON.stringify({ ...run.provenance, seeds: hashes }, null, 1);
  }
}
// ---- start ----

async function drawAll() {
  await Promise.all([drawCurves(), drawStaleness(), drawTimeline()]);
}
async function begin() {
  await startPlotly();
  startTheme(drawAll);
  fillTables();
  const known = Object.keys(METRICS).filter((metric) => data.runs.some((run) => run.histories[0][metric]));
  state.metric = known[0];
  options("metric", known.map((metric) => [metric, METRICS[metric]]), state.metric, (value) => { state.metric = value; drawCurves(); });
  byId("against").addEventListener("change", (event) => { state.against = event.target.value; drawCurves(); });
  options("which", data.runs.map((run, i) => [String(i), run.name]), "0", (value) => {
    state.run = Number(value); state.rows = null; drawTimeline();
  });
  byId("whole").addEventListener("click", () => { state.range = state.rows = null; window.report.ready = drawAll(); });
  await drawAll();
  for (const id of ["curves", "timeline", "over_time"]) byId(id).on("plotly_relayout", (change) => follow(id, change));
  byId("timeline").on("plotly_relayouting", drag);
  let wide = window.innerWidth >= 700;
  window.addEventListener("resize", () => {
    if (wide !== (window.innerWidth >= 700)) {
      wide = !wide;
      window.report.ready = drawAll(); // legends change their places
    }
    setTimeout(() => paint(...ranges()), 200); // after the chart has taken its size
  });
  byId("timeline").addEventListener("mousemove", hover);
  byId("timeline").addEventListener("mouseleave", () => { byId("tip").hidden = true; });
}
window.report.ready = begin();
