// What a running job emits, as it comes. The page has the newest values; this adds what follows, for the open channel.
import { all, one, recall } from "./dom.js";

const MOST_CHARACTERS = 200_000;
const places = new Map(); // by address: the number of the last value that is shown
let source = null;
let followed = null;
let waiting = "";

const text = (value) => (typeof value === "string" ? value : `${JSON.stringify(value)}\n`);
const panels = () => all("details[data-output]");

function draw() {
  const pre = followed && one("pre", followed);
  if (!pre || !waiting) return;
  const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
  pre.append(waiting);
  waiting = "";
  if (pre.textContent.length > 2 * MOST_CHARACTERS) pre.textContent = pre.textContent.slice(-MOST_CHARACTERS);
  if (atEnd) pre.scrollTop = pre.scrollHeight;
}

function stop() {
  source?.close();
  draw();
  source = followed = null;
}

function follow(panel) {
  stop();
  const pre = one("pre", panel);
  const address = panel.dataset.output;
  const after = places.get(address) ?? Number(panel.dataset.after);
  pre.dataset.loaded = "live"; // patches leave it alone
  pre.scrollTop = pre.scrollHeight;
  followed = panel;
  source = new EventSource(`${address}?after=${after}`);
  source.addEventListener("value", (event) => {
    if (!waiting) requestAnimationFrame(draw);
    waiting += text(JSON.parse(event.data));
    places.set(address, Number(event.lastEventId));
  });
  source.addEventListener("reset", () => {
    waiting = pre.textContent = "";
  });
  source.addEventListener("end", () => {
    panel.dataset.ended = "yes";
    stop();
  });
}

// One channel at a time: a browser opens six connections to a server, and the page has one already.
function choose() {
  const open = panels().find((panel) => panel.open && !panel.dataset.ended);
  if (!open || document.visibilityState !== "visible" || recall("live") === "off") stop();
  else if (open !== followed || !followed.isConnected) follow(open);
}

if (one("#output")) {
  document.addEventListener("toggle", (event) => event.target.matches?.("[data-output]") && choose(), true);
  document.addEventListener("visibilitychange", choose);
  new MutationObserver(choose).observe(one("#output"), { childList: true, subtree: false });
  choose();
}
