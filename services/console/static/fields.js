// Fields of messages by their names, whose suffix is their unit: a field that is new is shown, too.
import { table } from "./dom.js";
import { age, carbon, energy, fixed, ms, percent } from "./units.js";

const UNITS = [
  ["_gco2e_per_kwh", (value) => fixed(value, 1, " gCO₂e/kWh")],
  ["_gco2e_per_h", (value) => `${carbon(value)}/h`],
  ["_gco2e", carbon],
  ["_rps", (value) => fixed(value, 1, " req/s")],
  ["_per_s", (value) => fixed(value, 1, "/s")],
  ["_mhz", (value) => `${value} MHz`],
  ["_s", (value) => (value < 10 ? ms(value) : age(value))],
  ["_w", (value) => fixed(value, 0, " W")],
  ["_j", energy],
];
const QUANTITIES = {
  share: (value) => percent(value, 1), gap: (value) => percent(value, 1), floor: (value) => percent(value, 1),
  accuracy: (value) => fixed(value, 4), objective: (value) => fixed(value, 2, " points"),
};
const unit = (name) => UNITS.find(([suffix]) => name.endsWith(suffix)) ?? ["", QUANTITIES[name.split("_").at(-1)]];

export const title = (name) => name.slice(0, name.length - unit(name)[0].length).replaceAll("_", " ").replace(/^gpus$/, "GPUs");

export function shown(name, value, names = {}) {
  if (value === null || value === undefined || value === "" || ["NaN", "Infinity"].includes(value)) return "–";
  if (Array.isArray(value)) return value.map((each) => shown(name, each, names)).join(", ");
  if (typeof value === "boolean") return value ? "yes" : "no";
  const number = Number(value); // 64-bit numbers come as text
  if (!Number.isFinite(number)) return names[value] ?? value;
  const [, words] = unit(name);
  return words ? words(number) : String(Number(number.toPrecision(4)));
}

const lists = (value) => Array.isArray(value) && typeof value[0] === "object";
const empty = (value) => value === null || value === "" || (typeof value === "object" && !Object.keys(value).length);

// [label, text] of each value of a message, of nested messages and of maps; lists of messages are left out.
export function facts(message, hide = [], names = {}, at = "") {
  return Object.entries(message ?? {}).flatMap(([name, value]) => {
    if (hide.includes(name) || lists(value) || empty(value)) return [];
    const label = `${at}${title(name)}`;
    if (typeof value !== "object" || Array.isArray(value)) return [[label, shown(name, value, names)]];
    if (!unit(name)[1]) return facts(value, [], names, `${label} `);
    return Object.entries(value).map(([key, each]) => [`${label} ${names[key] ?? key}`, shown(name, each, names)]); // a map
  });
}

// A row per value; null where there is none.
export function values(caption, message, hide, names) {
  const found = facts(message, hide, names);
  return found.length ? table(caption, [["what", ([label]) => label], ["value", ([, text]) => text, "number"]], found) : null;
}

// A column per message of one kind, a row for each of their fields.
export function compared(caption, messages, names) {
  const found = Object.entries(messages).filter(([, each]) => each).map(([name, each]) => [name, new Map(facts(each, [], names))]);
  const labels = [...new Set(found.flatMap(([, each]) => [...each.keys()]))];
  return table(caption, [
    ["quantity", (label) => label],
    ...found.map(([name, each]) => [name, (label) => each.get(label) ?? "–", "number"]),
  ], labels, "");
}
