// Shows another page, or this one anew, without losing the scroll position and the stream.
import { all, one } from "./dom.js";
import { isSignIn, signIn } from "./session.js";
import { collect } from "./toasts.js";

export async function refresh() {
  await take(await fetch(location.href, { headers: { "X-Partial": "1" } }), { keep: true });
}

export async function take(response, { keep = false } = {}) {
  const address = new URL(response.url);
  const html = await response.text();
  const next = new DOMParser().parseFromString(html, "text/html");
  if (!next.querySelector("#main.main")) {
    location.assign(isSignIn(address) ? signIn() : address);
    return;
  }
  for (const id of ["main", "nav"]) {
    one(`#${id}`).replaceWith(document.adoptNode(next.querySelector(`#${id}`)));
  }
  one("#bulk")?.remove();
  const bulk = next.querySelector("#bulk");
  if (bulk) one("#toasts").before(document.adoptNode(bulk));
  document.body.dataset.live = next.body.dataset.live;
  document.title = next.title;
  if (address.href !== location.href) history.pushState(null, "", address);
  if (!keep) scrollTo(0, 0);
  collect(all(".toast", next.querySelector("#toasts")));
  document.dispatchEvent(new Event("treadle:page"));
}

addEventListener("popstate", () => location.reload());
