// The charts of a sweep, or of the rungs of a search.

const state = { sweep: 0, metric: null, against: "time", intervals: true, value: null, across: null, down: null };
window.report = { state, ready: null };
const shown = () => data.sweeps[state.sweep];
const digits4 = (x) => typeof x === "number" ? show(Number(x.toPrecision(4))) : show(x);
const nameOf = (metric) => METRICS[metric] || metric;
const short = (path) => path.split(".").pop();

// ---- tables ----

function fill(id, names, rows) {
  const table = byId(id);
  table.replaceChildren();
  const head = table.insertRow();
  names.forEach((name) => cell(head, name, "th"));
  for (const values of rows) {
    const row = table.insertRow();
    values.forEach((value) => cell(row, value));
  }
  return table;
}
// A mean, with the limits of its interval where there are three seeds or more for one.
function withInterval(end) {
  return end.low === null ? digits4(end.mean) : `${digits4(end.mean)} (${digits4(end.low)} to ${digits4(end.high)})`;
}
function reached(times, arm) {
  const { n, reached: hits, median } = times[arm];
  return [median === null ? "not reached" : digits4(median), `${hits} of ${n}`];
}
function fillArms() {
  const sweep = shown(), { times, target } = sweep, metrics = Object.keys(sweep.ends);
  const aims = target ? [`time to ${nameOf(target[0])} ${show(target[1])} (s)`, "reached by"] : [];
  const rungs = sweep.arms.some((arm) => arm.rung);
  const names = [...sweep.varied.map(short), ...(rungs ? ["last rung"] : []), ...aims, ...metrics.map((metric) => `${nameOf(metric)} at the end`)];
  fill("arms", names, sweep.order.map((arm) => [
    ...sweep.varied.map((path) => show(sweep.arms[arm].values[path])),
    ...(rungs ? [show(sweep.arms[arm].rung)] : []),
    ...(target ? reached(times, arm) : []),
    ...metrics.map((metric) => withInterval(sweep.ends[metric][arm])),
  ]));
  byId("count").textContent = `${show(sweep.arms.length)} arms, the best first; means over seeds, with 95 % intervals from three seeds on`
    + (rungs ? "; each arm as in the last rung that it was in" : "");
  byId("notes").replaceChildren(...sweep.notes.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}

// ---- heat map ----

const choices = (sweep, path) => [...new Set(sweep.arms.map((arm) => arm.values[path]).filter((v) => v !== undefined && v !== null))]
  .sort((a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
const gridded = (sweep) => sweep.varied.filter((path) => choices(sweep, path).length > 1);
// The number of an arm that the map shows, or null.
function numberOf(sweep, arm) {
  return state.value === "time" ? sweep.times[arm].median : sweep.ends[state.value][arm].mean;
}
function drawHeat() {
  const sweep = shown(), paths = gridded(sweep);
  byId("grid").hidden = paths.length < 2;
  if (paths.length < 2) return Promise.resolve();
  const columns = choices(sweep, state.across), lines = choices(sweep, state.down);
  const risen = state.value === "accuracy", cells = lines.map(() => columns.map(() => ({ n: 0, best: null })));
  sweep.arms.forEach((arm, i) => {
    const at = cells[lines.indexOf(arm.values[state.down])]?.[columns.indexOf(arm.values[state.across])];
    if (!at) return;
    const value = numberOf(sweep, i);
    at.n++;
    if (value !== null && (at.best === null || (risen ? value > at.best : value < at.best))) at.best = value;
  });
  const text = cells.map((row) => row.map((at) => at.n === 0 ? "" : at.best === null ? (state.value === "time" ? "not reached" : "–") : digits4(at.best)));
  const title = state.value === "time" ? `${AXES.time} to ${nameOf(sweep.target[0])} ${show(sweep.target[1])}` : `${nameOf(state.value)} at the end`;
  const several = cells.some((row) => row.some((at) => at.n > 1));
  byId("several").textContent = several ? "Several arms differ in other options: a cell has the best of them." : "";
  const narrow = window.innerWidth < 700;
  const places = (n) => Array.from({ length: n }, (_, k) => k);
  const axis = (path, values) => ({
    title: { text: short(path) }, tickvals: places(values.length), ticktext: values.map(show), range: [-0.5, values.length - 0.5],
    showgrid: false, zeroline: false, fixedrange: true,
  });
  const map = {
    type: "heatmap", z: cells.map((row) => row.map((at) => at.best)), x: places(columns.length), y: places(lines.length),
    text, texttemplate: "%{text}", textfont: { size: 12 }, xgap: 2, ygap: 2, colorscale: "Viridis", reversescale: !risen,
    hovertemplate: "%{text}<extra></extra>", showscale: !narrow, colorbar: { title: { text: title, side: "right" }, thickness: 14 },
  };
  // plotly draws nothing, no text either, where no cell has a number.
  const empty = cells.every((row) => row.every((at) => at.best === null));
  const annotations = empty ? text.flatMap((row, y) => row.map((t, x) => ({ x, y, text: t, showarrow: false }))) : [];
  return Plotly.react("heat", [map], layout({
    height: Math.max(220, 110 + 46 * lines.length), showlegend: false, annotations,
    title: narrow ? { text: title, font: { size: 13 } } : undefined, margin: { l: 60, r: 15, t: narrow ? 40 : 15, b: 45 },
    xaxis: axis(state.across, columns), yaxis: axis(state.down, lines),
  }), { ...CONFIG, scrollZoom: false, displayModeBar: false });
}

// ---- curves ----

// Of a search: each arm's curve in the last rung that it was in.
function lastCurves(search) {
  const rungs = data.sweeps.slice(1);
  return search.arms.flatMap((arm, number) => {
    const rung = rungs[arm.rung - 1], there = rung.arms.findIndex((other) => other.label === arm.label);
    return rung.curves[state.metric][state.against].filter((curve) => curve.arm === there).map((curve) => ({ ...curve, arm: number }));
  }).filter((curve) => search.order.indexOf(curve.arm) < 20);
}
function drawCurves() {
  const sweep = shown(), curves = sweep.curves ? sweep.curves[state.metric][state.against] : lastCurves(sweep), traces = [];
  const place = new Map(sweep.order.map((arm, k) => [arm, k]));
  for (const curve of [...curves].sort((a, b) => place.get(a.arm) - place.get(b.arm))) {
    const style = styleOf(place.get(curve.arm)), group = String(curve.arm);
    if (state.intervals && curve.low.some((v) => v !== null)) {
      const edge = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: group, x: curve.x };
      traces.push({ ...edge, y: curve.low }, { ...edge, y: curve.high, fill: "tonexty", fillcolor: style.color + "26" });
    }
    const seeds = curve.n === 1 ? "1 seed" : `${curve.n} seeds`;
    traces.push({ x: curve.x, y: curve.mean, mode: "lines", name: `${sweep.arms[curve.arm].label} (${seeds})`, legendgroup: group, line: style });
  }
  byId("with_intervals").hidden = !curves.some((curve) => curve.low.some((v) => v !== null));
  const aim = sweep.target && sweep.target[0] === state.metric ? [sweep.target[1]] : [];
  const logarithmic = state.metric === "grad_norm_sq", n = curves.length, left = sweep.arms.length - n;
  byId("left_out").textContent = left > 0 ? `The best ${n} of ${sweep.arms.length} arms. A click on a name hides its curve.` : "A click on a name hides its curve.";
  return Plotly.react("curves", traces, layout({
    ...legendOf(n), hovermode: n > 8 ? "closest" : "x unified",
    shapes: aim.map((y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { dash: "dot", width: 1.5, color: "#8f8f8f" } })),
    annotations: aim.map((y) => ({
      xref: "paper", x: 1, xanchor: "right", y: logarithmic ? Math.log10(y) : y, yanchor: "bottom", showarrow: false,
      text: `target ${show(y)}`, font: { size: 11 },
    })),
    xaxis: { title: { text: AXES[state.against] } },
    yaxis: { title: { text: nameOf(state.metric) }, type: logarithmic ? "log" : "linear" },
  }), CONFIG);
}

// ---- start ----

// The choices of a sweep: what can be shown of it.
function offer() {
  const sweep = shown(), metrics = Object.keys(sweep.ends), paths = gridded(sweep);
  const values = [...(sweep.target ? [["time", "time to the target"]] : []), ...metrics.map((m) => [m, `${nameOf(m)} at the end`])];
  state.intervals = sweep.arms.length <= 5; // more of them cover each other
  byId("intervals").checked = state.intervals;
  const wanted = (known, names) => names.find((name) => known.includes(name)) ?? known[0];
  state.value = values.some(([name]) => name === state.value) ? state.value : values[0]?.[0];
  state.metric = wanted(metrics, [state.metric, sweep.target?.[0], metrics[0]]);
  state.across = wanted(paths, [state.across, "schedule.concurrency"]);
  state.down = wanted(paths.filter((path) => path !== state.across), [state.down, "strategy.buffer_size"]);
  for (const [id, entries] of [["value", values], ["metric", metrics.map((m) => [m, nameOf(m)])], ["across", paths.map((p) => [p, short(p)])], ["down", paths.map((p) => [p, short(p)])]]) {
    byId(id).replaceChildren(...entries.map(([value, text]) => new Option(text, value, false, value === state[id])));
  }
}
async function drawAll() {
  await Promise.all([drawHeat(), drawCurves()]);
}
function changed(id, draw) {
  byId(id).addEventListener("change", (event) => { state[id] = event.target.value; window.report.ready = draw(); });
}
async function begin() {
  await startPlotly();
  for (const sweep of data.sweeps) if (sweep.curves) sweep.curves = JSON.parse(new TextDecoder().decode(await unpack(sweep.curves)));
  startTheme(drawAll);
  options("which", data.sweeps.map((sweep, k) => [String(k), sweep.name]), "0", (value) => {
    state.sweep = Number(value);
    offer();
    fillArms();
    window.report.ready = drawAll();
  });
  byId("rungs").hidden = data.sweeps.length === 1;
  offer();
  fillArms();
  changed("metric", drawCurves);
  changed("against", drawCurves);
  changed("value", drawHeat);
  byId("intervals").addEventListener("change", (event) => { state.intervals = event.target.checked; window.report.ready = drawCurves(); });
  for (const [id, other] of [["across", "down"], ["down", "across"]]) {
    changed(id, () => {
      if (state[other] === state[id]) state[other] = gridded(shown()).find((path) => path !== state[id]);
      byId(other).value = state[other];
      return drawHeat();
    });
  }
  await drawAll();
  let wide = window.innerWidth >= 700;
  window.addEventListener("resize", () => {
    if (wide === (window.innerWidth >= 700)) return;
    wide = !wide;
    window.report.ready = drawAll(); // legends change their places
  });
}
window.report.ready = begin();
