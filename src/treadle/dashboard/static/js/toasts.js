import { all, icon, make, on, one } from "./dom.js";

const MOST = 3;
const SHOWN_MS = 6000;

export function collect(toasts) {
  const place = one("#toasts");
  for (const toast of toasts) {
    place.append(document.adoptNode(toast));
    time(toast);
  }
  for (const old of all(".toast", place).slice(0, -MOST)) old.remove();
}

export function say(text, kind = "good") {
  const bad = kind === "bad";
  collect([
    make(
      "div",
      { class: "toast", role: bad ? "alert" : "status", "data-toast": kind },
      icon(bad ? "st_failed" : "st_completed", kind),
      make("div", {}, ...[text].flat()),
      make("button", { class: "btn btn-icon btn-s", type: "button", "aria-label": "Close", "data-close-toast": true }, icon("x", "icon-s")),
    ),
  ]);
}

// Errors stay until they are closed; so does a toast that the pointer or the focus is on.
function time(toast) {
  if (toast.dataset.toast === "bad") return;
  setTimeout(() => (toast.matches(":hover, :focus-within") ? time(toast) : toast.remove()), SHOWN_MS);
}

on("click", "[data-close-toast]", (_, button) => button.closest(".toast").remove());
for (const toast of all("#toasts .toast")) time(toast);
