// One axis of time for all that a deployment did: panels below one another, one cursor over all.
import { Component, Folded, h, table } from "./dom.js";
import { bandsPicture } from "./pictures.js";
import { prose, stamp } from "./units.js";

const LEFT = 44, TOP = 6; // of a panel's picture, px
const SPANS = { 1: "Last hour", 6: "6 hours", 24: "Last day" };
const AHEAD = 0.25; // of the span: what of the forecast is shown
const MARK = 24; // px that a numbered mark takes
const LEAST_S = 60; // of a zoom
const LEAST_SHOWN_S = 600; // of a deployment that has just begun
const ROWS = 48; // of the table of figures

export const clock = (s, long) => new Date(s * 1e3).toISOString().slice(11, long ? 19 : 16);

// The index of the last of rising times that is not after `at`; -1: none.
export function until(times, at) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// Rounded up to a figure that reads well.
function nice(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((each) => each * unit >= value) * unit;
}

const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440].map((minutes) => minutes * 60);

function ticks(from, to, width) {
  const step = TICKS.find((each) => ((to - from) / each) * 64 <= width) ?? 86400;
  const first = Math.ceil(from / step) * step;
  return Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, n) => first + n * step);
}

const known = (value) => value !== null && value !== undefined;

// When the point of a time ends: its value holds until then, or until the present.
const ends = (times, n, now) => Math.max(times[n], Math.min(times[n + 1] ?? times[n] + (times[n] - times[n - 1] || 0), now ?? times[n]));

// Path of a line, broken where nothing is known; now: up to which its last value holds.
function path(times, values, x, y, now) {
  let drawn = "", gap = true;
  times.forEach((at, n) => {
    if (known(values[n])) drawn += `${gap ? "M" : "L"}${x(at).toFixed(1)} ${y(values[n]).toFixed(1)}`;
    if (known(values[n]) && !known(values[n + 1])) drawn += `L${x(ends(times, n, now)).toFixed(1)} ${y(values[n]).toFixed(1)}`;
    gap = !known(values[n]);
  });
  return drawn;
}

// Paths of the areas between two lines, one for each run of times at which both are known.
function area(times, low, high, x, y, now) {
  let drawn = "";
  for (let n = 0; n < times.length;) {
    const first = n;
    while (n < times.length && known(low[n]) && known(high[n])) n += 1;
    const run = Array.from({ length: n - first }, (_, each) => first + each);
    const end = n > first ? ends(times, n - 1, now) : 0;
    const points = [...run.map((each) => [times[each], high[each]]), [end, high[n - 1]], [end, low[n - 1]], ...run.toReversed().map((each) => [times[each], low[each]])];
    if (n > first) drawn += `M${points.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}Z`;
    if (n === first) n += 1;
  }
  return drawn;
}

// A panel's picture is drawn again when its figures, the times or the width change; not with the cursor.
class Picture extends Component {
  shouldComponentUpdate(next) {
    return ["panel", "from", "to", "now", "width"].some((each) => next[each] !== this.props[each]);
  }

  render({ panel, from, to, now, width }) {
    const height = panel.height * (width > 1000 ? 1.5 : 1), x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT);
    const inside = (at) => at >= from && at <= to;
    const all = [...(panel.lines ?? []), ...(panel.areas ?? []).map((each) => ({ times: each.times, values: each.high }))];
    const shown = all.flatMap(({ times, values }) => values.filter((value, n) => known(value) && inside(times[n])));
    const most = nice(Math.max(panel.least ?? 0, ...shown) * 1.05), y = (value) => TOP + (1 - value / most) * (height - TOP - 1);
    const scale = panel.bands ? [] : [0, most / 2, most];
    return h("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${panel.title}; the table below has the figures` },
      h("defs", {}, h("clipPath", { id: `clip-${panel.id}` }, h("rect", { x: LEFT, y: 0, width: Math.max(0, width - LEFT), height }))),
      ticks(from, to, width).map((at) => h("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: height })),
      scale.map((value) => [h("line", { class: "grid", x1: LEFT, x2: width, y1: y(value), y2: y(value) }),
        h("text", { class: "quiet", x: LEFT - 6, y: y(value) + (value ? 4 : 0), "text-anchor": "end" }, Number(value.toPrecision(2)))]),
      h("g", { "clip-path": `url(#clip-${panel.id})` },
        now < to && h("rect", { class: "ahead", x: x(now), y: 0, width: width - x(now), height }),
        (panel.areas ?? []).map((each) => h("path", { class: each.class, d: area(each.times, each.low, each.high, x, y, now) })),
        panel.bands && bandsPicture(panel, x, height),
        (panel.lines ?? []).map((each) => h("path", { class: `line ${each.class ?? ""}`, style: each.colour ? { stroke: each.colour } : {}, d: path(each.times, each.values, x, y, now) })),
        panel.limit && h("line", { class: "limit", x1: LEFT, x2: width, y1: y(panel.limit), y2: y(panel.limit) }),
        h("line", { class: "present", x1: x(now), x2: x(now), y1: 0, y2: height })));
  }
}

// {panels, plans, now, began, hours, choose}: began: since when anything is known.
// A panel: {id, title, unit, height, lines: [{name, times, values, colour, class}], areas: [{times, low, high, class}],
// bands: [{from, to, start, cells, colour, runs}], cells, limit, least, said(at): [{name, value, colour}]}.
// plans: [{version, at, cause, sentence}], oldest first.
export class Timeline extends Component {
  constructor(props) {
    super(props);
    this.state = { zoom: null, at: null, drag: null, width: 600, left: 0 };
    this.keys = this.keys.bind(this);
  }

