// Receipts: what single answers cost as they are given, and what an answer of each variant costs.
import { Component, failure, h, read, table } from "./dom.js";
import { CARBON, column, ENERGY, fixed, ms, percent } from "./units.js";

const SHOWN = 25; // newest receipts
const KEPT = 1000; // latencies of a variant, for its p95
const SAMPLES = { 1: "every answer", 0.1: "one in 10", 0.01: "one in 100", 0.001: "one in 1000" };

// Sums of a variant's receipts since the page was opened.
const added = (sums = { count: 0, priced: 0, energy_j: 0, squares: 0, emitted: 0, carbon_gco2e: 0, latencies: [] }, each) => {
  sums.count += 1;
  sums.accuracy = each.accuracy;
  sums.latencies.push(each.latency_s);
  if (sums.latencies.length > KEPT) sums.latencies.shift();
  if (each.energy_j !== undefined) {
    sums.priced += 1;
    sums.energy_j += each.energy_j;
    sums.squares += each.energy_j ** 2;
    sums.method = each.energy_method;
  }
  if (each.carbon_gco2e !== undefined) {
    sums.emitted += 1;
    sums.carbon_gco2e += each.carbon_gco2e;
  }
  return sums;
};

const p95 = (latencies) => latencies.toSorted((a, b) => a - b)[Math.ceil(latencies.length * 0.95) - 1];

// Half-width of the 95 % interval of a mean that is estimated from a sample.
function error(sums) {
  const mean = sums.energy_j / sums.priced;
  return sums.priced < 2 ? NaN : 1.96 * Math.sqrt(Math.max(sums.squares / sums.priced - mean ** 2, 0) / (sums.priced - 1));
}

const mean = (sums) => (sums.priced ? sums.energy_j / sums.priced : null);

// {detail}: which receipts, as the address says.
export class Receipts extends Component {
  constructor(props) {
    super(props);
    this.given = new URLSearchParams(props.detail);
    this.state = { newest: [], sums: new Map(), left: 0, models: [], paused: false };
  }

  componentDidMount() {
    read("/api/models").then(({ models }) => this.setState({ models }), (problem) => this.setState({ problem }));
    this.events = new EventSource(`/api/receipts?${this.given}`);
    this.events.onmessage = ({ data }) => this.take(JSON.parse(data));
    this.events.addEventListener("problem", ({ data }) => this.setState({ problem: new Error(JSON.parse(data).error) }));
    this.events.onerror = () => {
      if (this.events.readyState === EventSource.CLOSED) this.setState({ problem: new Error("The console refused these receipts: look at the address, or log in again.") });
    };
  }

  componentWillUnmount() {
    this.events.close();
  }

  take({ receipts, left_out, routers, processes }) {
    if (this.state.paused) return;
    const { sums, left } = this.state;
    for (const each of receipts) sums.set(`${each.model}/${each.variant}`, added(sums.get(`${each.model}/${each.variant}`), each));
    const newest = [...receipts.toReversed(), ...this.state.newest].slice(0, SHOWN);
    this.setState({ newest, sums, left: left + left_out, routers, processes, problem: null });
  }

  // Receipts of something else are another page.
  show(name, value) {
    if (value) this.given.set(name, value);
    else this.given.delete(name);
    if (name === "model") this.given.delete("variant");
    location.hash = `#/receipts${this.given.size ? `/${this.given}` : ""}`;
  }

  choice(label, name, options) {
    const chosen = this.given.get(name) ?? "";
    return h("label", {}, `${label} `, h("select", { id: `receipts-${name}`, onChange: (event) => this.show(name, event.target.value) },
      options.map(([value, said]) => h("option", { value, selected: value === chosen }, said))));
  }

  render(_, { newest, sums, left, models, routers, processes, paused, problem }) {
    const model = models.find((each) => each.model === this.given.get("model"));
    const kinds = [...sums].toSorted(([a], [b]) => a.localeCompare(b));
    const seen = [...sums.values()].reduce((sum, each) => sum + each.count, 0);
    return h("div", {},
      h("h1", {}, "Receipts"),
      h("p", { class: "headline" }, "What single answers cost, as they are given. They name no client and no content."),
      h("form", { onSubmit: (event) => event.preventDefault() },
        this.choice("Model", "model", [["", "all"], ...models.map((each) => [each.model, each.model])]),
        model && this.choice("Variant", "variant", [["", "all"], ...model.variants.map((each) => [each.variant, each.variant])]),
        this.choice("Sample", "sample", [["", SAMPLES[1]], ...Object.entries(SAMPLES).filter(([share]) => share !== "1").toSorted(([a], [b]) => b - a)]),
        h("button", { type: "button", id: "pause", "aria-pressed": String(paused), onClick: () => this.setState({ paused: !paused }) }, paused ? "Go on" : "Pause")),
      problem && failure(problem),
      h("div", { class: "flow one" }, h("section", {}, h("h2", {}, "By variant, since this page was opened"),
      table("Means of the receipts that came; energy with the 95 % interval of its mean, without its meter's own error", [
        ["variant", ([name]) => name],
        ["receipts", ([, each]) => String(each.count), "number"],
        ["accuracy", ([, each]) => fixed(each.accuracy, 4), "number"],
        ["p95", ([, each]) => ms(p95(each.latencies)), "number"],
        column("energy per request", kinds, ENERGY, ([, each]) => mean(each), ([, each]) => error(each)),
        ["how it is known", ([, each]) => each.method ?? "–"],
        column("carbon per request", kinds, CARBON, ([, each]) => (each.emitted ? each.carbon_gco2e / each.emitted : null)),
      ], kinds, problem ? ["None come. ", h("code", {}, "cinquefoil health router"), " asks the router."] : ["No request was answered since. Send some: ", h("code", {}, "cinquefoil load MODEL --rps 50"), "."]),
      seen > 0 && h("p", { class: "quiet" }, `${seen === 1 ? "One receipt" : `${seen} receipts`} from ${routers} of ${processes} router processes`,
        left > 0 ? `; ${left} more were left out (${percent(left / (left + seen))}): choose a smaller sample.` : ".")),
      h("section", {}, h("h2", {}, "Newest"),
      table(`The newest ${SHOWN}; times are UTC`, [
        ["answered", (each) => each.answered_at.slice(11, 23)],
        ["model/variant", (each) => `${each.model}/${each.variant}`],
        ["latency", (each) => ms(each.latency_s), "number"],
        ["of that waiting", (each) => ms(each.queue_s), "number"],
        ["batch", (each) => (each.batch_size ? String(each.batch_size) : "not told"), "number"],
        ...(newest.some((each) => each.output_tokens) ? [["tokens", (each) => (each.output_tokens ? `${each.input_tokens} + ${each.output_tokens}` : "–"), "number"]] : []),
        column("energy", newest, ENERGY, (each) => each.energy_j),
        column("carbon", newest, CARBON, (each) => each.carbon_gco2e),
      ], newest, problem ? "None: they appear as requests are answered." : "They appear as requests are answered."))));
  }
}
