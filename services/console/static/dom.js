// Elements from data. Text is always text: nothing that a service says becomes markup.
const SVG = "http://www.w3.org/2000/svg";

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

export const h = (tag, attributes = {}, ...children) =>
  made(document.createElement(tag), attributes, children);

export const s = (tag, attributes = {}, ...children) =>
  made(document.createElementNS(SVG, tag), attributes, children);

// Replaces a page; what was unfolded stays so, and the focus stays where it was.
export function show(place, page) {
  const open = new Set([...place.querySelectorAll("details[open]")].map((each) => each.id));
  const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
  place.replaceChildren(page);
  for (const each of place.querySelectorAll("details")) if (each.id && open.has(each.id)) each.open = true;
  if (focused) document.getElementById(focused)?.focus();
}

// columns: [heading, cell of a row, "number" for figures]
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(([name, , kind]) => h("th", { scope: "col", class: kind }, name)))),
      h("tbody", {}, rows.map((row) =>
        h("tr", {}, columns.map(([, cell, kind], n) =>
          h(n ? "td" : "th", { class: kind, scope: n ? null : "row" }, cell(row))))))));
}

export async function read(path) {
  let answer;
  try {
    answer = await fetch(path);
  } catch {
    throw new Error("The console does not answer. Is `cinquefoil console serve` running?");
  }
  const document_ = await answer.json();
  if (!answer.ok) throw new Error(document_.error);
  return document_;
}

export const failure = (error) => h("p", { class: "problem", role: "alert" }, `✕ ${error.message}`);
