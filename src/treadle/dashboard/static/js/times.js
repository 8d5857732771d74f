// "41s ago" goes on counting; the exact time is in the title.
import { all } from "./dom.js";

const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "m"],
];

export function ago(ms) {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 1) return "now";
  const [size, name] = UNITS.find(([length]) => seconds >= length) ?? [1, "s"];
  const text = `${Math.floor(seconds / size)}${name}`;
  return ms >= 0 ? `${text} ago` : `in ${text}`;
}

// "2d 20h": the time that is left, in two units.
export function left(ms) {
  const whole = Math.round(Math.max(ms, 0) / 1000);
  return whole < 86400 ? duration(ms) : `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

export function duration(ms) {
  const whole = Math.round(Math.max(ms, 0) / 1000);
  if (ms < 9950) return `${(Math.max(ms, 0) / 1000).toFixed(1)} s`;
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h ${two(Math.floor((whole % 3600) / 60))}m`;
}

// What is selected is asked once and before anything is written: asking makes the browser lay the page out.
function put(texts) {
  const selection = getSelection();
  const some = selection && !selection.isCollapsed;
  for (const [element, text] of some ? texts.filter(([element]) => !selection.containsNode(element, true)) : texts) {
    if (element.firstChild?.nodeType === Node.TEXT_NODE && !element.firstChild.nextSibling) element.firstChild.data = text;
    else element.textContent = text;
  }
}

setInterval(() => {
  if (document.visibilityState !== "visible") return;
  const now = Date.now();
  const texts = [
    ...all("time[data-ago]").map((time) => [time, ago(now - Date.parse(time.dateTime))]),
    ...all("time[data-until]").map((time) => [time, left(Date.parse(time.dateTime) - now)]),
    ...all("[data-since]").map((cell) => [cell, duration(now - Date.parse(cell.dataset.since))]),
  ].filter(([element, text]) => element.textContent !== text);
  if (texts.length) put(texts);
}, 1000);
