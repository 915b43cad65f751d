// Which page is shown, and the stream of the present that it is shown from.
import { failure, h, render, shownAtTop } from "./dom.js";
import { Account } from "./account.js";
import { Batches } from "./batches.js";
import { modelsPage } from "./models.js";
import { nodePage, nodesPage } from "./nodes.js";
import { Now } from "./now.js";
import { differencePage, planPage, plansPage } from "./plans.js";
import { Receipts } from "./receipts.js";
import { known, Login } from "./session.js";
import { age } from "./units.js";
import { Why } from "./why.js";
import { WhatIf } from "./whatif.js";

const main = document.getElementById("main"), place = document.getElementById("page"), wrong = document.getElementById("wrong");
const MOST_SAID = 3; // conditions on Now; elsewhere the first, and on their own page none
const live = document.getElementById("live");
let present = null;
let turn = 0; // of the page that is shown: answers for an earlier page are dropped

// Pages of the present are drawn again whenever it changes; the others when they are opened, and
// when the newest plan changes.
const LIVE = {
  now: (present_) => h(Now, { present: present_ }),
  models: modelsPage,
  nodes: (now, name) => (name ? nodePage(now, name) : nodesPage(now)),
};

function opened() {
  const [name = "now", detail = ""] = decodeURI(location.hash).replace(/^#\/?/, "").split("/");
  return { name: name || "now", detail };
}

function explain() {
  const { name, detail } = opened();
  if (!present) return;
  shownAtTop(present.status.problems);
  render(h(Why, { present, most: name === "now" ? MOST_SAID : name === "nodes" && !detail ? 0 : 1 }), wrong);
}

async function draw() {
  const { name, detail } = opened();
  explain();
  const mine = ++turn;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${name}`) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone the pages' names scroll
    } else link.removeAttribute("aria-current");
  }
  try {
    const page = await content(name, detail);
    if (mine === turn) render(h("div", { key: location.hash, "data-page": location.hash }, page), place);
  } catch (error) {
    if (mine === turn) render(h("div", { "data-page": location.hash }, h("h1", {}, document.querySelector("nav a[aria-current]")?.textContent ?? ""), failure(error)), place);
  }
}

async function content(name, detail) {
  if (LIVE[name]) return present ? LIVE[name](present, detail) : h("p", {}, "Reading…");
  if (name === "what-if") return h(WhatIf, { key: detail, detail, gpus: present?.status.gpus ?? [], models: present?.status.models ?? [], palette: present?.palette });
  if (name === "receipts") return h(Receipts, { key: detail, detail });
  if (name === "batches") return h(Batches, {});
  if (name === "account") return h(Account, { detail });
  const range = /^(\d+)\.\.(\d+)$/.exec(detail);
  if (name === "plans" && range) return differencePage(range[1], range[2]);
  if (name === "plans" && detail) return planPage(detail);
  if (name === "plans") return plansPage();
  return h("div", {}, h("h1", {}, "No such page"), h("p", {}, h("a", { href: "#/now" }, "Now")));
}

function state(words, kind = "") {
  if (live.textContent === words) return;
  live.textContent = words;
  live.className = kind;
}

function follow() {
  const events = new EventSource("/api/events");
  events.onmessage = ({ data }) => {
    const planned = (document_) => `${document_?.status.plan?.version} ${document_?.status.plan?.state}`;
    const before = present;
    present = JSON.parse(data);
    const silent = present.status.problems.map((each) => /^(\w+) at /.exec(each)?.[1]).filter((each) => each && !(each in present.stale));
    const away = [...Object.entries(present.stale).map(([service, seconds]) => `${service} away for ${age(seconds)}`), ...silent.map((service) => `${service} does not answer`)];
    state(away.length ? `○ Not live: ${away.join(", ")}` : "● Live", away.length ? "poor" : "");
    explain();
    const changed = before !== null && planned(before) !== planned(present);
    const first = before === null && opened().name === "what-if"; // it needs the GPUs
    if (LIVE[opened().name] || (opened().name === "plans" && changed) || first) draw();
  };
  events.onopen = () => state("● Live");
  events.onerror = () => {
    state("○ Not connected: showing what was last known. Is `cinquefoil console serve` running?", "poor");
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  };
}

addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return; // the link that skips the header
  draw();
  main.focus();
});
async function start() {
  if (await known()) {
    draw();
    follow();
  } else {
    live.textContent = "Not logged in";
    render(h(Login, { done: start }), place);
  }
}
start();
