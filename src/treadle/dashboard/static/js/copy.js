// The clipboard API is for secure contexts only; over plain HTTP the old way still works.
import { make, on } from "./dom.js";
import { say } from "./toasts.js";

export async function copy(text, told = "Copied") {
  try {
    if (!navigator.clipboard) throw new Error("no clipboard here");
    await navigator.clipboard.writeText(text);
  } catch {
    const focused = document.activeElement;
    const area = make("textarea", { class: "sr", "aria-hidden": "true", readonly: true });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus({ preventScroll: true });
    if (!done) {
      say("The browser does not allow copying.", "bad");
      return;
    }
  }
  say(told);
}

on("click", "[data-copy]", (event, button) => {
  event.preventDefault();
  copy(button.dataset.copy);
});
