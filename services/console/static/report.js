// A report in one file: services/console/page.py embeds this module, those that it needs, and the figures.
import { accountView } from "./account.js";
import { Chart } from "./chart.js";
import { Folded, h, render, table } from "./dom.js";
import { BandsOverTime } from "./pictures.js";
import { stamp } from "./units.js";

const { title, headline, about, parts } = JSON.parse(document.getElementById("report").textContent);

const figure = (value) => (value === null ? "–" : Number(value.toPrecision(5)).toString());
const columns = (names) => names.map((name, n) => [name.replace(/^>/, ""), (row) => row[n], name.startsWith(">") ? "number" : undefined]);

const VIEWS = {
  chart: ({ caption, unit, times_s, lines, stepped, stacked, from_zero, marks_s }) => h("section", {},
    h("h2", {}, caption),
    h(Chart, { label: `${caption}; the table below has the figures`, unit, x: times_s, lines, stepped, stacked, fromZero: from_zero, marks: marks_s }),
    marks_s.length > 0 && h("p", { class: "key" }, "Upright lines: changes of plans."),
    h(Folded, { summary: "Figures as a table (UTC)", view: () => table(`${caption}, ${unit}`, [
      ["UTC", (n) => stamp(times_s[n])],
      ...lines.map((line) => [line.name, (n) => figure(line.values[n]), "number"]),
    ], [...times_s.keys()], "") })),
  bands: ({ caption, compute_slices, bands }) => h("section", {},
    h("h2", {}, caption),
    h(BandsOverTime, { label: `${caption}; the table below has the figures`, cells: compute_slices, bands }),
    h(Folded, { summary: "Slices as a table (UTC)", view: () => table(caption, [
      ["since", (each) => stamp(each.since_s)],
      ["until", (each) => stamp(each.until_s)],
      ["runs", (each) => each.runs],
      [`compute slices of ${compute_slices}`, (each) => String(each.compute_slices), "number"],
    ], bands.toSorted((a, b) => a.since_s - b.since_s), "None.") })),
  table: ({ caption, columns: names, rows, folded }) => (folded
    ? h(Folded, { summary: caption, view: () => table(caption, columns(names), rows, "None.") })
    : table(caption, columns(names), rows, "None.")),
  account: ({ by, ...found }) => accountView(found, by),
};

render(h("div", { class: "report" },
  h("h1", {}, title),
  headline && h("p", { class: "headline" }, headline),
  h("p", { class: "quiet" }, about),
  parts.map((part) => VIEWS[part.kind](part))), document.getElementById("main"));
