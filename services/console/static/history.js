// What a deployment did, as panels of one time axis.
import { Component, failure, Folded, h, known, read, table } from "./dom.js";
import { fill, line } from "./pictures.js";
import { Timeline, until } from "./timeline.js";
import { fixed, ms, prose, stamp } from "./units.js";

const RELOAD_MS = 15_000;
const YOUNG_S = 3 * 3600; // a deployment that is younger shows its last hour
const MOST_GPUS = 16;
const SHADES = ["", "second", "third"]; // of zones

// {palette, plan, show}: the newest plan's version and state; show: of the history, when it has come.
export class History extends Component {
  constructor(props) {
    super(props);
    this.state = { hours: 24 };
  }

  componentDidMount() {
    this.load(true);
    this.timer = setInterval(() => this.load(), RELOAD_MS);
  }

  componentDidUpdate(before) {
    if (before.plan !== this.props.plan) this.load();
  }

  componentWillUnmount() {
    clearInterval(this.timer);
    this.gone = true;
  }

  async load(first) {
    const { hours } = this.state;
    try {
      const found = await read(`/api/history?hours=${hours}`);
      if (this.gone || hours !== this.state.hours) return;
      this.setState({ found, panels: panels(found, this.props.palette), error: null });
      this.props.show(found);
      if (first && found.until_s - began(found) < YOUNG_S) this.choose(1);
    } catch (error) {
      if (!this.gone) this.setState({ error });
    }
  }

  choose(hours) {
    this.setState({ hours }, () => this.load());
  }

  render(_, { found, panels: shown, error, hours }) {
    if (error && !found) return h("div", { class: "card" }, failure(error));
    if (!found) return h("p", { class: "empty" }, "Reading what happened…");
    const plans = found.plans.map((each) => ({ ...each, at: each.since_s }));
    return h("section", { class: "card", "aria-label": "What happened" },
      error && !known(error) && failure(error),
      h(Timeline, { panels: shown, plans, now: found.until_s, began: began(found), hours, choose: (each) => this.choose(each) }),
      found.gpus.length > MOST_GPUS && h("p", { class: "quiet" }, `${MOST_GPUS} of ${found.gpus.length} GPUs are shown.`),
      h(Folded, { id: "history-table", summary: "Plans as a table", view: () => planTable(found) }));
  }
}

// Since when anything is known.
function began({ times_s: times, power, plans, until_s: now }) {
  const metered = times[power.measured_w.findIndex((each) => each !== null)];
  return Math.min(metered ?? now, plans[0]?.since_s ?? now);
}

const planTable = ({ plans, gpus }) => {
  const named = new Map(gpus.map((each) => [each.uuid, each.name]));
  return table("Plans in the time shown, newest first; UTC", [
    ["plan", (plan) => h("a", { href: `#/plans/${plan.version}` }, `Plan ${plan.version}`)],
    ["since", (plan) => stamp(plan.since_s)],
    ["why", (plan) => prose(plan.cause)],
    ["in short", (plan) => prose(plan.sentence.replace(/^.*?: /, ""))],
    ["slices", (plan) => plan.slices.map((each) => `${named.get(each.gpu) ?? each.gpu.slice(0, 8)} ${each.placement} ${each.model}/${each.variant}`).join(", ") || "none"],
  ], plans.toReversed(), "No plan ran in this time.");
};

export function panels(found, palette) {
  const { times_s: times, models } = found;
  const at = (values, digits, unit) => (s) => fixed(values[until(times, s)], digits, unit);
  const within = (s) => s <= found.until_s + found.step_s;
  const each = (words) => (s) => models.map((model) => ({ name: model.model, value: within(s) ? words(model, until(times, s)) : "–", colour: line(palette, model.model) }));
  const perModel = (values) => models.map((model) => ({ name: model.model, times, values: values(model), colour: line(palette, model.model) }));
  return [
    { id: "grid", title: "Grid", unit: "gCO₂e/kWh", height: 84,
      lines: found.zones.flatMap((zone, n) => [
        { name: zone.zone, times, values: zone.intensity_gco2e_per_kwh, class: `zone ${SHADES[n % SHADES.length]}` },
        { name: "forecast", times: zone.forecast.times_s, values: zone.forecast.expected, class: `zone forecast ${SHADES[n % SHADES.length]}` }]),
      areas: found.zones.map((zone) => ({ times: zone.forecast.times_s, low: zone.forecast.low, high: zone.forecast.high, class: "band" })),
      said: (s) => found.zones.map((zone) => ({ name: zone.zone, value: within(s) ? at(zone.intensity_gco2e_per_kwh, 0)(s) : `${fixed(zone.forecast.expected[until(zone.forecast.times_s, s)], 0)} expected` })) },
    ...found.gpus.slice(0, MOST_GPUS).map((gpu) => gpuPanel(gpu, found, palette, within)),
    against("power", "Power", "W", found.power.measured_w, found.power.base_w, times, within),
    ...(found.sites ?? []).map((site) => sitePanel(site, times, within)),
    against("emissions", "Emissions", "gCO₂e per hour", found.emissions.measured_gco2e_per_h, found.emissions.base_gco2e_per_h, times, within),
    { id: "latency", title: "Latency", unit: "% of objective", height: 72, least: 110, limit: 100,
      lines: perModel((model) => model.latency_s.map((each) => (each === null ? null : (each / model.objective_s) * 100))),
      said: each((model, n) => (model.latency_s[n] ?? null) === null ? "–" : `${ms(model.latency_s[n])} of ${ms(model.objective_s)}`) },
    { id: "requests", title: "Requests", unit: "req/s", height: 64, least: 1, lines: perModel((model) => model.requests_rps), said: each((model, n) => fixed(model.requests_rps[n], 1)) },
  ];
}

