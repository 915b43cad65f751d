// Elements from data. Text is always text: nothing that a service says becomes markup.
import { prose } from "./units.js";
import { Component, h, render } from "./vendor/preact.js";

export { Component, h, render };

// columns: [heading, cell of a row, "number" for figures]
export const table = (caption, columns, rows, empty) => (rows.length ? h(Table, { caption, columns, rows }) : h("p", { class: "empty" }, empty));

// A table that says so where it is wider than the page and scrolls.
class Table extends Component {
  componentDidMount() {
    this.watching = new ResizeObserver(() => {
      const scrolls = this.place.scrollWidth > this.place.clientWidth + 1;
      if (scrolls !== this.state.scrolls) this.setState({ scrolls });
    });
    this.watching.observe(this.place);
    this.watching.observe(this.place.firstElementChild); // rows come and go within the same width
  }

  componentWillUnmount() {
    this.watching?.disconnect(); // none where its page failed while it was drawn
  }

  render({ caption, columns, rows }, { scrolls }) {
    return h("div", { class: "wide", tabindex: scrolls ? 0 : undefined, role: "region", "aria-label": caption, ref: (place) => { if (place) this.place = place; } },
      h("table", {},
        h("caption", {}, h("span", {}, caption, scrolls && h("em", {}, " Scroll sideways for more columns →"))),
        h("thead", {}, h("tr", {}, columns.map(([name, , kind]) => h("th", { scope: "col", class: kind }, name)))),
        h("tbody", {}, rows.map((row) =>
          h("tr", {}, columns.map(([, cell, kind], n) =>
            h(n ? "td" : "th", n ? { class: kind } : { class: kind, scope: "row" }, cell(row))))))));
  }
}

// A figure with its name and some words: {name, figure, words, kind}.
export const tile = (name, figure, words, kind = "") =>
  h("section", { class: "tile", "aria-label": typeof name === "string" ? name : undefined }, h("h2", {}, name), h("p", { class: `figure ${kind}` }, figure), h("div", { class: "quiet" }, words));

export async function read(path, given) {
  let answer;
  try {
    answer = await fetch(path, given);
  } catch {
    throw new Error("The console does not answer. Is `cinquefoil console serve` running?");
  }
  const document_ = await answer.json().catch(() => ({ error: `The console answered ${answer.status} without a reason: its log has it.` }));
  if (!answer.ok) throw new Error(document_.error);
  return document_;
}

// Text with its commands, which stand between backticks, set as such.
export const said = (text) => text.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : prose(part)));

// What stands for figures of a service that does not answer: what is wrong with it stands at the top of the page.
export const unanswered = (service) => ["Not known: the ", SERVICES[service] ?? service, " does not answer. Start it: ", h("code", {}, "cinquefoil up"), "."];
export const SERVICES = { carbon: "carbon service", batch: "batch service" }; // where a name alone is no noun

let atTop = []; // problems that the top of the page shows
export const shownAtTop = (problems) => { atTop = problems; };
// The service that an error is about, if the top of the page says that it does not answer.
export const known = ({ message }) => { const service = /^(\w+) at /.exec(message)?.[1]; return atTop.some((each) => each.startsWith(`${service} at `)) && service; };
export const failure = (error) => {
  if (known(error)) return h("p", { class: "empty" }, unanswered(known(error)));
  return h("p", { class: "problem", role: "alert" }, "✕ ", said(error.message));
};

// A part that is made when it is opened: {id, summary, view}.
export class Folded extends Component {
  render({ id, summary, view }, { open }) {
    return h("details", { id, onToggle: (event) => this.setState({ open: event.target.open }) }, h("summary", {}, summary), open && view());
  }
}

// A part that is shown when what it reads has arrived: {load, view, waiting}.
export class Later extends Component {
  componentDidMount() {
    this.props.load().then((found) => this.setState({ found }), (error) => this.setState({ error }));
  }
  render({ view, waiting }, { found, error }) {
    if (error) return failure(error);
    return found === undefined ? h("p", { class: "empty" }, waiting) : view(found);
  }
}
