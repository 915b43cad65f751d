// Nodes and sources: what keeps something from working, and the setting that changes it.
import { h, said, table, unanswered } from "./dom.js";
import { Order } from "./session.js";
import { AGE, column, ENERGY, fixed, provenance } from "./units.js";
import { byEffect, remedy, silent } from "./why.js";

const MARKS = { stops: "✕ stops", waits: "… waits", degrades: "▲ degrades" };

// Types of GPUs with how many there are of each: "2 × a100-40gb, l4".
function kinds(gpus) {
  const counts = new Map();
  for (const { type } of gpus) counts.set(type, (counts.get(type) ?? 0) + 1);
  return [...counts].map(([type, count]) => (count > 1 ? `${count} × ${type}` : type)).join(", ");
}

export function nodesPage({ status }) {
  const nodes = [...new Set([...status.gpus.map((gpu) => gpu.node), ...status.away])].map((name) => ({
    name,
    gpus: status.gpus.filter((gpu) => gpu.node === name),
    away: status.away.includes(name),
    order: status.orders.find((each) => each.node === name),
    pue: status.pues.find((each) => each.node === name),
  }));
  const digests = Object.entries(status.digests);
  const differ = new Set(digests.map(([, digest]) => digest)).size > 1;
  return h("div", {},
    h("h1", {}, "Nodes and sources"),
    h("div", { class: "flow" },
    h("section", { class: "whole" }, h("h2", {}, "Conditions"),
    table("What keeps something from working now", [
      ["condition", (each) => each.kind],
      ["effect", (each) => MARKS[each.effect] ?? each.effect, "short"],
      ["of", (each) => each.subject],
      ["what is wrong", (each) => each.sentence],
      ["what changes it", remedy],
    ], byEffect(status.conditions), silent(status, "planner") ? "Conditions are not known: the planner does not answer." : "✓ Nothing keeps a node, model, plan or zone from working.")),
    h("section", { class: "whole" }, h("h2", {}, "Nodes"),
    table("What each has, draws and is used for", [
      ["node", (each) => each.name],
      ["agent", (each) => (each.away ? "✕ away" : "✓ connected"), "short"],
      ["GPUs", (each) => kinds(each.gpus) || (each.away ? "not known: it is away" : "none"), "short"],
      ["power, W", (each) => fixed(each.gpus.reduce((sum, gpu) => sum + gpu.power_w, 0), 0), "number"],
      column("energy", nodes, ENERGY, (each) => each.gpus.reduce((sum, gpu) => sum + gpu.energy_j, 0)),
      ["PUE", (each) => (each.pue ? `${fixed(each.pue.pue, 2)}${each.pue.measured ? " (measured)" : ""}` : each.away ? "away" : "1 (not stated)"), "number"],
      ["use", (each) => (each.order ? `▲ out of use${each.order.drain ? ", drained" : " from the next plan"}${each.order.principal ? `, by ${each.order.principal}` : ""}` : "✓ in use"), "short"],
      ["change", (each) => h("a", { href: `#/nodes/${each.name}`, "aria-label": `${each.order ? "Use" : "Take out of use:"} ${each.name}` }, each.order ? "use again" : "take out of use"), "short"],
    ], nodes, silent(status, "planner") ? "Nodes are not known: the planner does not answer." : "No node has a GPU that the planner knows."),
    status.away.length > 0 && h("p", { class: "quiet" }, "An agent that is away is started on its node: ", h("code", {}, `cinquefoil gpuagent serve --node ${status.away[0]}`))),
    h("section", {}, h("h2", {}, "Sources"),
    table("Carbon intensity", [
      ["zone", (zone) => zone.zone],
      ["signal", (zone) => zone.signal],
      ["gCO₂e/kWh", (zone) => (zone.percentile === null ? fixed(zone.intensity_gco2e_per_kwh, 1) : `${fixed(zone.percentile, 0)}th percentile`), "number"],
      column("age", status.zones, AGE, (zone) => zone.age_s),
      ["known how", (zone) => `${["held", "assumed"].includes(zone.provenance) ? "▲ " : ""}${provenance(zone)}`],
    ], status.zones, "No carbon intensity is known. Start the carbon service: cinquefoil up, or cinquefoil carbon serve.")),
    h("section", {}, h("h2", {}, "Deployment files"),
    differ && h("p", { class: "warning" }, "▲ The files differ; SIGHUP has a service read its file again."),
    table("Who reads which; the same digest is the same file", [["reader", ([name]) => name], ["digest", ([, digest]) => h("code", {}, digest)]], digests, "No digest is known: no service answers. Start them with cinquefoil up."))));
}

// One node: taking it out of use, after a look at what would follow, and into use again.
export function nodePage({ status }, name) {
  const gpus = status.gpus.filter((gpu) => gpu.node === name);
  const order = status.orders.find((each) => each.node === name);
  const without = new URLSearchParams(gpus.map((gpu) => ["without", gpu.uuid]));
  if (!gpus.length && !order) {
    const why = silent(status, "planner") ? unanswered("planner") : said(status.away.includes(name) ? `Its agent is away, and nothing is known of its GPUs. Start it there: \`cinquefoil gpuagent serve --node ${name}\`.` : "No node of this name has a GPU; `cinquefoil nodes list` has all.");
    return h("div", {}, h("h1", {}, name), h("p", { class: "empty" }, why), h("p", {}, h("a", { href: "#/nodes" }, "All nodes")));
  }
  return h("div", {},
    h("p", {}, h("a", { href: "#/nodes" }, "All nodes")),
    h("h1", {}, name),
    order
      ? [h("p", { class: "headline" }, `It is out of use${order.principal ? `, by order of ${order.principal}` : ""}: plans leave it empty.`),
        h(Order, { id: "uncordon", key: "uncordon", label: `Use ${name} again`, name: "uncordon", body: { node: name }, command: `cinquefoil nodes uncordon ${name}` })]
      : [h("p", { class: "headline" }, `Plans use its ${gpus.length === 1 ? "GPU" : `${gpus.length} GPUs`}. `, h("a", { href: `#/what-if/${without}`, id: "without" }, "What the plan would be without it")),
        h("h2", {}, "Take it out of use"),
        h("p", {}, "To drain it moves what runs there to other nodes now, as far as they have room. To cordon it leaves that to the next plan, whatever causes one."),
        h(Order, { id: "drain", key: "drain", label: `Drain ${name}`, name: "cordon", body: { node: name, drain: true }, command: `cinquefoil nodes drain ${name}` }),
        h(Order, { id: "cordon", key: "cordon", label: `Cordon ${name}`, name: "cordon", body: { node: name }, command: `cinquefoil nodes cordon ${name}` })]);
}
