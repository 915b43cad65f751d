// Nodes and sources: what keeps something from working, and the setting that changes it.
import { h, table } from "./dom.js";
import { age, energy, fixed, provenance } from "./units.js";

const MARKS = { stops: "✕ stops", waits: "… waits", degrades: "▲ degrades" };
const ORDER = Object.keys(MARKS);

export function nodesPage({ status }) {
  const sorted = status.conditions.toSorted((a, b) => ORDER.indexOf(a.effect) - ORDER.indexOf(b.effect));
  const nodes = [...new Set([...status.gpus.map((gpu) => gpu.node), ...status.away])].map((name) => ({
    name,
    gpus: status.gpus.filter((gpu) => gpu.node === name),
    away: status.away.includes(name),
    pue: status.pues.find((each) => each.node === name),
  }));
  const digests = Object.entries(status.digests);
  const differ = new Set(digests.map(([, digest]) => digest)).size > 1;
  return h("div", {},
    h("h1", {}, "Nodes and sources"),
    status.problems.map((each) => h("p", { class: "problem", role: "alert" }, `✕ ${each}`)),
    h("h2", {}, "Conditions"),
    table("What keeps something from working now", [
      ["condition", (each) => each.kind],
      ["effect", (each) => MARKS[each.effect] ?? each.effect],
      ["of", (each) => each.subject],
      ["what is wrong", (each) => each.sentence],
      ["setting that changes it", (each) => (each.setting ? h("code", {}, each.setting) : "–")],
    ], sorted, status.problems.length ? "Conditions are not known: the planner does not answer." : "✓ Nothing keeps a node, model, plan or zone from working."),
    h("h2", {}, "Nodes"),
    table("Nodes", [
      ["node", (each) => each.name],
      ["agent", (each) => (each.away ? "✕ away" : "✓ connected")],
      ["GPUs", (each) => each.gpus.map((gpu) => gpu.type).join(", ") || "–"],
      ["power", (each) => fixed(each.gpus.reduce((sum, gpu) => sum + gpu.power_w, 0), 0, " W"), "number"],
      ["energy", (each) => energy(each.gpus.reduce((sum, gpu) => sum + gpu.energy_j, 0)), "number"],
      ["PUE", (each) => (each.pue ? `${fixed(each.pue.pue, 2)}${each.pue.measured ? " (measured)" : ""}` : "–"), "number"],
    ], nodes, "No node is known: the planner does not answer. Start it with cinquefoil up."),
    h("h2", {}, "Sources"),
    table("Carbon intensity", [
      ["zone", (zone) => zone.zone],
      ["signal", (zone) => zone.signal],
      ["gCO₂e/kWh", (zone) => (zone.percentile === null ? fixed(zone.intensity_gco2e_per_kwh, 1) : `${fixed(zone.percentile, 0)}th percentile`), "number"],
      ["age", (zone) => age(zone.staleness_s), "number"],
      ["known how", (zone) => `${["held", "assumed"].includes(zone.provenance) ? "▲ " : ""}${provenance(zone)}`],
    ], status.zones, "No carbon intensity is known. Start the carbon service: cinquefoil up, or cinquefoil carbon serve."),
    h("h2", {}, "Deployment files"),
    differ && h("p", { class: "warning" }, "▲ The files differ; SIGHUP has a service read its file again."),
    table("Digests", [["reader", ([name]) => name], ["digest", ([, digest]) => h("code", {}, digest)]], digests, "No digest is known."));
}
