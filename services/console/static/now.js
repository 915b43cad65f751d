// Now: how each model does, how clean the grid is, and what runs where.
import { h, Later, read, table } from "./dom.js";
import { colours, forecastPicture, gpuBar, key, slotsPicture } from "./pictures.js";
import { age, carbon, counted, energy, fixed, gpuName, ms, percent, provenance, saved, time } from "./units.js";

const MOST_GPUS = 16; // with a picture of their day

export function nowPage({ status, forecasts, account }) {
  const total = account.find((row) => row.name === "total");
  return h("div", {},
    h("h1", {}, "Now"),
    status.problems.map((each) => h("p", { class: "problem", role: "alert" }, `✕ ${each}`)),
    status.conditions.length > 0 && h("p", { class: "warning" }, `▲ ${counted(status.conditions.length, "condition")}: `,
      h("a", { href: "#/nodes", id: "conditions" }, "what they are and what changes them")),
    headline(status, total),
    status.plan && h("p", { id: "next" }, h("a", { href: `#/plans/${status.plan.version}` }, "Why this plan"), " · ",
      h("a", { href: "#/what-if/demand=3" }, "What would change at three times the load"), " · ",
      h("a", { href: "#/plans" }, "How to go back to an earlier plan")),
    h("h2", {}, "Models"),
    h("div", { class: "cards" }, status.models.map((model) => card(model, account.find((row) => row.name === model.model)))),
    models(status, account),
    h("h2", {}, "Grid"),
    status.zones.length ? status.zones.map((zone) => zoneView(zone, forecasts[zone.zone]))
      : h("p", { class: "empty" }, "No carbon intensity is known. Start the carbon service: cinquefoil up, or cinquefoil carbon serve."),
    h("h2", {}, "GPUs"),
    gpus(status),
    status.plan && status.gpus.length > 0 && h(Later, { key: `${status.plan.version} ${status.plan.state}`, waiting: "Reading what ran where…", view: ({ plans }) => history(plans, status.gpus), load: () => read("/api/history") }));
}

