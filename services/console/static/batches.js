// Batches: how far they are, when what waits will run, and what waiting saves.
import { Chart } from "./chart.js";
import { Component, failure, h, read, table, tile } from "./dom.js";
import { carbon, counted, fixed, percent, time, word } from "./units.js";

const EVERY_MS = 5000;
const CAUSES = {
  CLEAN: "clean hours", DUE: "a deadline leaves no later time", ROOM: "in room that interactive requests leave",
  LATER: "waits: cleaner hours come", NO_ROOM: "waits: no room", NOTHING_WAITS: "nothing is left", HELD: "waits: less power is required",
  MEASURED: "for a moment, to measure the room",
};

export class Batches extends Component {
  componentDidMount() {
    this.load();
    this.timer = setInterval(() => this.load(), EVERY_MS);
  }

  componentWillUnmount() {
    clearInterval(this.timer);
  }

  async load() {
    try {
      this.setState({ found: await read("/api/batches"), error: null });
    } catch (error) {
      this.setState({ error });
    }
  }

  render(_, { found, error }) {
    return h("div", {}, h("h1", {}, "Batches"), error && failure(error), found ? batchesView(found) : !error && h("p", {}, "Reading…"));
  }
}

export function batchesView({ batches, releases, served }) {
  if (!served) return h("p", { class: "empty" }, "This deployment has no batch service. Add a section ", h("code", {}, "batch: {}"), " to its file, and start it: ", h("code", {}, "cinquefoil batch serve"), ".");
  const waiting = batches.filter((each) => each.state === "BATCH_STATE_IN_PROGRESS");
  const left = waiting.reduce((sum, each) => sum + Number(each.lines) - Number(each.completed) - Number(each.failed), 0);
  const sum = (field) => releases.reduce((all, each) => all + each[field], 0);
  const atOnce = sum("at_once_gco2e"), planned = sum("planned_gco2e"), own = sum("own_pool_gco2e");
  const late = releases.flatMap((each) => each.shortages);
  return h("div", {},
    h("p", { class: "headline" }, left ? `${counted(left, "request")} wait, in ${waiting.length === 1 ? "one batch" : `${waiting.length} batches`}.` : "Nothing waits."),
    late.map((each) => h("p", { class: "problem" }, `✕ ${each.text}`)),
    left > 0 && h("div", { class: "tiles" },
      tile("By plan", carbon(planned), "Marginal emissions of all that waits."),
      tile("Waiting saves", carbon(Math.max(atOnce - planned, 0)), atOnce > 0 ? `${percent((atOnce - planned) / atOnce)} of ${carbon(atOnce)}, had it run at once.` : "The grid's future is not known."),
      tile("Sharing saves", carbon(Math.max(own - atOnce, 0)), own > 0 ? `Replicas of its own would emit ${carbon(own)}.` : "")),
    releases.map(planView),
    table("Batches, the newest first", [
      ["batch", (each) => each.id],
      ["model", (each) => each.model],
      ["state", (each) => word(each.state, "BATCH_STATE_")],
      ["answered", (each) => `${each.completed}/${each.lines}`, "number"],
      ["failed", (each) => String(each.failed), "number"],
      ["within", (each) => `${fixed(parseFloat(each.window) / 3600, 0)} h of ${time(each.created_at)}`],
      ["expected", (each) => each.outlook?.text ?? (each.ended_at ? `ended ${time(each.ended_at)}` : "–")],
      ["emitted", (each) => carbon(each.carbon_gco2e), "number"],
    ], batches, ["There is no batch. Begin one: ", h("code", {}, "cinquefoil batch submit FILE"), "."]));
}

// A model's 48 hours: the grid, and below it on the same axis what runs.
function planView({ model, periods, done_by: done }) {
  if (!periods.length) return null;
  const seconds = (text) => Date.parse(text) / 1000;
  const x = [...periods.map((each) => seconds(each.since)), seconds(periods.at(-1).until)];
  const held = (values) => [...values, values.at(-1)];
  const grid = periods.map((each) => each.intensity_gco2e_per_kwh || null);
  return h("section", { "aria-label": `Plan of ${model}` },
    h("h2", {}, model), h("p", { class: "quiet" }, done ? `All that waits is answered by ${time(done)} UTC.` : "Not all of it is answered within 48 hours."),
    h("div", { class: "card" },
      h(Chart, { label: `Carbon intensity for ${model}, forecast; the table below has the figures`, unit: "gCO₂e/kWh", stepped: true, fromZero: true, x, lines: [{ name: "grid (forecast)", values: held(grid), dashed: true }] }),
      h(Chart, { label: `Waiting requests of ${model} that run; the table below has the figures`, unit: "req/s", stepped: true, stacked: true, x, lines: [
        { name: "in room", values: held(periods.map((each) => each.rate_rps - each.woken_rps)) },
        { name: "in replicas powered for it", values: held(periods.map((each) => each.woken_rps)) }] }),
      h("details", {}, h("summary", {}, "Hours as a table (UTC)"),
        table(`Hours of ${model}, UTC`, [
          ["from", (each) => time(each.since)],
          ["req/s", (each) => fixed(each.rate_rps, 2), "number"],
          ["room, req/s", (each) => fixed(each.room_rps, 2), "number"],
          ["gCO₂e/kWh", (each) => fixed(each.intensity_gco2e_per_kwh || null, 0), "number"],
          ["why", (each) => CAUSES[each.cause.replace("RELEASE_CAUSE_", "")] ?? ""],
        ], periods, ""))));
}
