"use strict";
// What all pages share: data, which comes from the script element "data", colours, texts, layout and tables.
// `window.report` is what the pages' tests look at.

const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#3a8fd0", "#d9702a", "#19a07c", "#c977ab", "#d69a00", "#8f8f8f", "#7566c9"];
const DASHES = ["solid", "dash", "dashdot", "dot", "longdash", "longdashdot", "2px,6px"];
// A colour and dashes for each run: another pair for each of the first 49.
const styleOf = (i) => ({
  color: COLOURS[i % COLOURS.length], dash: DASHES[(i + Math.floor(i / COLOURS.length)) % DASHES.length], width: 2,
});
const METRICS = { accuracy: "accuracy", loss: "loss", grad_norm_sq: "squared gradient norm" };
const AXES = { time: "virtual time (s)", step: "server steps", updates: "client updates" };
const byId = (id) => document.getElementById(id);
const digits = (x) => Number.isInteger(x) ? x.toLocaleString("en-US") : String(Number(x.toPrecision(5)));
const show = (x) => x === null || x === undefined ? "–" : typeof x === "number" ? digits(x) : String(x);

// ---- theme ----

function theme() {
  return document.documentElement.dataset.theme;
}
function layout(extra) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), linecolor: colour("--faint"), zerolinecolor: colour("--line"), automargin: true };
  const base = {
    paper_bgcolor: colour("--back"), plot_bgcolor: colour("--back"), font: { color: colour("--fore"), size: 12 },
    margin: { l: 60, r: 15, t: 25, b: 45 }, showlegend: true,
    legend: { orientation: "h", y: 1.12, x: 0 }, hoverlabel: { font: { size: 12 } },
  };
  const made = { ...base, ...extra };
  for (const name of ["xaxis", "yaxis"]) made[name] = { ...axis, ...(extra[name] || {}) };
  return made;
}
// Many names stand beside the chart, or below it where the page is narrow; a click hides a line and shows it again.
function legendOf(n) {
  const narrow = window.innerWidth < 700;
  if (narrow) {
    const legend = { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, tracegroupgap: 0, maxheight: 40 + 22 * n };
    return { legend, height: 300 + 22 * n, margin: { l: 50, r: 10, t: 25, b: 65 + 22 * n } };
  }
  if (n <= 3) return { height: 340 };
  const legend = { orientation: "v", x: 1.02, xanchor: "left", y: 1, tracegroupgap: 0 };
  return { legend, height: Math.max(340, 90 + 22 * n), margin: { l: 60, r: 220, t: 25, b: 45 } };
}
const CONFIG = { responsive: true, displaylogo: false, scrollZoom: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

// ---- parts of a page ----

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
function cell(row, text, tag = "td") {
  const made = row.appendChild(document.createElement(tag));
  made.textContent = text;
  return made;
}
function options(id, entries, chosen, changed) {
  for (const [value, text] of entries) byId(id).add(new Option(text, value, false, value === chosen));
  byId(id).addEventListener("change", (event) => changed(event.target.value));
}

// Plotly comes packed, as it is nine tenths of the page.
async function startPlotly() {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await unpack(byId("plotly").textContent));
  document.head.append(script);
}
// Light or dark as the system has it, and the button that changes it; `redraw` draws all charts and returns a promise.
function startTheme(redraw) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
    window.report.ready = redraw();
  });
}
