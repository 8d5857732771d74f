// Shows another page, or this one anew, without losing the scroll position, the place of the keyboard and the stream.
import { all, one, typing } from "./dom.js";
import { isSignIn, signIn } from "./session.js";
import { collect, say } from "./toasts.js";

let shown = 0;

// An answer that comes after the person has gone on (another page, a question, a word half typed) is dropped.
export async function refresh() {
  const before = shown;
  const from = document.activeElement;
  let response;
  try {
    response = await fetch(location.href, { headers: { "X-Partial": "1" } });
  } catch {
    say("The server does not answer.", "bad");
    return;
  }
  const html = await response.text();
  const now = document.activeElement;
  if (before !== shown || one("dialog[open]") || (now !== from && typing(now))) return;
  show(new URL(response.url), html);
}

export function show(address, html) {
  const next = new DOMParser().parseFromString(html, "text/html");
  if (!next.querySelector("#main.main")) {
    location.assign(isSignIn(address) ? signIn() : address);
    return;
  }
  shown += 1;
  const goBack = place();
  for (const id of ["main", "nav"]) {
    one(`#${id}`).replaceWith(document.adoptNode(next.querySelector(`#${id}`)));
  }
  one("#bulk")?.remove();
  const bulk = next.querySelector("#bulk");
  if (bulk) one("#toasts").before(document.adoptNode(bulk));
  document.body.dataset.live = next.body.dataset.live;
  document.title = next.title;
  if (address.href !== location.href.replace(location.hash, "")) history.pushState(null, "", address);
  goBack();
  collect(all(".toast", next.querySelector("#toasts")));
  document.dispatchEvent(new Event("treadle:page"));
}

// Where the keyboard is: the row, and the link or button that has the focus. Returns what finds both again.
function place() {
  const row = one("tbody.is-cursor")?.id;
  const focused = document.activeElement;
  const inside = focused.closest("#main, #nav") && focused.closest("[id]");
  const same = [focused.localName, ...["href", "aria-label", "name"].map((name) => attribute(focused, name))].join("");
  return () => {
    if (row) document.getElementById(row)?.classList.add("is-cursor");
    if (!inside) return;
    const found = focused === inside ? document.getElementById(inside.id) : document.getElementById(inside.id)?.querySelector(same);
    found?.focus({ preventScroll: true });
  };
}

const attribute = (element, name) => (element.hasAttribute(name) ? `[${name}="${CSS.escape(element.getAttribute(name))}"]` : "");

addEventListener("popstate", () => location.reload());
