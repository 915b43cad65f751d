// What plans promise, side by side, and where their segments run.
import { h, table } from "./dom.js";
import { gpuBar } from "./pictures.js";
import { fixed, gpuName, ms, percent } from "./units.js";

export const finite = (value) => (value === "Infinity" || value === "NaN" ? null : value);
const slice = ({ placement }) => `${placement.profile}@${placement.start}`;

// The name of a GPU by its UUID, as people say it; of one that has left, its node's and the beginning of its UUID.
export function gpuNames(gpus) {
  const known = new Map(gpus.map((gpu) => [gpu.uuid, gpuName(gpu)]));
  return (uuid, node = "") => known.get(uuid) ?? `${node && `${node}/`}${uuid.slice(0, 8)}`;
}

export function segments(caption, planned, name) {
  return table(caption, [
    ["GPU", (each) => name(each.spec.gpu_uuid, each.node)],
    ["slice", (each) => slice(each.spec)],
    ["runs", (each) => `${each.spec.model}/${each.spec.variant}`],
    ["batch × processes", (each) => `${each.spec.batch_size} × ${each.spec.processes}`, "number"],
    ["share", (each) => percent(each.share), "number"],
    ["req/s", (each) => fixed(each.throughput_rps, 0), "number"],
    ["latency", (each) => ms(finite(each.latency_s)), "number"],
  ], planned, "None.");
}

// A plan's segments as the slices of the GPUs that they are on.
const planned = (gpus, given) => gpus.map((gpu) => ({
  ...gpu,
  slices: given.filter((each) => each.spec.gpu_uuid === gpu.uuid).map(({ spec }) => ({
    placement: slice(spec), start: spec.placement.start, model: spec.model, variant: spec.variant,
    compute_slices: parseInt(spec.placement.profile, 10) || gpu.compute_slices,
  })),
}));

// The GPUs as they are, and below each as a plan would have it.
export function ghosts(gpus, given, palette) {
  const then = planned(gpus, given);
  return h("ul", { class: "bars" }, gpus.map((gpu, n) => h("li", {},
    h("span", {}, gpuName(gpu), h("small", {}, ` ${gpu.type}; above: now, below: then`)),
    gpuBar(gpu, palette), gpuBar(then[n], palette, "ghost"))));
}
