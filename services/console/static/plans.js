// Plans: the list, one plan's story, and how two differ.
import { Folded, h, Later, read, table } from "./dom.js";
import { compared, shown, title, values } from "./fields.js";
import { finite, gpuNames, segments } from "./outlook.js";
import { Order } from "./session.js";
import { CARBON, column, counted, fixed, gpuName, percent, prose, time, word } from "./units.js";

const state = (plan) => word(plan.state, "PLAN_STATE_");

export async function plansPage() {
  const { plans } = await read("/api/plans");
  const pinned = plans.find((plan) => plan.pinned);
  const newest = plans[0]?.version;
  return h("div", {},
    h("h1", {}, "Plans"),
    pinned && h("p", { class: "warning" }, `▲ Plan ${pinned.version} is pinned${pinned.pinned_by ? ` by ${pinned.pinned_by}` : ""}: no new plan is made.`),
    pinned && h(Order, { id: "unpin", label: "Unpin: let the planner plan again", name: "unpin", body: {}, command: "cinquefoil plan unpin" }),
    plans.length > 1 && compare(plans),
    h("div", { class: "card" }, table("Newest first; times are UTC", [
      ["plan", (plan) => h("a", { href: `#/plans/${plan.version}` }, `Plan ${plan.version}`)],
      ["made", (plan) => time(plan.created_at).slice(5, 16), "short"],
      ["because", (plan) => prose(plan.failure || plan.reason), "words"],
      ["state", (plan) => `${state(plan)}${plan.pinned ? ", pinned" : ""}`],
      ["by", (plan) => plan.strategy],
            ["power, W", (plan) => fixed(plan.prediction?.power_w, 0), "number"],
      column("emissions per hour", plans, CARBON, (plan) => plan.prediction?.carbon_gco2e_per_h),
      ...(plans.length > 1 ? [["go back", (plan) => (plan.version === newest ? "it is the newest" : h("a", { href: `#/plans/${newest}..${plan.version}`, "aria-label": `What rolling back to plan ${plan.version} would change` }, "what would change")), "short"],
      ["against the newest", (plan) => (plan.version === newest ? "" : h("a", { href: `#/plans/${plan.version}..${newest}`, "aria-label": `Compare plan ${plan.version} with plan ${newest}` }, "compare"))]] : []),
    ], plans, ["There is no plan. The planner makes one when it knows a GPU and a carbon intensity: ", h("code", {}, "cinquefoil status"), " says what is missing."])));
}

function compare(plans) {
  const choice = (id, label, chosen) => h("label", {}, `${label} `, h("select", { id },
    plans.map((plan) => h("option", { value: plan.version, selected: plan.version === chosen }, `Plan ${plan.version}`))));
  return h("form", { onSubmit: (event) => {
    event.preventDefault();
    const [from, to] = ["from", "to"].map((id) => document.getElementById(id).value);
    location.hash = `#/plans/${from}..${to}`;
  } }, choice("from", "Compare", plans[1].version), choice("to", "with", plans[0].version), h("button", { id: "compare" }, "Compare"));
}

export async function planPage(version) {
  const [plan, now] = await Promise.all([read(`/api/plans/${version}`), read("/api/now")]);
  const before = Number(plan.version) - 1;
  const names = Object.fromEntries(now.status.gpus.map((gpu) => [gpu.uuid, gpuName(gpu)]));
  return h("div", {},
    h("p", {}, h("a", { href: "#/plans" }, "All plans"), before > 0 ? [" · ", h("a", { href: `#/plans/${before}..${plan.version}` }, `what changed since plan ${before}`)] : null),
    h("h1", {}, `Plan ${plan.version}`),
    h("p", { class: "headline" }, `Made ${time(plan.created_at)} UTC by ${plan.strategy}, because ${prose(plan.reason)}. It is ${state(plan)}; its rollout takes ${counted(plan.steps, "step")} and changes ${counted(plan.slice_changes, "slice")}.`),
    plan.degraded && h("p", { class: "warning" }, `▲ ${prose(plan.degraded)}`),
    plan.failure && h("p", { class: "problem" }, `✕ ${plan.failure}`),
    values("More of the plan", plan, STORY, names),
    h(Order, { id: "pin", key: plan.version, label: `Pin plan ${plan.version}: hold it while it is active`, name: "pin", body: { version: plan.version }, command: `cinquefoil plan pin ${plan.version}` }),
    h("div", { class: "flow" },
    before > 0 && h("section", {}, h("h2", {}, `What it changed since plan ${before}`), h(Later, { key: plan.version, waiting: "Comparing…", view: (diff) => changed(diff, gpuNames(now.status.gpus)), load: () => read(`/api/diff?from=${before}&to=${plan.version}`) })),
    h("section", {}, h("h2", {}, "Why"),
    h("div", { "aria-live": "polite" }, h(Later, {
      key: plan.version, waiting: "The planner computes why…", view: explanation,
      load: () => read(`/api/plans/${plan.version}/explanation`),
    }))),
    h("section", {}, h("h2", {}, "Predicted and measured"),
    table("Deviation: of the measured from the predicted", [
      ["quantity", (each) => `${title(each.name)} ${each.model}`],
      ["predicted", (each) => shown(each.name, each.expected), "number"],
      ["measured", (each) => shown(each.name, each.seen), "number"],
      ["deviation", (each) => (each.unlike ? `other ${each.unlike}` : percent(each.deviation)), "number"],
    ], plan.measures, "Nothing was predicted."),
    folded("What else it predicts", plan.prediction, MEASURED, names),
    folded("While it was active", plan.outcome, ["latency_s", "accuracy"], names),
    folded("Known when it was made", plan.inputs, [], names)),
    h("section", {}, h("h2", {}, "What runs where"), segments("Segments", plan.segments, gpuNames(now.status.gpus)))));
}

