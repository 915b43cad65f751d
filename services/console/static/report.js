// A report in one file: services/console/page.py embeds this module, those that it needs, and the figures.
import { accountView } from "./account.js";
import { Chart } from "./chart.js";
import { Component, h, render, table } from "./dom.js";

const { title, headline, about, parts } = JSON.parse(document.getElementById("report").textContent);

// A table that is made when it is opened: {summary, view}.
class Folded extends Component {
  render({ summary, view }, { open }) {
    return h("details", { onToggle: (event) => this.setState({ open: event.target.open }) }, h("summary", {}, summary), open && view());
  }
}

const figure = (value) => (value === null ? "–" : Number(value.toPrecision(5)).toString());
const columns = (names) => names.map((name, n) => [name.replace(/^>/, ""), (row) => row[n], name.startsWith(">") ? "number" : undefined]);

const VIEWS = {
  chart: ({ caption, unit, times_s, lines, stepped, stacked, from_zero, marks_s }) => h("section", {},
    h("h2", {}, caption),
    h(Chart, { label: `${caption}; the table below has the figures`, unit, x: times_s, lines, stepped, stacked, fromZero: from_zero, marks: marks_s }),
    marks_s.length > 0 && h("p", { class: "key" }, "Upright lines: changes of plans."),
    h(Folded, { summary: "Figures as a table (UTC)", view: () => table(`${caption}, ${unit}`, [
      ["UTC", (n) => new Date(times_s[n] * 1e3).toISOString().slice(0, 19).replace("T", " ")],
      ...lines.map((line) => [line.name, (n) => figure(line.values[n]), "number"]),
    ], [...times_s.keys()], "") })),
  table: ({ caption, columns: names, rows, folded }) => (folded
    ? h(Folded, { summary: caption, view: () => table(caption, columns(names), rows, "None.") })
    : table(caption, columns(names), rows, "None.")),
  account: ({ by, rows, hours }) => accountView({ rows, hours }, by),
};

render(h("div", { class: "report" },
  h("h1", {}, title),
  headline && h("p", { class: "headline" }, headline),
  h("p", { class: "quiet" }, about),
  parts.map((part) => VIEWS[part.kind](part))), document.getElementById("main"));
