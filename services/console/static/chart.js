// Lines over time, by uPlot. A chart's figures are in a table beside it.
import { Component, h } from "./dom.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const utc = (s) => {
  const text = new Date(s * 1000).toISOString();
  return text.endsWith("T00:00:00.000Z") ? text.slice(5, 10) : text.slice(11, 16);
};

// {label, unit, x: [s since 1970], lines: [{name, values, colour, dash}]}
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
    const { unit, x, lines } = this.props;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    this.plot?.destroy();
    this.plot = new window.uPlot({
      width: this.place.clientWidth, height: 240,
      legend: { live: false },
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, __, most) => [0, most * 1.1 || 1] } },
      axes: [{ ...axis, values: (_, splits) => splits.map(utc) }, { ...axis, size: 64, label: unit, labelSize: 18, stroke: colour("--quiet") }],
      series: [{}, ...lines.map((line) => ({ label: line.name, stroke: colour(line.colour), width: 2, dash: line.dash, points: { show: x.length < 50 } }))],
    }, [x, ...lines.map((line) => line.values)], this.place);
  }

  render({ label }) {
    return h("div", { class: "chart", role: "img", "aria-label": label, ref: (place) => { if (place) this.place = place; } });
  }
}
