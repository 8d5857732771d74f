// The menu of a row, and the menus that are open <details>.
import { all, base, icon, make, on, one } from "./dom.js";
import { copy } from "./copy.js";

const ITEMS = [
  ["requeue", "Requeue…", "requeue", "R"],
  ["cancel", "Cancel…", "stop", "C"],
  ["edit", "Reschedule…", "clock", ""],
  ["release", "Release…", "drain", ""],
];
let opener = null;

function items(row) {
  const path = `${base()}/jobs/${row.dataset.job}`;
  const acts = row.dataset.acts.split(" ");
  const menu = [link("View", "arrow", path, "↵")];
  for (const [act, text, name, key] of ITEMS) {
    if (acts.includes(act)) menu.push(link(text, name, `${path}/${act}`, key, { "data-dialog": true }));
  }
  menu.push(link("Run again, edited…", "edit", `${path}/run-again`));
  const id = make("button", { type: "button", role: "menuitem", "data-copy-id": row.dataset.job }, icon("copy"), "Copy id", make("kbd", {}, "Y"));
  menu.push(id);
  if (acts.includes("delete")) {
    menu.push(make("hr"), link("Delete…", "trash", `${path}/delete`, "D", { "data-dialog": true, class: "bad" }));
  }
  return menu;
}

function link(text, name, href, key = "", extra = {}) {
  return make("a", { role: "menuitem", href, ...extra }, icon(name), text, ...(key ? [make("kbd", {}, key)] : []));
}

export function close(focus = true) {
  const sheet = one("#row-sheet");
  if (!sheet) return false;
  sheet.remove();
  opener.removeAttribute("aria-expanded");
  if (focus && opener.isConnected) opener.focus();
  return true;
}

function turn(menu, button) {
  const below = innerHeight - button.getBoundingClientRect().bottom;
  menu.classList.toggle("menu-up", below < menu.offsetHeight + 64);
}

function open(button) {
  close(false);
  opener = button;
  const row = button.closest("tbody");
  const menu = make("div", { class: "menu row-menu", role: "menu", id: "row-menu", "aria-label": "Job" }, ...items(row));
  button.setAttribute("aria-expanded", "true");
  button.closest("td").append(make("div", { class: "row-sheet", id: "row-sheet" }, make("div", { class: "shade" }), menu));
  turn(menu, button);
  one("[role=menuitem]", menu).focus();
}

on("click", "[data-menu]", (_, button) => (button.getAttribute("aria-expanded") ? close() : open(button)));
on("click", "[data-copy-id]", (_, button) => {
  copy(button.dataset.copyId, "Id copied");
  close();
});
// Up where there is no room below. A toggle does not bubble.
document.addEventListener("toggle", ({ target }) => target.matches("details.row-drop[open]") && turn(one(".menu", target), target), true);
on("click", ".row-drop .menu > *", (_, item) => {
  const drop = item.closest("details");
  drop.open = false;
  one("summary", drop).focus();
});
on("click", "#row-menu a", () => close());
document.addEventListener("click", (event) => {
  if (!event.target.closest("#row-menu, [data-menu]")) close(false);
  for (const drop of all("details.drop[open]")) if (!drop.contains(event.target)) drop.open = false;
});
on("keydown", "#row-menu", (event, menu) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const list = all("[role=menuitem]", menu);
  list[(list.indexOf(document.activeElement) + step + list.length) % list.length].focus();
});