// What was used beside BASE's, and the area between them: what was saved, or lost.
function against(id, title, unit, used, base, times, within) {
  const both = (n) => used[n] !== null && base[n] !== null;
  const whole = used.map((each, n) => (both(n) ? Math.max(each, base[n]) : null)), saved = used.map((each, n) => (both(n) ? base[n] - each : null));
  const digits = Math.max(0, ...used, ...base) < 30 ? 1 : 0; // of all figures alike
  return { id, title, unit, height: 84, least: id === "power" ? 1 : 0,
    areas: [{ times, low: used, high: whole, class: "saved" }, { times, low: base, high: whole, class: "lost" }],
    lines: [{ name: "BASE", times, values: base, class: "base" }, { name: "measured", times, values: used, class: "used" }],
    said: (s) => [["measured", used, "var(--text)"], ["BASE", base], ["saved", saved, "var(--accent)"]]
      .map(([name, values, colour]) => ({ name, colour, value: within(s) ? fixed(values[until(times, s)], digits) : "–" })) };
}

// A site's power at the wall under its limit.
function sitePanel({ site, measured_w: used, limit_w: limit }, times, within) {
  const of = (values) => (s) => (within(s) ? fixed(values[until(times, s)], 0) : "–");
  return { id: `site-${site}`, title: `Site ${site}`, unit: "W at the wall", height: 84, least: 1,
    lines: [{ name: "limit", times, values: limit, class: "base" }, { name: "measured", times, values: used, class: "used" }],
    said: (s) => [["measured", used, "var(--text)"], ["limit", limit]].map(([name, values, colour]) => ({ name, colour, value: of(values)(s) })) };
}

function gpuPanel(gpu, found, palette, within) {
  const bands = running(gpu, found);
  return { id: gpu.uuid, title: gpu.name, unit: "slices", height: Math.max(20, gpu.compute_slices * 7), cells: gpu.compute_slices,
    bands: bands.map((each) => ({ ...each, colour: fill(palette, each.model, each.variant) })),
    said: (s) => {
      const now = within(s) ? bands.filter((each) => each.from <= s && (s < each.to || each.to === found.until_s)) : [];
      const shares = new Map();
      for (const each of now) shares.set(each.runs, (shares.get(each.runs) ?? 0) + each.cells);
      if (!now.length) return [{ name: within(s) ? "empty" : "–", value: "" }];
      return [...shares].map(([name, cells]) => ({ name: name.split("/").at(-1), value: `${cells} of ${gpu.compute_slices}`, colour: fill(palette, ...name.split("/")) }));
    } };
}

// What ran on a GPU since when and until when; a slice that the next plan keeps goes on.
function running(gpu, { plans, until_s: end }) {
  const open = new Map(), done = [];
  plans.forEach((plan, n) => {
    const to = plans[n + 1]?.since_s ?? plan.until_s ?? end, kept = new Set();
    for (const each of plan.slices.filter((slice) => slice.gpu === gpu.uuid)) {
      const cells = Math.min(each.compute_slices, gpu.compute_slices), start = Math.max(0, Math.min(each.start, gpu.compute_slices - cells));
      const key = `${start} ${cells} ${each.model}/${each.variant}`;
      kept.add(key);
      if (open.has(key)) open.get(key).to = to;
      else open.set(key, { from: plan.since_s, to, start, cells, model: each.model, variant: each.variant, runs: `${each.model}/${each.variant}` });
    }
    for (const [key, band] of open) {
      if (kept.has(key)) continue;
      done.push(band);
      open.delete(key);
    }
  });
  return [...done, ...open.values()];
}
