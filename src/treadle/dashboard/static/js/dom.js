// Every handler is delegated from the document: it survives whatever a patch replaces.
export function on(type, selector, handler) {
  document.addEventListener(type, (event) => {
    const found = event.target instanceof Element ? event.target.closest(selector) : null;
    if (found) handler(event, found);
  });
}

export const all = (selector, root = document) => [...root.querySelectorAll(selector)];
export const one = (selector, root = document) => root.querySelector(selector);
export const base = () => document.body.dataset.base;

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export function icon(name, extra = "") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", `icon ${extra}`.trim());
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export function typing(target) {
  if (!(target instanceof Element)) return false;
  const kind = target.getAttribute("type");
  if (target.matches("input") && (kind === "checkbox" || kind === "radio")) return false;
  return target.matches("input, textarea, select, [contenteditable]");
}

export function remember(name, value) {
  try {
    localStorage.setItem(`treadle.${name}`, value);
  } catch {
    // A browser that keeps nothing forgets it with the page.
  }
}

export function recall(name) {
  try {
    return localStorage.getItem(`treadle.${name}`);
  } catch {
    return null;
  }
}
