// Why: what is wrong now, on every page, with the setting and the command that change it.
import { h, said, SERVICES, unanswered } from "./dom.js";
import { age, counted, fixed, prose } from "./units.js";

const MARKS = { stops: "✕", waits: "…", degrades: "▲" };
const ORDER = Object.keys(MARKS);

export const byEffect = (conditions) => conditions.toSorted((a, b) => ORDER.indexOf(a.effect) - ORDER.indexOf(b.effect));

// What changes a condition.
export const remedy = ({ setting, command }) => [setting && ["Setting: ", h("code", {}, setting), ". "], command && ["Run: ", h("code", {}, command)]];

const sentence = (each) => h("p", { class: each.effect === "stops" ? "problem" : "warning" }, `${MARKS[each.effect] ?? "▲"} ${capital(each.sentence)}. `, remedy(each));

const capital = (text) => prose(text.charAt(0).toUpperCase() + text.slice(1));

export const silent = (status, service) => status.problems.find((each) => each.startsWith(`${service} at`));

// What keeps a model from being served or requested, in one sentence with its command.
export function unserved(model, status) {
  if (silent(status, "router")) return unanswered("router");
  const own = byEffect(status.conditions).find(({ subject }) => subject === `model/${model}` || subject.startsWith(`variant/${model}/`));
  const found = own ?? byEffect(status.conditions).find(({ subject }) => !/^(model|variant)\//.test(subject));
  const served = status.models.some((each) => each.model === model && each.variants.some((variant) => variant.connected));
  if (own || (found && !served)) return [`${capital(found.sentence)}. `, remedy(found)];
  if (served) return ["Send requests: ", h("code", {}, `cinquefoil load ${model} --rps 50`)];
  if (silent(status, "planner")) return unanswered("planner");
  return ["Its workers load, or no plan has a segment of it: ", h("code", {}, `cinquefoil models show ${model}`), " says which."];
}

// What makes a model miss its objective, with the command that says or changes it.
export function late(model, status) {
  const own = byEffect(status.conditions).find(({ subject }) => subject === `model/${model}` || subject.startsWith(`variant/${model}/`));
  if (own) return [`${capital(own.sentence)}. `, remedy(own)];
  return ["What limits the plan: ", h("code", {}, "cinquefoil plan explain"), "."];
}

// {present, most}: the newest document of /api/events, and how many conditions are said in full.
export function Why({ present: { status, stale }, most }) {
  const { problems, conditions, grid_events: events = [], sites = [], carbon_budgets: budgets = [] } = status;
  return h("div", {},
    Object.entries(stale).map(([service, seconds]) => h("p", { class: "warning", role: "status" }, `▲ The ${SERVICES[service] ?? service} does not answer. What follows of it is ${age(seconds)} old. Start it: `, h("code", {}, `cinquefoil ${service} serve`))),
    problems.filter((each) => !(each.split(" at ")[0] in stale)).map((each) => h("p", { class: "problem", role: "alert" }, "✕ ", said(each))),
    events.map((each) => h("p", { class: "warning", key: each.event_id }, `▲ ${each.sentence}`, sites.filter((site) => site.site === each.site).map((site) => ` ${fixed(site.metered_w, 0, " W")} at the wall now.`))),
    budgets.map((each) => h("p", { class: each.short ? "warning" : "quiet", key: each.per }, each.short ? "▲ " : "", `${each.sentence}.`)),
    byEffect(conditions).slice(0, most).map(sentence),
    !problems.length && !conditions.length && h("p", { class: "unseen" }, "✓ Nothing is wrong."),
    most > 0 && conditions.length > most && h("p", {}, h("a", { href: "#/nodes", id: "conditions" }, `${counted(conditions.length, "condition")}, and what changes them`)));
}
