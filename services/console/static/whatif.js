// What if: the plan for other circumstances, beside the present one. Nothing changes until it is applied.
import { Component, failure, Folded, h, Later, read, table } from "./dom.js";
import { compared } from "./fields.js";
import { cards } from "./outcome.js";
import { ghosts, gpuNames, segments } from "./outlook.js";
import { frontPicture } from "./pictures.js";
import { Order, session } from "./session.js";
import { CARBON, carbon, column, counted, fixed, gpuName, percent, prose, time } from "./units.js";

const WAIT_MS = 150; // after the last move of a slider
const VALID_MS = 600_000; // of a proposal, as the planner keeps it

const SLIDERS = [
  { name: "demand", label: "Load", min: 0.1, max: 5, step: 0.1, unset: 1, words: (value) => `× ${fixed(value, 1)}` },
  { name: "intensity", label: "Carbon intensity", min: 0.1, max: 5, step: 0.1, unset: 1, words: (value) => `× ${fixed(value, 1)}` },
  { name: "price", label: "Price of electricity", min: 0.1, max: 5, step: 0.1, unset: 1, counts: (inputs) => Object.keys(inputs.energy_price_eur_per_kwh ?? {}).length > 0, words: (value) => `× ${fixed(value, 1)}` },
  { name: "carbon_budget", label: "Carbon budgets", min: 0.5, max: 1.5, step: 0.01, unset: 1, counts: (inputs) => Object.keys(inputs.carbon_budget_price_gco2e ?? {}).length > 0, words: (value) => `× ${fixed(value, 2)}` },
  { name: "carbon_weight", label: "Weight of carbon (λ)", min: 0, max: 1, step: 0.01, words: (value) => fixed(value, 2) },
  { name: "accuracy_mean", label: "Mean accuracy", min: 0.5, max: 1, step: 0.005, of: (inputs) => inputs.accuracy_mean?.at_least ?? 1, words: (value) => percent(value) },
  { name: "accuracy_floor", label: "Accuracy floor", min: 0.5, max: 1, step: 0.01, words: (value) => percent(value) },
];

const reasons = ({ explanation }) => h("div", {},
  explanation.sentences.map((each) => h("p", {}, prose(each))),
  compared("The plan, and what else there was", { then: explanation.plan, "what runs now": explanation.unchanged, "runner-up": explanation.runner_up?.outlook, BASE: explanation.base?.outlook }));

const unset = (slider, inputs) => slider.unset ?? slider.of?.(inputs) ?? inputs[slider.name];

// {detail, gpus, models, palette}: circumstances of the address, the GPUs and models as they are, colours.
export class WhatIf extends Component {
  constructor(props) {
    super(props);
    this.state = { given: new URLSearchParams(props.detail) };
  }

  componentDidMount() {
    read("/api/plans/0").then(({ inputs }) => this.setState({ inputs }), (error) => this.setState({ error }));
    this.ask(true);
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
    clearTimeout(this.expiry);
    this.sweeping?.close();
    this.gone = true;
  }

  // Changes one circumstance and asks again when the reader has stopped moving.
  set(name, value, without = []) {
    const given = new URLSearchParams(this.state.given);
    given.delete(name);
    if (value !== null) given.set(name, value);
    for (const each of without) given.append(name, each);
    history.replaceState(null, "", `#/what-if${given.size ? `/${given}` : ""}`);
    this.setState({ given, stale: true });
    if (name !== "carbon_weight") {
      this.sweeping?.close();
      this.setState({ points: null });
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(name !== "carbon_weight"), WAIT_MS);
  }

  // The front does not depend on the weight: it is the weight that moves along it.
  async ask(front) {
    const asked = this.state.given.toString();
    try {
      const found = await read(`/api/what-if?${asked}`);
      if (this.gone || asked !== this.state.given.toString()) return;
      this.setState({ found, stale: false, error: null, until: Date.now() + VALID_MS, expired: false });
      clearTimeout(this.expiry);
      this.expiry = setTimeout(() => this.setState({ expired: true }), VALID_MS);
      if (!front && this.state.points) return;
      this.sweep();
    } catch (error) {
      if (!this.gone) this.setState({ error, stale: false });
    }
  }

  // Follows the outcomes as they are decided, until the circumstances change.
  sweep() {
    const circumstances = new URLSearchParams(this.state.given);
    circumstances.delete("carbon_weight");
    this.sweeping?.close();
    this.setState({ points: [], complete: false });
    const events = new EventSource(`/api/sweep?${circumstances}`);
    this.sweeping = events;
    events.onmessage = ({ data }) => this.setState({ points: [...this.state.points, JSON.parse(data)] });
    events.addEventListener("end", () => {
      events.close();
      this.setState({ complete: true });
    });
    events.addEventListener("problem", ({ data }) => {
      events.close();
      this.setState({ error: new Error(JSON.parse(data).error) });
    });
    events.onerror = () => events.close();
  }

  render({ gpus }, { given, inputs, found, points, stale, error, until, expired }) {
    return h("div", {},
      h("h1", {}, "What if"),
      h("p", { class: "headline" }, "What the planner would decide under other circumstances. Nothing changes until a plan is applied."),
      inputs && this.circumstances(given, inputs, gpus),
      error && failure(error),
      found && h("div", { "aria-busy": stale ? "true" : "false" },
        this.decided(found, gpus, until, expired)),
      !found && !error && h("p", { class: "empty" }, "The planner computes…"),
      points?.length > 0 && this.front(points));
  }

