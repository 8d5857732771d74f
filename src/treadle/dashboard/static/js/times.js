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

function put(element, text) {
  const selection = getSelection();
  const selected = selection && !selection.isCollapsed && selection.containsNode(element, true);
  if (element.textContent !== text && !selected) element.textContent = text;
}

setInterval(() => {
  if (document.visibilityState !== "visible") return;
  const now = Date.now();
  for (const time of all("time[data-ago]")) put(time, ago(now - Date.parse(time.dateTime)));
  for (const time of all("time[data-until]")) put(time, left(Date.parse(time.dateTime) - now));
  for (const cell of all("[data-since]")) put(cell, duration(now - Date.parse(cell.dataset.since)));
}, 1000);