const folded = (caption, message, hide, names) => h(Folded, { summary: caption, view: () => values(caption, message, hide, names) ?? h("p", { class: "empty" }, "Nothing yet.") });

// Fields that the page shows in words and tables of their own.
const STORY = ["version", "created_at", "state", "strategy", "reason", "steps", "slice_changes", "degraded", "failure", "inputs", "prediction", "outcome"];
const MEASURED = ["power_w", "carbon_gco2e_per_h", "latency_s", "accuracy"];

function explanation(found) {
  const outlooks = { plan: found.plan, "runner-up": found.runner_up?.outlook, BASE: found.base?.outlook };
  return h("div", {},
    found.sentences.map((each) => h("p", {}, prose(each))),
    table("What keeps it from being better", [
      ["constraint", (each) => each.constraint.replaceAll("_", " ")],
      ["used", (each) => percent(finite(each.used)), "number"],
      ["how", (each) => each.sentence],
    ], found.bindings, "No limit is reached."),
    compared("What it promises, and what else would", outlooks));
}

const changes = (diff) => `Starts ${counted(diff.started.length, "segment")}, stops ${diff.stopped.length}, keeps ${diff.kept}.`;

// What a plan changed, in words.
function changed(diff, name) {
  const words = (verb, planned) => planned.length > 0 && h("li", {}, `${verb} `, planned.map((each) => `${each.spec.model}/${each.spec.variant} on ${each.spec.placement.profile}@${each.spec.placement.start} of ${name(each.spec.gpu_uuid, each.node)}`).join(", "));
  return h("div", {}, h("p", {}, changes(diff)), h("ul", {}, words("Starts", diff.started), words("Stops", diff.stopped)));
}

// From the newest plan to an earlier one is what a rollback would do.
export async function differencePage(from, to) {
  const [diff, { plans }, now] = await Promise.all([read(`/api/diff?from=${from}&to=${to}`), read("/api/plans"), read("/api/now")]);
  const name = gpuNames(now.status.gpus);
  const back = Number(from) > Number(to) && plans[0]?.version === from;
  const names = [`plan ${diff.from_version}`, `plan ${diff.to_version}`];
  return h("div", {},
    h("p", {}, h("a", { href: "#/plans" }, "All plans"), names.map((each, n) => [" · ", h("a", { href: `#/plans/${[from, to][n]}` }, each)])),
    h("h1", {}, `From ${names[0]} to ${names[1]}`),
    h("p", { class: "headline" }, changes(diff)),
    back && h(Order, { id: "rollback", label: `Roll back to plan ${to}`, name: "rollback", body: { version: to }, command: `cinquefoil plan rollback ${to}`,
      after: (answer) => { location.hash = `#/plans/${answer.plan.version}`; } }),
    h("h2", {}, "+ Start"), segments("Segments that start", diff.started, name),
    h("h2", {}, "− Stop"), segments("Segments that stop", diff.stopped, name),
    diff.shares.length > 0 && table("Shares that change", [
      ["segment", (each) => each.segment_id],
      ["from", (each) => percent(each.from_share), "number"],
      ["to", (each) => percent(each.to_share), "number"],
    ], diff.shares, ""),
    diff.clocks.length > 0 && table("Clocks that change", [
      ["GPU", (each) => name(each.gpu_uuid)],
      ["from", (each) => (each.from_mhz ? `${each.from_mhz} MHz` : "driver's"), "number"],
      ["to", (each) => (each.to_mhz ? `${each.to_mhz} MHz` : "driver's"), "number"],
    ], diff.clocks, ""),
    h("h2", {}, "What they promise"),
    compared("Predicted when each was made", { [names[0]]: diff.from_outlook, [names[1]]: diff.to_outlook }),
    diff.unlike.map((each) => h("p", { class: "quiet" }, `Not comparable where ${each.sentence}.`)));
}
