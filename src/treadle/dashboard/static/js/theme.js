import { base, on, one } from "./dom.js";

const ORDER = ["", "light", "dark"];
const WORDS = { "": "as the system", light: "light", dark: "dark" };

function label() {
  const theme = document.documentElement.dataset.theme ?? "";
  const button = one("[data-theme-switch]");
  if (button) button.title = `Theme: ${WORDS[theme]}`;
}

// A cookie, so that the server draws the next page in it from the first pixel on.
export function next() {
  const theme = ORDER[(ORDER.indexOf(document.documentElement.dataset.theme ?? "") + 1) % ORDER.length];
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  document.cookie = `treadle_theme=${theme}; path=${base()}; max-age=31536000; samesite=lax`;
  label();
}

on("click", "[data-theme-switch]", next);
label();
