// Suggestions under the search box of the list (qualifiers, topics, statuses) and under the one in the header (pages, topics, jobs).
import { all, base, icon, make, on, one } from "./dom.js";

const KEYS = ["topic:", "status:", "error:", "payload.", "id:", "priority:", "scope:", "scopeId:", "createdBy:", "created:", "failed:", "ended:", "run:", "ran:", "waited:", "worker:", "step:"];
const STATUSES = ["pending", "processing", "waiting", "cancelling", "completed", "failed", "cancelled", "expired", "stale"];
const MOST = 8;
const KNOWN_MS = 5000;
let box = null;
let known = null;
let knownAt = 0;
let asked = 0;

export function close() {
  asked += 1;
  if (!box) return false;
  box.input.setAttribute("aria-expanded", "false");
  box.input.removeAttribute("aria-activedescendant");
  box.list.remove();
  box = null;
  return true;
}

function show(input, place, options) {
  close();
  if (!options.length) return;
  const list = make("div", { class: "menu menu-wide suggestions", role: "listbox", id: "suggestions", "aria-label": "Suggestions" });
  options.slice(0, MOST).forEach((option, i) => {
    const item = make("div", { role: "option", id: `suggestion-${i}`, class: "suggestion", "aria-selected": "false" });
    if (option.icon) item.append(icon(option.icon));
    item.append(make("span", { class: option.icon ? "" : "mono" }, option.text));
    if (option.note) item.append(make("span", { class: "meta" }, option.note));
    item.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      option.take();
    });
    list.append(item);
  });
  place.append(list);
  input.setAttribute("aria-expanded", "true");
  box = { input, list, options, at: -1 };
}

function highlight(step) {
  const items = all("[role=option]", box.list);
  items[box.at]?.setAttribute("aria-selected", "false");
  box.at = (box.at + step + items.length + (box.at < 0 && step < 0 ? 1 : 0)) % items.length;
  items[box.at].setAttribute("aria-selected", "true");
  box.input.setAttribute("aria-activedescendant", items[box.at].id);
}

// -- in the list of jobs ---------------------------------------------------------------------------

function word(input) {
  const head = input.value.slice(0, input.selectionStart);
  return head.slice(head.lastIndexOf(" ") + 1);
}

// The payloads of the rows on this page: their keys, and the plain values of each.
function payloads() {
  const found = new Map();
  for (const value of all(".jobs .payload b")) {
    const key = value.previousSibling?.data.trim().slice(0, -1);
    if (!/^[\w-]+$/.test(key)) continue;
    if (!found.has(key)) found.set(key, new Set());
    if (/^[\w.@/-]+$/.test(value.textContent)) found.get(key).add(value.textContent);
  }
  return found;
}

function keys(start) {
  if (!start.startsWith("payload.")) return KEYS;
  return [...payloads().keys()].map((key) => `payload.${key}:`);
}

function values(input, key) {
  if (key.startsWith("payload.")) return [...(payloads().get(key.slice(8)) ?? [])];
  const known = { status: STATUSES, topic: input.dataset.topics.split(" "), error: input.dataset.errors.split(" ") };
  return (known[key] ?? []).filter(Boolean);
}

function complete(input) {
  const text = word(input);
  const end = input.selectionStart;
  const minus = text.startsWith("-") ? "-" : "";
  const [key, value] = text.slice(minus.length).split(/:(.*)/s);
  const found =
    value === undefined
      ? keys(key).filter((one_) => one_.startsWith(key)).map((one_) => minus + one_)
      : values(input, key).filter((one_) => one_.startsWith(value)).map((one_) => `${minus}${key}:${one_}`);
  const options = found.filter((one_) => one_ !== text).map((one_) => ({ text: one_, take: () => insert(input, end - text.length, end, one_) }));
  show(input, input.closest(".query"), options);
}

// The caret may have moved since the suggestions were shown.
function insert(input, start, end, text) {
  const whole = /[:.]$/.test(text) ? text : `${text} `;
  input.setRangeText(whole, start, end, "end");
  complete(input);
}

on("input", "[data-search]", (_, input) => complete(input));
// The last chip becomes text again.
on("keydown", "[data-search]", (event, input) => {
  const chip = all("[data-chip]", input.form).at(-1);
  if (event.key !== "Backspace" || !chip || input.selectionEnd > 0) return;
  event.preventDefault();
  input.value = [one("input", chip).value, input.value].join(" ").trim();
  input.setSelectionRange(one("input", chip).value.length, one("input", chip).value.length);
  chip.remove();
  complete(input);
});
document.addEventListener("treadle:page", close);
on("focusin", "[data-search]", (_, input) => complete(input));

// -- in the header ---------------------------------------------------------------------------------

async function palette(input) {
  const turn = ++asked;
  if (!known || Date.now() - knownAt > KNOWN_MS) {
    knownAt = Date.now();
    known = await fetch(`${base()}/find?names=1`).then((response) => (response.ok ? response.json() : { topics: [] }), () => ({ topics: [] }));
  }
  if (turn !== asked) return; // more has been typed since
  const text = input.value.trim();
  const small = text.toLowerCase();
  const go = (href) => () => location.assign(href);
  const pages = all("#nav a.nav-item").map((link) => ({ text: one("span", link).textContent, icon: "arrow", note: "page", take: go(link.href) }));
  const topics = known.topics.map((name) => ({ text: name, icon: "topics", note: "topic", take: go(`${base()}/jobs?topic=${encodeURIComponent(name)}`) }));
  const options = [...pages, ...topics].filter((option) => option.text.toLowerCase().includes(small));
  if (text) options.push({ text: `Jobs with “${text}”`, icon: "search", note: "search", take: go(`${base()}/find?q=${encodeURIComponent(text)}`) });
  if (document.activeElement === input) show(input, input.closest("form"), options);
}

on("input", "[data-palette]", (_, input) => palette(input));
on("focusin", "[data-palette]", (_, input) => palette(input));
on("focusout", "[data-palette], [data-search]", () => close());
on("keydown", "[data-palette], [data-search]", (event) => {
  if (!box) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    highlight(event.key === "ArrowDown" ? 1 : -1);
  } else if ((event.key === "Enter" || event.key === "Tab") && box.at >= 0) {
    event.preventDefault();
    box.options[box.at].take();
  }
});
on("change", "[data-submit]", (_, select) => select.form.requestSubmit());
