// Models: what each promises, what serves it, and how its requests are ordered.
import { Component, h, read, table } from "./dom.js";
import { fill, line, swatch } from "./pictures.js";
import { Order, session } from "./session.js";
import { energy, fixed, ms, percent } from "./units.js";
import { unserved } from "./why.js";

const DISCIPLINES = { fcfs: "first come, first served", edf: "earliest deadline first", priority: "by priority", ssjf: "short answers first" };
const CHOICES = {
  shares: "by the plan's shares", idle_longest: "the one that was idle longest",
  least_expected_completion: "the one that answers first", prefix: "the one that knows the prompt's beginning",
  predicted_tokens: "the one with the fewest tokens left to generate",
  carbondis: "CARBONDIS", carbon_aware: "least carbon in time",
};

export async function modelsPage({ status, account, palette }) {
  const { models } = await read("/api/models");
  return h("div", {}, h("h1", {}, "Models"), h("div", { class: "flow" }, models.map((model) =>
    one(model, status.models.find((each) => each.model === model.model), account.find((row) => row.name === model.model), palette, status))));
}

function one(model, now, row, palette, status) {
  const serving = new Map((now?.variants ?? []).map((each) => [each.variant, each]));
  const best = Math.max(...model.variants.map((each) => each.accuracy));
  return h("section", { "aria-label": model.model },
    h("h2", {}, swatch(line(palette, model.model)), model.model),
    h("p", { class: "headline" },
      `${fixed(model.slo_percentile, 0)} % of requests are to be answered within ${ms(model.slo_latency_s)}; `,
      now?.answered ? `p95 is ${ms(now.p95_s)}, accuracy ${fixed(now.accuracy, 4)} (${percent(now.accuracy / best, 1)} of the best variant's). ` : ["none was answered. ", unserved(model.model, status)],
      row?.requests > 0 ? `Each takes ${energy(row.energy_j / row.requests)}.` : ""),
    table(`Variants of ${model.model}, accuracy in ${model.accuracy_unit}`, [
      ["variant", (each) => [swatch(fill(palette, model.model, each.variant)), each.variant]],
      ["accuracy", (each) => fixed(each.accuracy, 4), "number"],
      ["of the best", (each) => percent(each.accuracy / best, 1), "number"],
      ["share", (each) => (serving.has(each.variant) ? percent(serving.get(each.variant).share) : "not used"), "number"],
      ["workers", (each) => (serving.has(each.variant) ? `${serving.get(each.variant).connected} of ${serving.get(each.variant).instances}` : "0"), "number"],
    ], model.variants, "It has no variant."),
    h(Policy, { key: model.model, model }));
}

class Policy extends Component {
  render({ model }, { discipline = model.discipline, instance_choice = model.instance_choice }) {
    const known = DISCIPLINES[model.discipline] && CHOICES[model.instance_choice];
    const words = known ? `Next request: ${DISCIPLINES[model.discipline]}. Instance: ${CHOICES[model.instance_choice]}.` : ["How its requests are ordered comes with the first plan: ", h("code", {}, "cinquefoil plan watch"), " shows it."];
    if (!session.changes) return h("p", {}, words);
    const choice = (label, name, known, value) => h("label", {}, `${label} `, h("select", { id: `${name}-${model.model}`,
      onChange: (event) => this.setState({ [name]: event.target.value }) },
    Object.entries(known).map(([each, said]) => h("option", { value: each, selected: each === value }, said))));
    const changed = discipline !== model.discipline || instance_choice !== model.instance_choice;
    return h("div", {}, h("p", {}, words), h("form", { onSubmit: (event) => event.preventDefault() },
      choice("Next request", "discipline", DISCIPLINES, discipline),
      choice("Instance", "instance_choice", CHOICES, instance_choice)),
    changed && h("p", {}, `From "${model.discipline}, ${model.instance_choice}" to "${discipline}, ${instance_choice}"; routers follow at once, and waiting requests are kept.`),
    changed && h(Order, { id: `policy-${model.model}`, label: "Change the policy", name: "policy", body: { model: model.model, discipline, instance_choice } }));
  }
}
