// Now: what just happened and why, what it saves, and how models, GPUs and the grid are.
import { Component, Folded, h, table, tile, unanswered } from "./dom.js";
import { History } from "./history.js";
import { fill, forecastPicture, gpuBar, line, spoken, swatch } from "./pictures.js";
import { clock } from "./timeline.js";
import { age, carbon, counted, energy, fixed, gpuName, ms, percent, prose, provenance, saved, stamp } from "./units.js";
import { late, silent, unserved } from "./why.js";

const MOST_GPUS = 32;
const STATES = { proposed: "about to be carried out", rolling: "being carried out" }; // of a plan, where its own word says less

// {present}: the newest document of /api/events.
export class Now extends Component {
  render({ present }, { history }) {
    const { stale, palette, account, days } = present;
    const status = { ...present.status, models: present.status.models.map((model) => latest(model, history)) };
    const old = (service) => (stale[service] === undefined ? "" : "stale");
    return h("div", {},
      h("h1", { class: "unseen" }, "Now"),
      h("div", { class: old("planner") }, happened(status, history)),
      h("div", { class: `tiles ${old("planner")}` }, tiles(status, days, history)),
      status.regions?.length > 0 && h("section", { class: old("planner"), "aria-label": "Regions" }, h("h2", {}, "Regions"), regionsTable(status.regions)),
      h("div", { class: "now" },
        h("div", {}, h(History, { palette, plan: `${status.plan?.version} ${status.plan?.state}`, show: (found) => this.setState({ history: found }) })),
        h("div", { class: "aside" },
          h("section", { class: `${old("router")} ${status.models.length > 2 ? "many" : ""}`, "aria-label": "Models" }, h("h2", {}, "Models"),
            h("div", { class: "cards" }, status.models.map((model) => modelCard(model, account.find((row) => row.name === model.model), palette, status))),
            !status.models.length && h("p", { class: "empty" }, "No model is served: the router does not answer, or has no model. Start it: ", h("code", {}, "cinquefoil up"), ".")),
          h("section", { class: `${old("planner")} ${new Set(status.gpus.map((gpu) => gpu.node)).size > 2 ? "many" : ""}`, "aria-label": "GPUs now" }, h("h2", {}, "GPUs now"), gpuCards(status, palette)),
          h("section", { class: `${old("carbon")} ${status.zones.length > 2 ? "many" : ""}`, "aria-label": "Zones" }, h("h2", {}, "Zones"),
            h("div", { class: "cards" }, status.zones.map((zone) => zoneCard(zone, history?.zones.find((each) => each.zone === zone.zone)?.forecast))),
            !status.zones.length && h("p", { class: "empty" }, "No carbon intensity is known. Start the carbon service: ", h("code", {}, "cinquefoil up"), ", or ", h("code", {}, "cinquefoil carbon serve"), ".")))));
  }
}

// The last change and its cause, in one sentence.
function happened({ plan, leader, problems, conditions }, history) {
  if (!plan) return h("p", { class: "headline" }, problems.some((each) => each.startsWith("planner at")) ? ["The planner does not answer, and nothing is known of its plans. Start it: ", h("code", {}, "cinquefoil up"), "."] : ["There is no plan. ", conditions.length ? "Above is what is missing." : ["The planner makes one when it knows a GPU and a carbon intensity: ", h("code", {}, "cinquefoil plan watch"), " shows the first."]]);
  const past = history?.plans.find((each) => each.version === plan.version);
  return h("div", {},
    h("p", { class: "headline" },
      h("a", { href: `#/plans/${plan.version}`, id: "newest" }, `Plan ${plan.version}`),
      prose(past ? past.sentence.replace(/^Plan \d+/, "") : ` is ${STATES[plan.state] ?? plan.state}: ${plan.reason}.`)),
    h("p", { class: "quiet", id: "next" },
      past ? `It is ${STATES[plan.state] ?? plan.state}. ` : "",
      leader ? `Planner: ${leader.holder}, term ${leader.term}. ` : "",
      h("a", { href: `#/plans/${plan.version}` }, "Why this plan"), " · ",
      h("a", { href: "#/what-if/demand=3" }, "What if the load triples"), " · ",
      h("a", { href: "#/plans" }, "Go back to an earlier plan")));
}

// What goes between this region and its peers, of each model, and what came home if one were lost.
function regionsTable(rows) {
  const peer = (show) => (row) => (row.here ? "" : show(row)), rate = (rps) => fixed(rps, 1, " req/s");
  return table("Requests between regions", [
    ["region", (row) => row.region],
    ["model", (row) => row.model || "–"],
    ["carbon of a request", (row) => carbon(row.carbon_gco2e), "number"],
    ["→ goes there", peer((row) => rate(row.sent_rps)), "number"],
    ["← comes from there", (row) => rate(row.received_rps), "number"],
    ["it grants", peer((row) => rate(row.granted_rps)), "number"],
    ["round trip", peer((row) => ms(row.round_trip_s)), "number"],
    ["if it is lost, this region", peer((row) => (known(row.load_if_lost) ? `is at ${percent(row.load_if_lost)} of its capacity, ${carbon(row.carbon_if_lost_gco2e_per_h)} more per hour` : "–"))],
    ["state", (row) => (row.here ? `here: ${rate(row.sent_rps)} of its own clients, capacity ${rate(row.granted_rps)}` : row.state)],
  ], rows, "");
}

