// Chosen rows, the row that the keyboard is at, and the bar that says what can be done with them.
import { all, on, one } from "./dom.js";
import { open } from "./dialogs.js";

let anchor = null;

export const rows = () => all("tbody[data-job]");
const box = (row) => one("input.check", row);
export const cursor = () => one("tbody.is-cursor");
const chosen = () => rows().filter((row) => box(row).checked);

function choose(row, wanted) {
  box(row).checked = wanted;
  row.classList.toggle("is-selected", wanted);
}

export function toggle(row, range = false) {
  const wanted = range ? true : !box(row).checked;
  if (range && anchor?.isConnected) between(anchor, row).forEach((one_) => choose(one_, true));
  choose(row, wanted);
  anchor = row;
  tell();
}

function between(first, second) {
  const list = rows();
  const [from, to] = [list.indexOf(first), list.indexOf(second)].sort((a, b) => a - b);
  return list.slice(from, to + 1);
}

export function choosePage(wanted) {
  rows().forEach((row) => choose(row, wanted));
  tell();
}

export function chooseAllThatMatch() {
  const every = one("[data-all]");
  if (!every) return;
  every.checked = true;
  choosePage(true);
}

export function clear() {
  const every = one("[data-all]");
  if (every) every.checked = false;
  choosePage(false);
}

export const any = () => chosen().length > 0 || Boolean(one("[data-all]")?.checked);

export function move(step) {
  const list = rows();
  if (!list.length) return;
  const at = list.indexOf(cursor());
  const next = list[Math.min(Math.max(at + step, 0), list.length - 1)];
  cursor()?.classList.remove("is-cursor");
  next.classList.add("is-cursor");
  next.scrollIntoView({ block: "nearest" });
  one("a[data-open]", next).focus({ preventScroll: true });
}

export function act(action) {
  const bulk = one("#bulk");
  if (bulk && any()) {
    one(`[data-bulk-act="${action}"]`, bulk)?.click();
    return true;
  }
  const row = cursor();
  if (row?.dataset.acts.split(" ").includes(action)) {
    open(`${document.body.dataset.base}/jobs/${row.dataset.job}/${action}`);
    return true;
  }
  return false;
}

export function tell() {
  const bulk = one("#bulk");
  if (!bulk) return;
  const picked = chosen();
  const every = one("[data-all]", bulk).checked;
  bulk.classList.toggle("is-on", picked.length > 0 || every);
  one("[data-selected]", bulk).textContent = every ? "All selected" : `${picked.length} selected`;
  for (const button of all("[data-bulk-act]", bulk)) {
    const fits = picked.filter((row) => row.dataset.acts.split(" ").includes(button.dataset.bulkAct)).length;
    one(".count", button).textContent = every ? "" : fits;
    button.disabled = !every && fits === 0;
  }
  const page = one("[data-select-page]");
  if (page) {
    page.checked = picked.length > 0 && picked.length === rows().length;
    page.indeterminate = picked.length > 0 && !page.checked;
  }
}

on("click", "tbody[data-job] input.check", (event, input) => {
  const row = input.closest("tbody");
  input.checked = !input.checked; // the click has turned it already
  toggle(row, event.shiftKey);
  // The browser sets the box back if it is changed before the click is over.
  const wanted = input.checked;
  setTimeout(() => choose(row, wanted));
});
on("change", "[data-select-page]", (_, input) => choosePage(input.checked));
on("change", "[data-all]", (_, input) => (input.checked ? choosePage(true) : clear()));
on("click", "[data-clear-selection]", () => clear());
document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-bulk]")) return;
  event.preventDefault();
  const query = new URLSearchParams(new FormData(event.target, event.submitter));
  // Not form.action: that would be the field of this name.
  open(`${event.target.getAttribute("action")}?${query}`);
});
document.addEventListener("treadle:page", tell);
tell();
