// Changes arrive as they happen: the server sends parts of this page, rendered by its own templates.
//
// A stream is open only while the tab can be seen. Browsers open six connections to a server over HTTP/1.1, so only
// a few tabs have one at a time; the others ask every 15 s, and so does a tab whose stream has been down for 30 s.
import { all, on, one, recall, remember } from "./dom.js";
import { hasFocusedActions, inUse, morph, parse } from "./morph.js";
import { sayEnded } from "./session.js";

const STREAMS = 3;
const BEAT_MS = 3000;
const POLL_MS = 15000;
const DOWN_MS = 5000;
const GIVE_UP_MS = 30000;

const tab = `${Date.now()}.${Math.random()}`;
const waiting = new Map();
let source = null;
let poll = null;
let beat = null;
let downSince = null;
let ended = false;
let turn = 0;
let drawn = true;

const on_ = () => recall("live") !== "off";
const visible = () => document.visibilityState === "visible";
const possible = () => Boolean(document.body.dataset.live);

function address() {
  const url = new URL(document.body.dataset.live, location.href);
  const rows = all("tbody[data-job]");
  if (rows.length) url.searchParams.set("ids", rows.map((row) => row.dataset.job).join(","));
  return url;
}

// -- places among the tabs of this browser --------------------------------------------------------

function others() {
  let tabs = {};
  try {
    tabs = JSON.parse(recall("streams") ?? "{}");
  } catch {
    // Nobody's list: begin a new one.
  }
  const now = Date.now();
  return Object.fromEntries(Object.entries(tabs).filter(([name, at]) => name !== tab && now - at < 3 * BEAT_MS));
}

function takePlace() {
  const found = others();
  if (Object.keys(found).length >= STREAMS) return false;
  remember("streams", JSON.stringify({ ...found, [tab]: Date.now() }));
  return true;
}

const leavePlace = () => remember("streams", JSON.stringify(others()));

// -- the stream ------------------------------------------------------------------------------------

// A page that was just drawn says what it shows, and is sent the rows only if something has changed since.
function streamAddress() {
  const url = address();
  if (drawn) url.searchParams.set("drawn", all("tbody[data-job]").map((row) => row.dataset.status).join(","));
  drawn = false;
  return url;
}

export function start() {
  stop();
  const url = streamAddress();
  if (ended || !possible()) return;
  if (!on_()) {
    show("Paused", false);
    return;
  }
  if (!visible()) return;
  if (!takePlace()) {
    startPolling();
    return;
  }
  beat = setInterval(() => {
    remember("streams", JSON.stringify({ ...others(), [tab]: Date.now() }));
    watch();
  }, BEAT_MS);
  source = new EventSource(url);
  source.addEventListener("patch", (event) => {
    alive();
    apply(JSON.parse(event.data));
  });
  source.addEventListener("ping", alive);
  source.addEventListener("open", alive);
  source.addEventListener("error", () => {
    downSince ??= Date.now();
    // A browser does not try again after a refusal, and does not say which one it was. We ask, and try again.
    if (source?.readyState === EventSource.CLOSED) refused();
  });
}

async function refused() {
  await ask();
  if (!ended) setTimeout(() => source?.readyState === EventSource.CLOSED && reopen(), DOWN_MS);
}

function end() {
  ended = true;
  stop();
  show("Signed out", false, "live-lost");
  sayEnded();
}

function reopen() {
  const since = downSince;
  start();
  downSince = since;
}

function alive() {
  downSince = null;
  document.documentElement.dataset.live = "";
  show("Live", true);
}

function watch() {
  if (downSince === null) return;
  const down = Date.now() - downSince;
  if (down > GIVE_UP_MS) startPolling();
  else if (down > DOWN_MS) show("Reconnecting", true, "live-lost");
}

// What has not been put by then is too old for what comes next: the next stream and the next answer send it anew.
export function stop() {
  turn += 1;
  waiting.clear();
  delete document.documentElement.dataset.live;
  source?.close();
  source = null;
  downSince = null;
  clearInterval(beat);
  clearInterval(poll);
  leavePlace();
}

// -- asking now and then ---------------------------------------------------------------------------

function startPolling() {
  stop();
  show("Every 15 s", true, "live-lost");
  poll = setInterval(askAndReturn, POLL_MS);
}

async function ask() {
  if (!visible() || !on_()) return false;
  const before = turn;
  try {
    const url = address();
    url.searchParams.set("once", "1");
    const response = await fetch(url);
    if (response.status === 401) end();
    const patch = response.ok ? await response.json() : null;
    if (!patch || before !== turn) return false;
    apply(patch);
  } catch {
    return false; // the next time
  }
  return true;
}

async function askAndReturn() {
  if ((await ask()) && Object.keys(others()).length < STREAMS) start();
}

// -- patches ---------------------------------------------------------------------------------------

function apply({ regions = {}, gone = [], back = [] }) {
  putAll(Object.entries(regions));
  for (const id of gone) document.getElementById(`job-${id}`)?.classList.add("is-gone");
  for (const id of back) document.getElementById(`job-${id}`)?.classList.remove("is-gone");
}

// What is in use is asked of all parts before the first is changed: each question after a change costs a layout.
function putAll(parts) {
  const found = parts.map(([id, html]) => ({ id, html, current: document.getElementById(id) })).filter((part) => part.current);
  if (!found.length) return;
  for (const part of found) part.used = inUse(part.current);
  for (const { id, html, current, used } of found) {
    const next = used ? null : parse(html);
    if (next) morph(current, next);
    // Buttons that have the focus stay as they are until it leaves.
    if (used || hasFocusedActions(current)) waiting.set(id, html);
    else waiting.delete(id);
  }
  document.dispatchEvent(new Event("treadle:patched"));
}

function putWaiting() {
  const parts = [...waiting];
  waiting.clear();
  putAll(parts);
}

// -- what a person sees and does -------------------------------------------------------------------

function show(word, pressed, extra = "") {
  const button = one("[data-live-switch]");
  if (!button) return;
  button.hidden = !possible();
  button.setAttribute("aria-pressed", String(pressed));
  button.classList.toggle("live-lost", extra === "live-lost");
  one("[data-live-word]", button).textContent = word;
}

export function flip() {
  remember("live", on_() ? "off" : "on");
  start();
}

on("click", "[data-live-switch]", flip);
document.addEventListener("visibilitychange", () => {
  if (!on_()) return;
  if (visible()) start();
  else stop();
});
document.addEventListener("selectionchange", putWaiting);
document.addEventListener("pointerout", () => setTimeout(putWaiting));
document.addEventListener("focusout", () => setTimeout(putWaiting));
document.addEventListener("treadle:page", () => {
  drawn = true;
  start();
});
addEventListener("pagehide", stop);
addEventListener("pageshow", (event) => event.persisted && start());
start();