  componentDidMount() {
    this.watching = new ResizeObserver(() => this.measure());
    this.watching.observe(this.place);
    this.measure();
  }

  componentWillUnmount() {
    this.watching?.disconnect(); // none where its page failed while it was drawn
  }

  measure() {
    const plot = this.place.querySelector(".plot");
    if (plot) this.setState({ width: plot.clientWidth, left: plot.offsetLeft });
  }

  range() {
    const { now, hours, began } = this.props, from = Math.max(now - hours * 3600, Math.min(began, now - LEAST_SHOWN_S));
    return this.state.zoom ?? [from, now + (now - from) * AHEAD];
  }

  // The time below a pointer; null outside of the plots.
  time(event) {
    const { width, left } = this.state, [from, to] = this.range();
    const x = event.clientX - this.place.getBoundingClientRect().left - left - LEFT;
    return x < 0 || x > width - LEFT ? null : from + (x / (width - LEFT)) * (to - from);
  }

  keys(event) {
    const { plans, now } = this.props, [from, to] = this.range();
    const step = ((to - from) / 100) * (event.shiftKey ? 10 : 1), at = this.state.at ?? Math.min(now, to);
    const moved = { ArrowLeft: at - step, ArrowRight: at + step, Home: from, End: to,
      PageUp: plans.findLast((each) => each.at < at - 1)?.at ?? at, PageDown: plans.find((each) => each.at > at + 1)?.at ?? at }[event.key];
    if (moved !== undefined) {
      event.preventDefault();
      this.setState({ at: Math.min(Math.max(moved, from), to) });
    } else if (event.key === "Escape") this.setState({ at: null, zoom: null });
    else if (event.key === "Enter" && event.target.getAttribute("role") === "slider" && this.plan(at)) location.hash = `#/plans/${this.plan(at).version}`;
  }

  plan(at) {
    const { plans } = this.props;
    return plans[until(plans.map((each) => each.at), at)];
  }

  moves(event) {
    const at = this.time(event), { drag } = this.state;
    this.setState({ at, drag: drag && at !== null ? [drag[0], at] : drag });
  }

  drops() {
    const [from, to] = [...(this.state.drag ?? [0, 0])].sort((a, b) => a - b), [first, last] = this.range();
    const wide = ((to - from) / (last - first)) * this.state.width > 8;
    this.setState({ drag: null, ...(wide && to - from >= LEAST_S ? { zoom: [from, to] } : {}) });
  }

