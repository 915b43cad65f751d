// Quantities in words. Absent figures are "–".
const NONE = "–";
const known = (value) => value !== null && value !== undefined && value !== "" && Number.isFinite(Number(value));
const scaled = (value, units) => {
  const [factor, unit] = units.find(([each]) => Math.abs(value) >= each) ?? units.at(-1);
  return Math.abs(value / factor) < 0.01 ? `< 0.01 ${unit}` : `${Math.abs(value / factor) >= 1e3 ? (value / factor).toFixed(0) : (value / factor).toPrecision(3)} ${unit}`;
};

const unsigned = (text) => text.replace(/^-(?=0(\.0*)?$)/, ""); // a zero
export const fixed = (value, digits, unit = "") => (known(value) ? `${unsigned(Number(value).toFixed(digits))}${unit}` : NONE);
export const ms = (seconds) => (known(seconds) ? `${(seconds * 1e3).toFixed(0)} ms` : NONE);
export const percent = (ratio, digits = 0) => (known(ratio) ? `${unsigned((ratio * 100).toFixed(digits))} %` : NONE);
export const counted = (count, noun) => `${count} ${noun}${Number(count) === 1 ? "" : "s"}`;
export const ENERGY = [[3.6e6, "kWh"], [3600, "Wh"], [1, "J"]];
export const CARBON = [[1e3, "kgCO₂e"], [1, "gCO₂e"], [1e-3, "mgCO₂e"], [1e-6, "µgCO₂e"]];
export const energy = (joules) => (known(joules) ? Number(joules) === 0 ? "0 J" : scaled(Number(joules), ENERGY) : NONE);
export const carbon = (grams) => (known(grams) ? Number(grams) === 0 ? "0 gCO₂e" : scaled(Number(grams), CARBON) : NONE);
// A quantity and the half-width of its interval, in one unit and to the same digit.
const within = (value, half, units) => {
  const larger = Math.max(Math.abs(value), Math.abs(half));
  if (!larger) return `0 ${units.find(([factor]) => factor === 1)[1]}`;
  const [factor, unit] = units.find(([each]) => larger >= each) ?? units.at(-1);
  const digits = Math.min(Math.max(2 - Math.floor(Math.log10(larger / factor || 1)), 0), 3);
  const least = 10 ** -digits;
  const width = half > 0 && half / factor < least ? `< ${least.toFixed(digits)}` : (half / factor).toFixed(digits);
  return `${(value / factor).toFixed(digits)} ± ${width} ${unit}`;
};
export const AGE = [[3600, "h"], [60, "min"], [1, "s"]];

// A column of a table in one unit, that of its largest value, with as many digits in each row; error: half-width of the interval.
export function column(heading, rows, units, value, error) {
  const most = Math.max(0, ...rows.map((row) => (known(value(row)) ? Math.abs(value(row)) : 0)));
  const [factor, unit] = units.find(([each]) => most >= each) ?? units.at(-1);
  const digits = Math.min(Math.max(2 - Math.floor(Math.log10(most / factor || 1)), 0), 3);
  const least = 10 ** -digits;
  const shown = (each) => (each !== 0 && Math.abs(each) / factor < least ? `< ${least}` : (each / factor).toFixed(digits));
  return [`${heading}, ${unit}`, (row) => (known(value(row)) ? `${shown(Number(value(row)))}${error && known(error(row)) ? ` ± ${shown(Number(error(row)))}` : ""}` : NONE), "number"];
}
export const age = (seconds) =>
  known(seconds) ? (seconds < 90 ? `${seconds.toFixed(0)} s` : seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(0)} h`) : NONE;
export const time = (text) => (text ?? NONE).slice(0, 19).replace("T", " ");
export const stamp = (s) => time(new Date(s * 1e3).toISOString()); // of seconds since 1970
export const gpuName = (gpu) => `${gpu.node}/${gpu.index}`;
// Words of services as they are set here: CO₂, minus signs and arrows.
export const prose = (text) => text.replaceAll("CO2e", "CO₂e").replaceAll(" -> ", " → ").replace(/(^|[ (])-(?=\d)/g, "$1−");
export const word = (name, prefix) => name.replace(prefix, "").toLowerCase().replaceAll("_", " ");

// What was saved against BASE, with the half-width of its 95 % interval; absent before any request.
export const saved = (row) =>
  row && known(row.saved_ratio) && row.requests > 0
    ? `${within(row.saved_gco2e, row.saved_error_gco2e, CARBON)} (${percent(row.saved_ratio)})`
    : NONE;

// How an intensity is known. What a deployment makes up or states was not measured by anybody.
const GIVEN = {
  synthetic: "made up by the synthetic source",
  static: "stated in the deployment file",
};
export const provenance = (zone) => {
  const fresh = !["held", "assumed"].includes(zone.provenance);
  return (fresh && GIVEN[zone.source]) || `${zone.provenance} by ${zone.source}`;
};
