// What a plan promises, beside what runs now under the same circumstances: only like is compared with like.
import { h, tile } from "./dom.js";
import { finite } from "./outlook.js";
import { line, swatch } from "./pictures.js";
import { carbon, counted, fixed, ms, percent } from "./units.js";

const SAME_RPS = 0.01; // of what is unserved
const MOST_MODELS = 12;

// {plan, unchanged}: outlooks of an explanation; unchanged is absent where nothing runs. models: of the status.
export function cards({ plan, unchanged }, models, palette) {
  const names = Object.keys(plan.accuracy).sort();
  const short = (outlook, name) => (outlook?.unserved_rps[name] ?? 0) > SAME_RPS;
  const alike = unchanged && names.every((name) => Math.abs((plan.unserved_rps[name] ?? 0) - (unchanged.unserved_rps[name] ?? 0)) <= SAME_RPS);
  const beside = (words, change) => (unchanged ? h("p", {}, `${words} with what runs now`, alike ? change : null, ".") : h("p", {}, "Nothing runs now."));
  const late = (value) => (finite(value) === null ? "Too late" : ms(value));
  return h("div", { class: "outcome" },
    unchanged && !alike && h("p", { class: "warning" }, `▲ What runs now would leave ${names.filter((name) => short(unchanged, name)).map((name) => `${fixed(unchanged.unserved_rps[name], 1)} req/s of ${name}`).join(", ") || "nothing"} unserved; this plan ${names.some((name) => short(plan, name)) ? "leaves other load unserved" : "serves all"}. Their power and emissions do not compare.`),
    h("div", { class: "tiles" },
      card("Emissions", [carbon(plan.carbon_gco2e_per_h), "/h"], beside(carbon(unchanged?.carbon_gco2e_per_h), less(plan.carbon_gco2e_per_h, unchanged?.carbon_gco2e_per_h))),
      card("Power", [fixed(plan.power_w, 0), " W"], beside(fixed(unchanged?.power_w, 0, " W"), less(plan.power_w, unchanged?.power_w))),
      card("GPUs powered", [String(plan.gpus), ""], beside(String(unchanged?.gpus), null)),
      names.slice(0, MOST_MODELS).map((name) => {
        const slo = models.find((each) => each.model === name)?.slo_latency_s, own = finite(plan.latency_s[name]);
        const missed = short(plan, name) || own === null || own > slo;
        return card([swatch(line(palette, name)), name], [late(plan.latency_s[name]), ` p95${slo ? ` of ${ms(slo)}` : ""}`],
          [beside(late(unchanged?.latency_s[name]), null),
            h("p", {}, `Accuracy ${fixed(plan.accuracy[name], 4)}`, unchanged?.accuracy[name] ? points(plan.accuracy[name], unchanged.accuracy[name]) : null, "."),
            short(plan, name) && h("p", { class: "bad" }, `${fixed(plan.unserved_rps[name], 1)} req/s stay unserved.`)], missed ? "bad" : "");
      })),
    names.length > MOST_MODELS && h("p", { class: "quiet" }, `${counted(names.length - MOST_MODELS, "more model")} in the table below.`));
}

const card = (name, [figure, unit], words, kind = "") => tile(name, [figure, h("small", {}, unit)], words, kind);

function less(then, now) {
  if (!(now > 0)) return null;
  const change = then / now - 1;
  return Math.abs(change) < 0.005 ? ": the same" : [": ", h("strong", { class: change < 0 ? "good" : "bad" }, `${change < 0 ? "−" : "+"}${percent(Math.abs(change))}`)];
}

function points(then, now) {
  const change = (then - now) * 100;
  return Math.abs(change) < 0.005 ? ", the same" : [", ", h("strong", { class: change > 0 ? "good" : "bad" }, `${change < 0 ? "−" : "+"}${fixed(Math.abs(change), 2)} points`)];
}