// What ran where over the last day.
function history(plans, gpus) {
  if (!plans.length) return null;
  const now = Date.now() / 1e3, began = Math.max(now - 86400, plans[0].since_s);
  const periods = plans.map((plan) => ({ ...plan, from: Math.max(began, plan.since_s), to: plan.until_s ?? now }));
  const known = colours(plans.flatMap((plan) => plan.slices.map((each) => `${each.model}/${each.variant}`)));
  return h("section", { id: "history" },
    h("h2", {}, "Slices over the last day"),
    gpus.length > MOST_GPUS && h("p", { class: "quiet" }, `The first ${MOST_GPUS} of ${gpus.length} GPUs.`),
    h("ul", { class: "bars" }, gpus.slice(0, MOST_GPUS).map((gpu) => h("li", {}, h("span", {}, gpuName(gpu)), slotsPicture(gpu, periods, known)))),
    h("p", { class: "key" }, "A row per compute slice, a column per plan.  ", [...known].map(([name, n]) => h("span", { class: "named" }, h("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, h("rect", { class: `c${n}`, width: 12, height: 12 })), ` ${name} `))),
    h("details", { id: "history-table" }, h("summary", { id: "history-summary" }, "Plans as a table"),
      table("What ran, by plan; times are UTC", [
        ["plan", (plan) => h("a", { href: `#/plans/${plan.version}` }, `Plan ${plan.version}`)],
        ["since", (plan) => time(new Date(plan.since_s * 1e3).toISOString())],
        ["slices", (plan) => plan.slices.map((each) => `${each.placement} ${each.model}/${each.variant}`).join(", ") || "none"],
      ], plans.toReversed(), "")));
}

function headline(status, total) {
  const plan = status.plan;
  const power = status.gpus.reduce((sum, gpu) => sum + gpu.power_w, 0);
  return h("p", { class: "headline" },
    plan ? h("a", { href: `#/plans/${plan.version}`, id: "newest" }, `Plan ${plan.version}`) : "No plan yet",
    plan ? ` (${plan.strategy}) is ${plan.state}: ${plan.reason}. ` : ". ",
    status.gpus.length ? `The GPUs draw ${fixed(power, 0, " W")}. ` : "",
    total?.requests > 0 ? `Saved against BASE in the last 24 hours: ${saved(total)}, of all energy, that of idle GPUs included.` : "No request was answered in the last 24 hours, so nothing is saved yet.",
    status.hold ? ` Held: ${status.hold.why}; until ${time(status.hold.until)} UTC.` : "");
}

function objective(model) {
  if (model.p95_s === null || model.p95_s === undefined) return { text: "no request yet", class: "" };
  return model.p95_s <= model.slo_latency_s
    ? { text: "✓ within the objective", class: "good" }
    : { text: "✕ above the objective", class: "bad" };
}

function card(model, row) {
  const met = objective(model);
  const variant = model.variants.map((each) => `${each.variant} ${percent(each.share)}`).join(", ");
  return h("section", { class: "card", "aria-label": model.model },
    h("h3", {}, model.model),
    h("p", { class: "figure" }, ms(model.p95_s), h("small", {}, ` p95 of ${ms(model.slo_latency_s)}`)),
    h("p", { class: met.class }, met.text),
    h("p", {}, `${fixed(model.rate_rps, 1)} req/s by ${variant || "no variant yet"}`),
    model.output_tokens ? h("p", {}, `${fixed(model.output_tokens_per_s, 1)} tokens/s`) : null,
    row ? h("p", {}, `${carbon(row.carbon_gco2e)} in 24 h${row.requests > 0 ? `; saved ${saved(row)}` : ""}`) : null);
}

function models(status, account) {
  const of = (model) => account.find((row) => row.name === model.model) ?? {};
  return table("Latencies since the router's start; energy and carbon of the last 24 hours, savings of its requests alone against BASE, with their 95 % interval", [
    ["model", (model) => model.model],
    ["variant, share", (model) => model.variants.map((each) => `${each.variant} ${percent(each.share)}`).join(", ") || "none yet"],
    ["p50", (model) => ms(model.p50_s), "number"],
    ["p95", (model) => ms(model.p95_s), "number"],
    ["objective", (model) => ms(model.slo_latency_s), "number"],
    ["req/s", (model) => fixed(model.rate_rps, 1), "number"],
    ["waiting", (model) => String(model.queue_depth), "number"],
    ["failed / late", (model) => `${model.failed} / ${model.late}`, "number"],
    ["accuracy", (model) => (model.answered ? fixed(model.accuracy, 4) : "–"), "number"],
    ["energy", (model) => energy(of(model).energy_j), "number"],
    ["emitted", (model) => carbon(of(model).carbon_gco2e), "number"],
    ["saved", (model) => saved(of(model)), "number"],
  ], status.models, "No model is served: the router does not answer, or has no model. Start it with cinquefoil up.");
}

function zoneView(zone, forecast) {
  const periods = forecast?.periods ?? [];
  const now = zone.percentile === null
    ? `${fixed(zone.intensity_gco2e_per_kwh, 0)} gCO₂e/kWh, ${fixed(zone.ratio, 2)} of its average`
    : `${fixed(zone.percentile, 0)}th percentile`;
  const source = `${provenance(zone)}, ${age(zone.staleness_s)} old`;
  return h("section", {},
    h("h3", {}, zone.zone),
    h("p", {}, h("strong", {}, now), ` (${source})`),
    periods.length > 1 && zone.percentile === null
      ? [forecastPicture(zone, periods), key(), h("details", { id: `forecast-${zone.zone}` },
          h("summary", { id: `forecast-${zone.zone}-summary` }, `Forecast as a table (${forecast.method})`),
          table(`Forecast of ${zone.zone}, gCO₂e/kWh`, [
            ["from (UTC)", (each) => time(each.since)],
            ["expected", (each) => fixed(each.intensity_gco2e_per_kwh, 0), "number"],
            ["low", (each) => fixed(each.low_gco2e_per_kwh, 0), "number"],
            ["high", (each) => fixed(each.high_gco2e_per_kwh, 0), "number"],
          ], periods, ""))]
      : h("p", { class: "empty" }, "No forecast is known for this zone."));
}

function gpus(status) {
  if (!status.gpus.length) return h("p", { class: "empty" }, "No GPU has joined. Start an agent: cinquefoil gpuagent serve.");
  const named = (each) => `${each.model}/${each.variant}`;
  const known = colours(status.gpus.flatMap((gpu) => gpu.slices.filter((each) => each.model).map(named)));
  const rows = status.gpus.flatMap((gpu) => (gpu.slices.length ? gpu.slices : [{ placement: "not cut" }]).map((each) => ({ gpu, each })));
  return h("div", {},
    h("ul", { class: "bars" }, status.gpus.map((gpu) => h("li", {},
      h("span", {}, gpuName(gpu), h("small", {}, ` ${gpu.type}${gpu.simulated ? ", simulated" : ""}, ${fixed(gpu.power_w, 0, " W")}${gpu.connected ? "" : ", away"}`)),
      gpuBar(gpu, known)))),
    h("p", { class: "key" }, "One cell per compute slice; dotted: free, blank: not cut."),
    h("details", { id: "slices" }, h("summary", { id: "slices-summary" }, "Slices as a table"),
      table("Slices", [
        ["GPU", ({ gpu }) => gpuName(gpu)],
        ["type", ({ gpu }) => gpu.type],
        ["slice", ({ each }) => each.placement],
        ["runs", ({ each }) => (each.model ? named(each) : "–")],
        ["batch × processes", ({ each }) => (each.model ? `${each.batch_size} × ${each.processes}` : "–"), "number"],
        ["state", ({ each }) => each.state || "–"],
      ], rows, "")));
}
