// Every action by keyboard. Keys that change something only open the dialog that asks.
import { all, base, on, one, recall, remember, typing } from "./dom.js";
import { copy } from "./copy.js";
import * as dialogs from "./dialogs.js";
import * as live from "./live.js";
import * as menu from "./menu.js";
import { refresh } from "./page.js";
import * as search from "./search.js";
import * as selection from "./selection.js";
import * as theme from "./theme.js";

const PREFIX_MS = 1500;
let prefix = 0;

const enabled = () => recall("keys") !== "off";
const follow = (selector) => {
  const link = one(selector);
  link?.click();
  return Boolean(link);
};

function escape(event) {
  dialogs.forget();
  if (search.close() || menu.close() || dialogs.isOpen()) return;
  const drop = one("details.drop[open]");
  if (drop) {
    drop.open = false;
    one("summary", drop).focus();
  } else if (typing(event.target)) event.target.blur();
  else if (selection.any()) selection.clear();
}

function act(name) {
  return selection.act(name) || follow(`#job-head [data-act="${name}"]`);
}

function copyId() {
  const id = selection.cursor()?.dataset.job ?? one("#job-head [data-copy]")?.dataset.copy;
  if (id) copy(id, "Id copied");
}

const KEYS = {
  "/": () => (one("[data-search], [data-search-plain]") ?? one("[data-palette]")).focus(),
  "?": () => dialogs.open(`${base()}/shortcuts`),
  ".": () => follow("[data-show-new]"),
  "[": () => follow("a[rel=prev]"),
  "]": () => follow("a[rel=next]"),
  j: () => selection.move(1),
  k: () => selection.move(-1),
  x: () => selection.cursor() && selection.toggle(selection.cursor()),
  X: () => selection.cursor() && selection.toggle(selection.cursor(), true),
  a: () => selection.choosePage(true),
  A: () => selection.chooseAllThatMatch(),
  r: () => act("requeue"),
  c: () => act("cancel"),
  d: () => act("delete"),
  l: () => live.flip(),
  t: () => theme.next(),
  y: copyId,
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    escape(event);
    return;
  }
  if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    one("[data-palette]").focus();
    return;
  }
  if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return;
  if (!enabled() || dialogs.isOpen() || typing(event.target) || event.target.closest?.("[role=menu]")) return;
  if (Date.now() - prefix < PREFIX_MS) {
    prefix = 0;
    if (follow(`#nav [data-key="${CSS.escape(event.key)}"]`)) event.preventDefault();
    return;
  }
  if (event.key === "g") {
    prefix = Date.now();
  } else if (/^[0-8]$/.test(event.key)) {
    follow(`[data-tab="${event.key}"]`);
  } else if (Object.hasOwn(KEYS, event.key)) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

on("click", "[data-refresh], [data-show-new]", (event) => {
  if (event.metaKey || event.ctrlKey) return;
  event.preventDefault();
  refresh();
});
on("change", "[data-keys-switch]", (_, input) => remember("keys", input.checked ? "on" : "off"));
document.addEventListener("focusin", () => {
  for (const input of all("[data-keys-switch]")) input.checked = enabled();
});
