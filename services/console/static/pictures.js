// SVG: GPUs as bars of cells, and a zone's forecast. Every picture has its figures in a table beside it.
import { h } from "./dom.js";
import { gpuName } from "./units.js";

const CELL = 62;
const HEIGHT = 36;
const COLOURS = 8; // style.css has so many

const known = new Map(); // a name keeps its colour while the page is open

export function colours(names) {
  const sorted = [...new Set(names)].sort();
  for (const name of sorted) if (!known.has(name)) known.set(name, known.size % COLOURS);
  return new Map(sorted.map((name) => [name, known.get(name)]));
}

const runs = (slice) => (slice.model ? `${slice.model}/${slice.variant}` : "");

export function gpuBar(gpu, known, kind = "") {
  const cells = gpu.compute_slices;
  const said = gpu.slices.map((each) => `${each.placement} ${runs(each) || "free"}`).join(", ") || "not cut";
  return h("svg", {
    class: `gpu ${kind}`, viewBox: `0 0 ${cells * CELL + 2} ${HEIGHT + 2}`, role: "img",
    "aria-label": `${gpuName(gpu)}: ${said}`,
  },
  Array.from({ length: cells }, (_, n) =>
    h("rect", { class: "uncut", x: n * CELL + 1, y: 1, width: CELL - 2, height: HEIGHT, rx: 4 })),
  gpu.slices.map((each) => {
    const start = Math.max(0, Math.min(each.start, cells - each.compute_slices));
    const width = each.compute_slices * CELL - 2;
    const name = runs(each);
    const label = name ? each.variant : "free";
    return h("g", {},
      h("title", {}, `${each.placement}: ${name || "free"}${each.state ? `, ${each.state}` : ""}`),
      h("rect", { class: name ? `c${known.get(name)}` : "free", x: start * CELL + 1, y: 1, width, height: HEIGHT, rx: 4 }),
      h("text", { x: start * CELL + 1 + width / 2, y: HEIGHT / 2 + 5, "text-anchor": "middle", class: name ? "" : "quiet" },
        label.slice(0, Math.max(3, each.compute_slices * 7))));
  }));
}

// A line for the expectation, dashed since it is forecast, in a band from low to high.
export function forecastPicture(zone, periods) {
  const width = 720, height = 120, left = 44, bottom = 20;
  const most = Math.max(...periods.map((each) => each.high_gco2e_per_kwh || each.intensity_gco2e_per_kwh), zone.intensity_gco2e_per_kwh) * 1.05;
  const x = (n) => left + (n / Math.max(1, periods.length - 1)) * (width - left - 8);
  const y = (value) => 6 + (1 - value / most) * (height - bottom - 6);
  const line = (name) => periods.map((each, n) => `${x(n).toFixed(1)},${y(each[name]).toFixed(1)}`);
  const hours = (n) => (Date.parse(periods[n].since) - Date.parse(periods[0].since)) / 3.6e6;
  return h("svg", { class: "forecast", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Forecast of ${zone.zone}: ${periods.length} periods; the table below has them` },
  [0, 0.5, 1].map((part) => h("g", {},
    h("line", { class: "grid", x1: left, x2: width - 8, y1: y(part * most), y2: y(part * most) }),
    h("text", { x: left - 6, y: y(part * most) + 4, "text-anchor": "end" }, (part * most).toFixed(0)))),
  [0, Math.floor(periods.length / 2), periods.length - 1].map((n) =>
    h("text", { x: x(n), y: height - 4, "text-anchor": n ? (n === periods.length - 1 ? "end" : "middle") : "start" }, `+${hours(n).toFixed(0)} h`)),
  h("polygon", { class: "band", points: [...line("high_gco2e_per_kwh"), ...line("low_gco2e_per_kwh").reverse()].join(" ") }),
  h("polyline", { class: "expected", points: line("intensity_gco2e_per_kwh").join(" ") }),
  h("circle", { class: "now", cx: x(0), cy: y(zone.intensity_gco2e_per_kwh), r: 4 }));
}

export const key = () =>
  h("p", { class: "key" }, "● now   ┄ forecast   ▒ from low to high; gCO₂e/kWh");

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

// The slices of a GPU over time: a row per compute slice, a column per plan. plans: [{version, from, to, slices}], s since 1970.
export function slotsPicture(gpu, plans, known) {
  const width = 720, row = 12, top = 16, rows = gpu.compute_slices, height = top + rows * row + 18;
  const [first, last] = [plans[0].from, plans.at(-1).to];
  const x = (at) => ((at - first) / Math.max(1, last - first)) * (width - 2) + 1;
  const clock = (at) => new Date(at * 1e3).toISOString().slice(11, 16);
  return h("svg", { class: "slots", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${gpuName(gpu)}: slices under ${plans.length} plans; the table below has them` },
  h("rect", { class: "uncut", x: 1, y: top, width: width - 2, height: rows * row }),
  plans.map((plan) => h("g", {},
    x(plan.to) - x(plan.from) > 28 && h("text", { x: x(plan.from) + 2, y: top - 4 }, `v${plan.version}`),
    plan.slices.filter((each) => each.gpu === gpu.uuid).map((each) => {
      const cells = each.compute_slices;
      const start = Math.max(0, Math.min(each.start, rows - cells));
      return h("rect", { class: `c${known.get(`${each.model}/${each.variant}`)}`, x: x(plan.from), y: top + start * row, width: Math.max(1, x(plan.to) - x(plan.from)), height: cells * row - 1 },
        h("title", {}, `Plan ${plan.version}, ${each.placement}: ${each.model}/${each.variant}`));
    }),
    h("line", { class: "change", x1: x(plan.from), x2: x(plan.from), y1: top, y2: top + rows * row }))),
  h("text", { class: "quiet", x: 1, y: height - 4 }, clock(first)),
  h("text", { class: "quiet", x: width - 1, y: height - 4, "text-anchor": "end" }, "now"));
}