  render({ panels, plans, now, hours, choose }, { zoom, at, drag, width, left }) {
    const [from, to] = this.range(), x = (each) => left + LEFT + ((each - from) / (to - from)) * (width - LEFT);
    const shown = at ?? Math.min(now, to), plan = this.plan(shown);
    const panel = (each) => h("section", { class: "panel", key: each.id, "aria-label": each.title },
      h("div", { class: "says" }, h("h3", {}, each.title, each.unit && h("small", {}, ` ${each.unit}`)),
        h("dl", {}, each.said(shown).map(({ name, value, colour }) => h("div", {}, h("dt", {}, colour && h("i", { class: "swatch", style: { background: colour } }), name), h("dd", {}, value))))),
      h("div", { class: "plot" }, h(Picture, { panel: each, from, to, now, width })));
    return h("div", { class: "timeline", onKeyDown: this.keys },
      h("div", { class: "bar" },
        h("p", { class: "at", "aria-live": "off" }, h("strong", {}, at === null ? "Now" : `${stamp(shown)} UTC`), at !== null && plan ? ` ${prose(plan.sentence)}` : ""),
        h("div", { class: "choice", role: "group", "aria-label": "Time shown" },
          Object.entries(SPANS).map(([each, words]) => h("button", { type: "button", "aria-pressed": String(Number(each) === hours && !zoom), onClick: () => { this.setState({ zoom: null }); choose(Number(each)); } }, words)),
          zoom && h("button", { type: "button", id: "unzoom", onClick: () => this.setState({ zoom: null }) }, "Zoom out"))),
      h("div", { class: "panels", ref: (place) => { if (place) this.place = place; },
        onPointerMove: (event) => this.moves(event), onPointerLeave: () => this.setState({ at: null, drag: null }), onPointerUp: () => this.drops(),
        onDblClick: () => this.setState({ zoom: null }),
        onPointerDown: (event) => { const first = event.button || event.target.closest("a") ? null : this.time(event); if (first !== null) this.setState({ drag: [first, first] }); } },
      h("div", { class: "panel" }, h("div", { class: "says" }, h("h3", {}, "Plans")), h("div", { class: "plot marks" }, marks(plans.filter((each) => each.at >= from && each.at <= to), (each) => x(each) - left, plan))),
      panels.map(panel),
      h("div", { class: "panel" }, h("div", { class: "says" }),
        h("div", { class: "plot ruler", role: "slider", id: "cursor", tabindex: 0, "aria-label": "Time", "aria-valuemin": Math.round(from), "aria-valuemax": Math.round(to), "aria-valuenow": Math.round(shown),
          "aria-valuetext": `${stamp(shown)} UTC. ${plan ? `Plan ${plan.version}. ` : ""}${panels.flatMap((each) => each.said(shown).map(({ name, value }) => `${name} ${value}`)).join(", ")}` },
        ticks(from, to, width).filter((each) => x(each) - left > LEFT + 16 && x(each) - left < width - 16).map((each) => h("span", { style: { left: `${x(each) - left}px` } }, clock(each))))),
      at !== null && h("div", { class: "cursor", style: { left: `${x(at)}px` } }),
      drag && h("div", { class: "selection", style: { left: `${x(Math.min(...drag))}px`, width: `${Math.abs(x(drag[1]) - x(drag[0]))}px` } })),
      h("p", { class: "key" }, "Drag to zoom, double-click to zoom out. Arrow keys on the axis move the cursor, Page Up and Page Down go from plan to plan, Enter opens the plan. A dash is a time without a planner, reports or requests: ", h("code", {}, "cinquefoil status"), " says who answers now."),
      h(Folded, { id: "figures", summary: "Figures as a table", view: () => figures(panels, from, to, now) }));
  }
}

// A numbered mark for each plan; those without room for their number are dots.
function marks(plans, x, current) {
  let free = Infinity;
  const newest = plans.toReversed().map((plan) => {
    const at = x(plan.at), numbered = at <= free;
    if (numbered) free = at - MARK;
    return h("a", { class: `mark${numbered ? "" : " dot"}${plan === current ? " current" : ""}`, key: plan.version, href: `#/plans/${plan.version}`, tabindex: numbered ? 0 : -1, style: { left: `${at}px` },
      title: prose(plan.sentence), "aria-label": prose(plan.sentence) }, numbered ? plan.version : "");
  });
  return newest.reverse();
}

function figures(panels, from, to, now) {
  const last = Math.min(to, now), step = Math.max(60, (last - from) / ROWS);
  const times = Array.from({ length: Math.max(0, Math.floor((last - from) / step)) }, (_, n) => last - n * step);
  const columns = panels.flatMap((panel) => panel.said(last).map(({ name }, n) => [`${panel.title}: ${name}`, (at) => panel.said(at)[n]?.value ?? "–", "number"]));
  return table("Figures in the time shown; UTC", [["time", (at) => stamp(at)], ...columns], times, "Nothing is known of this time.");
}