// A model with its p95 and accuracy of the last minutes; the router's own are since its start.
function latest(model, history) {
  const past = history?.models.find((each) => each.model === model.model);
  return { ...model, p95_s: lasts(past?.latency_s) ?? model.p95_s, accuracy: lasts(past?.accuracy) ?? model.accuracy };
}

const lasts = (values) => values?.findLast((each) => each !== null);

function tiles(status, days, history) {
  const power = status.gpus.reduce((sum, gpu) => sum + gpu.power_w, 0), base = lasts(history?.power.base_w);
  const answered = status.models.filter((model) => known(model.p95_s)), share = (model) => model.p95_s / model.slo_latency_s;
  const kept = answered.filter((model) => share(model) <= 1), nearest = answered.toSorted((a, b) => share(b) - share(a))[0];
  const some = (day) => day?.requests > 0;
  const away = (service) => silent(status, service) && unanswered(service);
  return [
    tile("Saved today", some(days.today) ? saved(days.today).replace(/ \(.*/, "") : "–",
      (!some(days.today) && away("planner")) || [some(days.today) ? Math.abs(days.today.saved_ratio) < 0.005 ? ["As much as BASE emits: ", h("code", {}, "cinquefoil plan explain"), " says what else there is."] : `${percent(days.today.saved_ratio)} less than BASE, idle GPUs included.` : ["No request was answered today. Send some: ", h("code", {}, "cinquefoil load MODEL --rps 50"), "."],
        " ", some(days.yesterday) ? `Yesterday: ${saved(days.yesterday)}.` : "Yesterday: nothing was served."]),
    tile("Objectives kept", answered.length ? `${kept.length} of ${answered.length}` : "–",
      nearest ? `${share(nearest) > 1 ? "Furthest above its objective" : "Nearest its objective"}: ${nearest.model}, p95 ${ms(nearest.p95_s)} of ${ms(nearest.slo_latency_s)} (${percent(share(nearest))}).` : away("router") || ["No request was answered yet. Send some: ", h("code", {}, "cinquefoil load MODEL --rps 50"), "."], kept.length < answered.length ? "bad" : ""),
    tile("Power now", status.gpus.length ? fixed(power, 0, " W") : "–", !status.gpus.length ? away("planner") || ["No GPU has joined. Start an agent: ", h("code", {}, "cinquefoil gpuagent serve"), "."] : known(base) ? `BASE would draw ${fixed(base, 0, " W")}.` : `${counted(status.gpus.length, "GPU")}.`),
  ];
}

const known = (value) => value !== null && value !== undefined;

function modelCard(model, row, palette, status) {
  const share = known(model.p95_s) ? model.p95_s / model.slo_latency_s : null;
  const variants = model.variants.map((each) => h("li", {}, swatch(fill(palette, model.model, each.variant)), `${each.variant} `, h("span", { class: "quiet" }, percent(each.share))));
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return h("section", { class: "card", "aria-label": model.model },
    h("h3", {}, swatch(line(palette, model.model)), model.model,
      share === null ? h("small", {}, "no request yet") : share <= 1 ? h("small", { class: "good" }, "✓ within its objective") : h("small", { class: "bad" }, "✕ above its objective")),
    h("p", { class: "figure" }, share === null ? h("small", {}, `p95 within ${ms(model.slo_latency_s)}`) : [ms(model.p95_s), h("small", {}, ` p95 of ${ms(model.slo_latency_s)}`)]),
    h("div", { class: "meter", "aria-hidden": "true" }, h("i", { class: share > 1 ? "over" : "", style: { width: `${Math.min(100, (share ?? 0) * 100)}%` } })),
    h("ul", { class: "variants", "aria-label": "Variants and their shares" }, variants.length ? variants : h("li", {}, "No variant serves it.")),
    share === null && h("p", { class: "empty" }, unserved(model.model, status)),
    share > 1 && h("p", { class: "empty" }, late(model.model, status)),
    h("dl", { class: "facts" },
      fact("Requests", fixed(model.rate_rps, 1, " req/s")),
      model.output_tokens ? fact("Tokens", fixed(model.output_tokens_per_s, 1, " tokens/s")) : null,
      model.answered > 0 && fact("Accuracy now", fixed(model.accuracy, 4)),
      fact("Waiting", String(model.queue_depth)),
      fact("Failed, late", `${model.failed}, ${model.late}`),
      row?.requests > 0 && fact("Energy of a request", energy(row.energy_j / row.requests)),
      row ? fact("Emitted in 24 h", carbon(row.carbon_gco2e)) : null,
      row?.cost_eur ? fact("Cost in 24 h", `${row.cost_eur.toPrecision(3)} EUR`) : null,
      row?.requests > 0 && known(row.saved_ratio) ? fact("Saved in 24 h", saved(row).replace(/ \(.*/, "")) : null));
}

// {forecast}: as of the history, whose times are those of clocks, also where the grid is replayed.
function zoneCard(zone, forecast) {
  const absolute = zone.percentile === null, hours = [...(forecast?.times_s.keys() ?? [])];
  return h("section", { class: "card", "aria-label": zone.zone },
    h("h3", {}, zone.zone, h("small", {}, `${provenance(zone)}, ${age(zone.age_s)} old`)),
    h("p", { class: "figure" }, absolute ? fixed(zone.intensity_gco2e_per_kwh, 0) : `${fixed(zone.percentile, 0)}th`, h("small", {}, absolute ? ` gCO₂e/kWh${zone.ratio ? `, ${percent(zone.ratio)} of its average` : ""}` : " percentile")),
    hours.length > 1 && absolute
      ? [h("p", {}, coming(zone, forecast)), forecastPicture(zone, forecast), h(Folded, { id: `forecast-${zone.zone}`, summary: "Forecast as a table", view: () =>
          table(`Forecast of ${zone.zone}, gCO₂e/kWh`, [
            ["from (UTC)", (n) => stamp(forecast.times_s[n])],
            ["expected", (n) => fixed(forecast.expected[n], 0), "number"],
            ["low", (n) => fixed(forecast.low[n], 0), "number"],
            ["high", (n) => fixed(forecast.high[n], 0), "number"],
          ], hours, "") })]
      : h("p", { class: "empty" }, "No forecast is known: its source has none, or does not answer. ", h("code", {}, "cinquefoil doctor"), " asks it."));
}

// What the grid does next: its extremes, in order of time.
function coming(zone, { times_s: times, expected }) {
  const sorted = [...expected.keys()].sort((a, b) => expected[a] - expected[b]);
  const extremes = [sorted[0], sorted.at(-1)].filter((n) => Math.abs(expected[n] - zone.intensity_gco2e_per_kwh) >= 1).sort((a, b) => a - b);
  if (!extremes.length) return "Forecast: it stays as it is.";
  return `Forecast: ${extremes.map((n) => `${n === sorted[0] ? "falls to" : "rises to"} ${fixed(expected[n], 0)} at ${clock(times[n])}`).join(", then ")} UTC.`;
}

function gpuCards(status, palette) {
  const { gpus } = status;
  if (!gpus.length && silent(status, "planner")) return h("p", { class: "empty" }, unanswered("planner"));
  if (!gpus.length) return h("p", { class: "empty" }, "No GPU has joined. Start an agent: ", h("code", {}, "cinquefoil gpuagent serve"), ".");
  const nodes = [...new Set(gpus.slice(0, MOST_GPUS).map((gpu) => gpu.node))];
  return h("div", {}, h("div", { class: "cards" }, nodes.map((node) => {
    const own = gpus.filter((gpu) => gpu.node === node), without = new URLSearchParams(own.map((gpu) => ["without", gpu.uuid]));
    return h("section", { class: "card", "aria-label": node },
      h("h3", {}, node, h("small", {}, h("a", { href: `#/what-if/${without}` }, `What if ${node} goes`))),
      own.map((gpu) => h("div", { class: "gpu-now" },
        h("p", {}, h("strong", {}, `GPU ${gpu.index}`), h("span", { class: "quiet" }, ` ${gpu.type}${gpu.simulated ? ", simulated" : ""}${gpu.connected ? "" : ", away"}`), h("span", { class: "watts" }, fixed(gpu.power_w, 0, " W"))),
        gpuBar(gpu, palette), h("p", { class: "unseen" }, `${gpuName(gpu)} runs ${spoken(gpu)}`))));
  })),
  gpus.length > MOST_GPUS && h("p", { class: "quiet" }, `${MOST_GPUS} of ${gpus.length} GPUs are shown.`),
  h("details", { id: "slices" }, h("summary", { id: "slices-summary" }, "Slices as a table"),
    table("Slices", [
      ["GPU", ({ gpu }) => gpuName(gpu)],
      ["slice", ({ each }) => each.placement],
      ["runs", ({ each }) => (each.model ? `${each.model}/${each.variant}` : "–")],
      ["batch", ({ each }) => (each.model ? String(each.batch_size) : "–"), "number"],
      ["processes", ({ each }) => (each.model ? String(each.processes) : "–"), "number"],
      ["state", ({ each }) => each.state || "–"],
    ], gpus.flatMap((gpu) => (gpu.slices.length ? gpu.slices : [{ placement: "not cut" }]).map((each) => ({ gpu, each }))), "")));
}
