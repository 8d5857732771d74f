// Turns one tree into another and leaves alone what a person is using: focus, boxes, open parts, selected text.
const KEPT_CLASSES = ["is-selected", "is-cursor", "is-gone"];
const ACTIONS = ".actions, .row-actions, .tools";
const KEPT_ATTRIBUTES = new Set(["open", "class"]);

export function morph(current, next) {
  if (current.nodeType !== next.nodeType || current.nodeName !== next.nodeName) {
    current.replaceWith(next);
    return;
  }
  if (current.nodeType === Node.TEXT_NODE) {
    if (current.data !== next.data) current.data = next.data;
    return;
  }
  if (!(current instanceof Element)) return;
  if (current === document.activeElement && current.matches("input, textarea, select")) return;
  if (current.matches(ACTIONS) && current.contains(document.activeElement)) return;
  if (current.dataset.loaded) return; // it was fetched since
  attributes(current, next);
  children(current, next);
}

function attributes(current, next) {
  const kept = KEPT_CLASSES.filter((name) => current.classList.contains(name));
  const classes = [next.getAttribute("class") ?? "", ...kept].join(" ").trim();
  if ((current.getAttribute("class") ?? "") !== classes) current.setAttribute("class", classes);
  for (const { name, value } of [...next.attributes]) {
    if (!KEPT_ATTRIBUTES.has(name) && current.getAttribute(name) !== value) current.setAttribute(name, value);
  }
  for (const { name } of [...current.attributes]) {
    if (!KEPT_ATTRIBUTES.has(name) && !next.hasAttribute(name)) current.removeAttribute(name);
  }
}

function children(current, next) {
  if (next.matches("table:has(> [data-row])")) {
    rows(current, next);
    return;
  }
  const before = [...current.childNodes];
  const after = [...next.childNodes];
  for (let i = 0; i < after.length; i += 1) {
    if (i < before.length) morph(before[i], after[i]);
    else current.append(after[i]);
  }
  for (const extra of before.slice(after.length)) extra.remove();
}

// Rows with a name keep their places, so that no click meets another one: the missing are dimmed, the new come last.
function rows(current, next) {
  const left = [...next.children].filter((row) => row.dataset.row);
  for (const row of [...current.children].filter((one_) => one_.dataset.row)) {
    const at = left.findIndex((one_) => one_.dataset.row === row.dataset.row); // two workers may have one name
    if (at >= 0) morph(row, left.splice(at, 1)[0]);
    row.classList.toggle("is-gone", at < 0);
  }
  current.append(...left);
}

export function parse(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  return holder.content.firstElementChild;
}

// A key would press another button than the one that the person sees.
export function hasFocusedActions(element) {
  const focused = document.activeElement;
  return element.contains(focused) && Boolean(focused.closest(ACTIONS));
}

// Selected text would be lost with its nodes, and a button that appears under the pointer would take the click.
export function inUse(element) {
  const selection = getSelection();
  const selected = selection && !selection.isCollapsed && selection.containsNode(element, true);
  return Boolean(selected) || Boolean(element.querySelector("[aria-expanded='true'], .row-actions:hover, .actions:hover, details.drop[open]"));
}
