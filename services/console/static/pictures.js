// SVG: GPUs as bars and bands of slices, a zone's forecast, outcomes. Their figures are in tables beside them.
import { Component, h } from "./dom.js";
import { gpuName } from "./units.js";

const CELL = 62;
const HEIGHT = 36;
const UNKNOWN = "oklch(0.7 0 0)"; // of what the deployment no longer names

// Colours come with the data, from services/console/palette.py.
export const fill = (palette, model, variant) => palette?.[model]?.variants[variant] ?? UNKNOWN;
export const line = (palette, model) => palette?.[model]?.line ?? "var(--quiet)";
const ink = (colour) => (Number(/\(([\d.]+)/.exec(colour)?.[1]) > 0.6 ? "#111" : "#fff");

export const swatch = (colour) => h("i", { class: "swatch", style: { background: colour } });
const runs = (slice) => (slice.model ? `${slice.model}/${slice.variant}` : "");
export const spoken = (gpu) => gpu.slices.map((each) => `${each.placement} ${runs(each) || "free"}`).join(", ") || "nothing";

export function gpuBar(gpu, palette, kind = "") {
  const cells = gpu.compute_slices;
  return h("svg", {
    class: `gpu ${kind}`, viewBox: `0 0 ${cells * CELL + 2} ${HEIGHT + 2}`, role: "img",
    "aria-label": `${gpuName(gpu)}: ${spoken(gpu)}`,
  },
  Array.from({ length: cells }, (_, n) =>
    h("rect", { class: "uncut", x: n * CELL + 1, y: 1, width: CELL - 2, height: HEIGHT, rx: 4 })),
  gpu.slices.map((each) => {
    const start = Math.max(0, Math.min(each.start, cells - each.compute_slices));
    const width = each.compute_slices * CELL - 2;
    const name = runs(each), colour = fill(palette, each.model, each.variant);
    return h("g", {},
      h("title", {}, `${each.placement}: ${name || "free"}${each.state ? `, ${each.state}` : ""}`),
      h("rect", { class: name ? "" : "free", style: name ? { fill: colour } : {}, x: start * CELL + 1, y: 1, width, height: HEIGHT, rx: 4 }),
      h("text", { x: start * CELL + 1 + width / 2, y: HEIGHT / 2 + 5, "text-anchor": "middle", class: name ? "" : "quiet", style: name ? { fill: ink(colour) } : {} },
        (name ? each.variant : "free").slice(0, Math.max(3, each.compute_slices * 7))));
  }));
}

// Slices of one GPU over time: a row per compute slice. {cells, bands: [{from, to, start, cells, runs, colour}]}; x: of a time.
export function bandsPicture({ cells: rows, bands }, x, height) {
  const row = height / rows;
  return h("g", { class: "bands" }, bands.map((each) => {
    const left = x(each.from), width = Math.max(1, x(each.to) - left), variant = each.runs.split("/").at(-1);
    const tall = each.cells * row, size = Math.min(12, tall);
    const label = Math.max(left, x.first ?? left);
    return h("g", {},
      h("title", {}, each.runs),
      h("rect", { style: { fill: each.colour }, x: left, y: each.start * row, width, height: Math.max(1, tall - 1) }),
      left + width - label > variant.length * 7 + 10 && tall >= 11 &&
        h("text", { x: label + 5, y: each.start * row + tall / 2 + size / 3, style: { fill: ink(each.colour), fontSize: `${size}px` } }, variant));
  }));
}

// Bands on an axis of their own: {label, cells, bands: [{since_s, until_s, start, compute_slices, runs, colour}]}.
export class BandsOverTime extends Component {
  render({ label, cells, bands }) {
    const width = 900, height = cells * 12, first = Math.min(...bands.map((each) => each.since_s)), last = Math.max(...bands.map((each) => each.until_s));
    const x = (at) => ((at - first) / Math.max(1, last - first)) * width;
    const clock = (at) => new Date(at * 1e3).toISOString().slice(11, 16);
    const marks = bands.length ? Array.from({ length: 5 }, (_, n) => first + ((last - first) * n) / 4) : [];
    return h("svg", { class: "slots", viewBox: `0 0 ${width} ${height + 22}`, role: "img", "aria-label": label },
      h("rect", { class: "uncut", width, height }),
      bandsPicture({ cells, bands: bands.map((each) => ({ ...each, from: each.since_s, to: each.until_s, cells: each.compute_slices })) }, x, height),
      marks.map((at, n) => h("text", { class: "quiet", x: x(at), y: height + 17, "text-anchor": n ? (n === 4 ? "end" : "middle") : "start" }, clock(at))));
  }
}

// A line for the expectation, dashed since it is forecast, in a band from low to high.
export function forecastPicture(zone, { times_s: times, expected, low, high }) {
  const width = 480, height = 110, left = 34, bottom = 20, last = times.length - 1;
  const most = Math.max(...high, ...expected, zone.intensity_gco2e_per_kwh) * 1.05 || 1;
  const x = (n) => left + ((times[n] - times[0]) / Math.max(1, times[last] - times[0])) * (width - left - 8);
  const y = (value) => 6 + (1 - value / most) * (height - bottom - 6);
  const line = (values) => values.map((each, n) => `${x(n).toFixed(1)},${y(each).toFixed(1)}`);
  return h("svg", { class: "forecast", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Forecast of ${zone.zone}: ${times.length} periods; the table below has them` },
  [0, 0.5, 1].map((part) => h("g", {},
    h("line", { class: "grid", x1: left, x2: width - 8, y1: y(part * most), y2: y(part * most) }),
    h("text", { x: left - 6, y: y(part * most) + 4, "text-anchor": "end" }, (part * most).toFixed(0)))),
  [0, Math.floor(last / 2), last].map((n) =>
    h("text", { x: x(n), y: height - 4, "text-anchor": n ? (n === last ? "end" : "middle") : "start" }, new Date(times[n] * 1e3).toISOString().slice(11, 16))),
  h("polygon", { class: "band", points: [...line(high), ...line(low).reverse()].join(" ") }),
  h("polyline", { class: "expected", points: line(expected).join(" ") }),
  h("circle", { class: "dot-now", cx: x(0), cy: y(zone.intensity_gco2e_per_kwh), r: 4 }));
}

// Points of accuracy against emissions, in order of the weight of carbon, joined by a line.
export function frontPicture(points) {
  const width = 720, height = 240, left = 60, bottom = 36;
  const span = (values) => {
    const least = Math.min(...values), most = Math.max(...values), room = (most - least) * 0.1 || Math.abs(most) * 0.05 || 1;
    return [least - room, most + room];
  };
  const [x0, x1] = span(points.map((each) => each.grams));
  const [y0, y1] = span(points.map((each) => each.accuracy));
  const x = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - 12);
  const y = (value) => 8 + (1 - (value - y0) / (y1 - y0)) * (height - bottom - 8);
  const sorted = points.toSorted((a, b) => a.grams - b.grams);
  return h("svg", { class: "forecast", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "Accuracy against emissions per hour; the table below has the figures" },
  [0, 0.5, 1].map((part) => h("g", {},
    h("line", { class: "grid", x1: left, x2: width - 12, y1: y(y0 + part * (y1 - y0)), y2: y(y0 + part * (y1 - y0)) }),
    h("text", { x: left - 6, y: y(y0 + part * (y1 - y0)) + 4, "text-anchor": "end" }, (y0 + part * (y1 - y0)).toFixed(3)),
    h("text", { x: x(x0 + part * (x1 - x0)), y: height - 18, "text-anchor": part ? (part === 1 ? "end" : "middle") : "start" }, (x0 + part * (x1 - x0)).toFixed(1)))),
  h("text", { x: width - 12, y: height + 1, "text-anchor": "end" }, "gCO₂e per hour"),
  h("polyline", { class: "front", points: sorted.map((each) => `${x(each.grams).toFixed(1)},${y(each.accuracy).toFixed(1)}`).join(" ") }),
  points.map((each) => h("circle", { class: "point", cx: x(each.grams), cy: y(each.accuracy), r: 5 },
    h("title", {}, `λ ${each.carbon_weight}: accuracy ${each.accuracy.toFixed(4)}, ${each.grams.toFixed(1)} gCO₂e per hour`))));
}
