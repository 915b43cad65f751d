// Lines over time, by uPlot. A chart's figures are in a table beside it.
import { Component, h } from "./dom.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = 8; // style.css has so many, of lines and of areas
const resolved = (css) => css.replace(/var\((--[\w-]+)\)/, (_, name) => colour(name)); // a canvas knows no variables

const utc = (s, step) => {
  const text = new Date(s * 1000).toISOString();
  if (text.endsWith("T00:00:00.000Z")) return text.slice(5, 10);
  return step < 60 ? text.slice(11, 19) : text.slice(11, 16);
};
const rounded = (value) => (value === null || value === undefined ? "" : Number(value.toPrecision(4)).toString());

// Each area with those below it; what is drawn first is the whole, and the others cover it.
function stacked(lines) {
  const below = [];
  return lines.map((line) => ({ ...line, shown: line.values, values: line.values.map((value, n) => (below[n] = (below[n] ?? 0) + (value ?? 0))) })).toReversed();
}

// {label, unit, x: [s since 1970], lines: [{name, values, dashed, colour}], stepped, stacked, fromZero, marks: [s since 1970]}
// Dashed lines were not measured. Charts of one document share their cursor.
export class Chart extends Component {
  constructor(props) {
    super(props);
    this.draw = this.draw.bind(this);
  }

  componentDidMount() {
    this.draw();
    dark.addEventListener("change", this.draw);
    addEventListener("resize", this.draw);
  }

  componentDidUpdate() {
    this.draw();
  }

  componentWillUnmount() {
    dark.removeEventListener("change", this.draw);
    removeEventListener("resize", this.draw);
    this.plot?.destroy();
  }

  draw() {
    const { unit, x, lines, stepped, fromZero = true, marks = [] } = this.props;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const areas = this.props.stacked ? stacked(lines.filter((line) => !line.dashed).map((line, n) => ({ ...line, area: n % COLOURS }))) : [];
    const drawn = [...areas, ...lines.filter((line) => line.dashed || !this.props.stacked)];
    const series = drawn.map((line, n) => ({
      label: line.name, width: line.area === undefined ? 2 : 0.5,
      stroke: line.colour && line.area === undefined ? resolved(line.colour) : colour(line.dashed ? "--quiet" : line.area === undefined ? `--l${n % COLOURS}` : "--text"),
      fill: line.area === undefined ? undefined : line.colour ? resolved(line.colour) : colour(`--c${line.area}`),
      dash: line.dashed ? [6, 4] : undefined,
      paths: stepped || line.area !== undefined ? window.uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: !stepped && line.area === undefined && x.length < 50 },
      value: (_, __, ___, index) => rounded(index === null ? null : (line.shown ?? line.values)[index]),
    }));
    this.plot?.destroy();
    this.plot = new window.uPlot({
      width: this.place.clientWidth, height: 240,
      tzDate: (s) => window.uPlot.tzDate(new Date(s * 1e3), "Etc/UTC"),
      cursor: { drag: { x: true, y: false }, sync: { key: "time" } },
      scales: { y: { range: (_, least, most) => (fromZero ? [0, most * 1.1 || 1] : [least - (most - least || most) * 0.1, most + (most - least || most) * 0.1]) } },
      axes: [{ ...axis, values: (_, splits) => splits.map((each) => utc(each, splits[1] - splits[0])) }, { ...axis, size: 64, label: unit, labelSize: 18, stroke: colour("--quiet") }],
      series: [{ label: "UTC", value: (_, s) => (s === null ? "" : new Date(s * 1e3).toISOString().slice(0, 19).replace("T", " ")) }, ...series],
      hooks: { draw: [({ ctx, bbox, valToPos }) => {
        ctx.fillStyle = colour("--text");
        for (const at of marks) ctx.fillRect(valToPos(at, "x", true), bbox.top, devicePixelRatio, bbox.height);
      }] },
    }, [x, ...drawn.map((line) => line.values)], this.place);
  }

  render({ label }) {
    return h("div", { class: "chart", role: "img", "aria-label": label, ref: (place) => { if (place) this.place = place; } });
  }
}
