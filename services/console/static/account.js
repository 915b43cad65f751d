// Carbon account: what was emitted, beside what BASE would have.
import { Chart } from "./chart.js";
import { Component, failure, h, read, table, tile } from "./dom.js";
import { CARBON, carbon, column, ENERGY, energy, percent, saved, time } from "./units.js";

const WINDOWS = { 24: "last day", 168: "last week", 720: "last 30 days" };
const GROUPS = { model: "by model", node: "by node", zone: "by zone", region: "by region of the client" };
const MOST = 8; // areas of the chart
const NOBODYS = { "(idle)": "var(--line)", "(other)": "var(--quiet)" };

// {detail}: "by/hours", for example "model/24".
export class Account extends Component {
  constructor(props) {
    super(props);
    const [by, hours] = props.detail.split(",");
    this.state = { by: GROUPS[by] ? by : "model", hours: WINDOWS[hours] ? hours : "24" };
  }

  componentDidMount() {
    this.load();
  }

  async load() {
    const { by, hours } = this.state;
    try {
      this.setState({ found: await read(`/api/account?by=${by}&hours=${hours}`), error: null });
    } catch (error) {
      this.setState({ error });
    }
  }

  set(change) {
    this.setState(change, () => {
      history.replaceState(null, "", `#/account/${this.state.by},${this.state.hours}`);
      this.load();
    });
  }

  render(_, { by, hours, found, error }) {
    const choice = (id, label, known, value) => h("label", {}, `${label} `, h("select", { id, onChange: (event) => this.set({ [id]: event.target.value }) },
      Object.entries(known).map(([each, said]) => h("option", { value: each, selected: each === value }, said))));
    return h("div", {},
      h("h1", {}, "Carbon account"),
      h("form", { onSubmit: (event) => event.preventDefault() },
        choice("hours", "Of the", WINDOWS, hours), choice("by", "grouped", GROUPS, by),
        h("a", { href: `/api/account.csv?by=${by}&hours=${hours}`, download: "account.csv" }, "CSV")),
      error && failure(error),
      found && accountView(found, by));
  }
}

// Emissions by whom, over time and in sum, beside BASE.
export function accountView({ rows, hours: whole, until, began, colours, elsewhere }, by) {
  const total = rows.at(-1);
  if (!total?.energy_j) return h("p", { class: "empty" }, "No energy was drawn in this window. The planner writes the account hour by hour, once an agent reports; ", h("code", {}, "cinquefoil status"), " says which agents are connected.");
  const hours = rates(whole, until, began);
  return h("div", {},
    h("p", { class: "headline" }, total.requests > 0 ? `Against BASE, each model's best variant on whole GPUs, ${saved(total)} were saved.` : "No request was answered: nothing was saved."),
    h("div", { class: "tiles" },
      tile("Emitted", carbon(total.carbon_gco2e), `BASE would have emitted ${carbon(total.base_carbon_gco2e)}.`),
      tile("Drawn", energy(total.energy_j), `${percent(total.idle_j / total.energy_j)} of it while idle.`),
      total.cost_eur ? tile("Cost", `${total.cost_eur.toPrecision(3)} EUR`, "Of energy at the wall, at the prices in force.") : null,
      tile("Requests", String(total.requests), total.requests > 0 ? `${carbon(total.gco2e_per_request)} each, idle GPUs included.` : "")),
    h("div", { class: "card" },
    h(Chart, { label: "Emissions by hour, against BASE; the table below has the figures", unit: "gCO₂e per hour", stacked: true, stepped: true,
      x: [...hours.map((each) => each.from), hours.at(-1).to],
      lines: [...emitters(rows, hours, colours ?? {}), { name: "BASE (modelled)", values: hours.map((each) => each.base_carbon_gco2e * each.per_h), dashed: true }].map((line) => ({ ...line, values: [...line.values, line.values.at(-1)] })) }),
    table(`Energy and carbon ${GROUPS[by]}; savings with their 95 % interval, – where nothing was requested`, columns(by, rows, (row) => row.name), rows, ""),
    elsewhere?.length > 0 && table("Elsewhere, for clients of this region, by receipts", [["region", (row) => row.region], column("energy", elsewhere, ENERGY, (row) => row.energy_j), column("emitted", elsewhere, CARBON, (row) => row.carbon_gco2e), ["requests", (row) => String(row.requests), "number"]], elsewhere, ""),
    h("details", { id: "account-hours" }, h("summary", {}, "Hours as a table (UTC, as in the chart)"),
      table("Hours, UTC", columns("hour", hours, (row) => `${time(row.hour)}${row.per_h > 1 ? " (a part)" : ""}`, hours), hours, ""))));
}

// Hours with their ends and the factor from their sums to rates: the last one may not be over, and
// the first one began with the first meter.
export function rates(hours, until, began) {
  const end = Date.parse(until) / 1000, start = Date.parse(began) / 1000 || 0;
  return hours.map((each) => {
    const hour = Date.parse(each.hour) / 1000, to = Math.max(hour + 60, Math.min(hour + 3600, end));
    const from = start < hour + 3600 ? Math.min(Math.max(hour, start), to - 60) : hour;
    return { ...each, from, to, per_h: 3600 / (to - from) };
  });
}

// Who emitted, the largest first; the least of many are added up.
function emitters(rows, hours, colours) {
  const names = rows.slice(0, -1).toSorted((a, b) => b.carbon_gco2e - a.carbon_gco2e).map((row) => row.name);
  const shown = names.length > MOST ? names.slice(0, MOST - 1) : names;
  const of = (some) => hours.map((each) => each.per_h * some.reduce((sum, name) => sum + (each.parts_gco2e[name] ?? 0), 0));
  return [...shown.map((name) => ({ name, values: of([name]), colour: NOBODYS[name] ?? colours[name] })), ...(shown.length < names.length ? [{ name: "others", values: of(names.slice(shown.length)) }] : [])];
}

const served = (row) => row.requests > 0 && row.saved_ratio !== null;
const columns = (first, rows, name) => [
  [first, name],
  column("energy", rows, ENERGY, (row) => row.energy_j),
  column("of it idle", rows, ENERGY, (row) => row.idle_j),
  column("emitted", rows, CARBON, (row) => row.carbon_gco2e),
  ...(rows.some((row) => row.embodied_gco2e > 0) ? [column("embodied", rows, CARBON, (row) => row.embodied_gco2e)] : []),
  column("BASE", rows, CARBON, (row) => row.base_carbon_gco2e),
  column("saved", rows, CARBON, (row) => (served(row) ? row.saved_gco2e : null), (row) => row.saved_error_gco2e),
  ["saved, %", (row) => (served(row) ? percent(row.saved_ratio).replace(" %", "") : "–"), "number"],
  ["requests", (row) => String(row.requests), "number"],
  column("SCI of a request", rows, CARBON, (row) => row.gco2e_per_request),
];