  circumstances(given, inputs, gpus) {
    const out = given.getAll("without");
    return h("form", { class: "card sliders", onSubmit: (event) => event.preventDefault() },
      SLIDERS.filter(({ counts }) => counts?.(inputs) ?? true).map((slider) => {
        const value = Number(given.get(slider.name) ?? unset(slider, inputs));
        return h("label", {}, h("span", {}, `${slider.label} `, h("strong", {}, slider.words(value)), given.has(slider.name) ? "" : h("small", {}, " as now")),
          h("input", { type: "range", id: slider.name, name: slider.name, min: slider.min, max: slider.max, step: slider.step, value,
            "aria-valuetext": slider.words(value), onInput: (event) => this.set(slider.name, event.target.value) }));
      }),
      gpus.length > 0 && h("fieldset", {}, h("legend", {}, "GPUs that are out"),
        gpus.map((gpu) => h("label", {}, h("input", { type: "checkbox", checked: out.includes(gpu.uuid), onChange: (event) =>
          this.set("without", null, event.target.checked ? [...out, gpu.uuid] : out.filter((each) => each !== gpu.uuid)) }), ` ${gpuName(gpu)}`))),
      h("button", { type: "button", id: "as-now", onClick: () => {
        for (const name of [...given.keys()]) given.delete(name);
        this.set("demand", null);
      } }, "All as now"));
  }

  decided({ plan, explanation, diff, proposal_id }, gpus, until, expired) {
    const { given, why } = this.state;
    const asked = given.toString();
    const changes = diff ? diff.started.length + diff.stopped.length : plan.segments.length;
    return h("div", {},
      h("h2", {}, "Then"),
      h("p", { class: "headline", id: "verdict", "aria-live": "polite" },
        diff ? (changes ? `It would start ${counted(diff.started.length, "segment")}, stop ${diff.stopped.length} and keep ${diff.kept}. ` : "The same segments run. ") : "",
        `${fixed(plan.prediction.power_w, 0, " W")} and ${carbon(plan.prediction.carbon_gco2e_per_h)} per hour.`),
      plan.degraded && !explanation.conditions.length && h("p", { class: "warning" }, `▲ ${plan.degraded}`),
      explanation.conditions.map((each) => h("p", { class: "warning" }, `▲ ${each.sentence}`, each.setting ? [" Setting: ", h("code", {}, each.setting)] : null)),
      cards(explanation, this.props.models, this.props.palette),
      ghosts(gpus, plan.segments, this.props.palette),
      h(Folded, { id: "promises", summary: "All that is promised, as a table", view: () => compared("Under the same circumstances", { then: explanation.plan, "what runs now": explanation.unchanged }) }),
      h("h2", {}, "Apply"),
      this.apply(proposal_id, until, expired),
      h("details", { id: "what-changes" }, h("summary", {}, "Segments that start and stop"),
        segments("Start", diff ? diff.started : plan.segments, gpuNames(gpus)), diff && segments("Stop", diff.stopped, gpuNames(gpus))),
      h("details", { id: "what-why", key: `why-${asked}`, onToggle: (event) => event.target.open && this.setState({ why: asked }) }, h("summary", {}, "Why, and what else there was"),
        why === asked && h(Later, { key: asked, waiting: "The planner computes why…", view: reasons, load: () => read(`/api/what-if?${asked}${asked ? "&" : ""}why=1`) })));
  }

  apply(proposal, until, expired) {
    if (!proposal) return h("p", { class: "quiet" }, "This plan is for a load, an intensity or GPUs that are not the present ones, and cannot be applied.");
    if (expired) return h("p", { class: "warning" }, "▲ This proposal has expired. ", h("button", { id: "again", onClick: () => this.ask(false) }, "Compute it again"));
    const weight = this.state.given.get("carbon_weight");
    return h("div", {},
      h(Order, { id: "apply", key: proposal, label: "Apply this plan", name: "apply", body: { proposal_id: proposal }, command: `cinquefoil plan apply ${proposal}`,
        after: (answer) => { location.hash = `#/plans/${answer.plan.version}`; } }),
      h("p", { class: "quiet" }, `The proposal is valid until ${time(new Date(until).toISOString())} UTC.`),
      session.changes && weight !== null && h(Order, { id: "objective", key: weight, label: `Keep λ = ${weight} for all plans to come`, name: "objective", body: { carbon_weight: Number(weight) } }));
  }

  front(points) {
    const accuracy = ({ outlook }) => Object.values(outlook.accuracy).reduce((sum, each, _, all) => sum + each / all.length, 0);
    const rows = points.map((each) => ({ ...each, accuracy: accuracy(each), grams: each.outlook.carbon_gco2e_per_h }));
    const pick = (row) => this.set("carbon_weight", String(row.carbon_weight));
    return h("section", {},
      h("h2", {}, "Outcomes to choose from"),
      h("p", {}, "Each point is the best plan for a weight of carbon; the more it weighs, the further left. Choose one by its λ: all above follows."),
      !this.state.complete && h("p", { class: "quiet", role: "status" }, "More of them are computed…"),
      h("div", { class: "card front-and-table" }, frontPicture(rows), table("Accuracy against emissions, under the circumstances above", [
        ["λ", (row) => h("button", { type: "button", "aria-label": `Choose the outcome of λ ${row.carbon_weight}`, "aria-pressed": String(Number(this.state.given.get("carbon_weight")) === row.carbon_weight && this.state.given.has("carbon_weight")), onClick: () => pick(row) }, fixed(row.carbon_weight, 2))],
        ["mean accuracy", (row) => fixed(row.accuracy, 4), "number"],
        column("emissions per hour", rows, CARBON, (row) => row.grams),
        ["power, W", (row) => fixed(row.outlook.power_w, 0), "number"],
        ["GPUs", (row) => String(row.outlook.gpus), "number"],
      ], rows, "")));
  }
}
