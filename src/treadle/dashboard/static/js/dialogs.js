// What asks first: the same page that a browser without JavaScript shows, in a dialog.
import { make, on, one, typing } from "./dom.js";
import { show } from "./page.js";
import { isSignIn, signIn } from "./session.js";
import { say } from "./toasts.js";

const HEADERS = { "X-Dialog": "1" };
// A server that accepts a request and never answers must not keep a dialog open for ever.
const PATIENCE_MS = 30000;

let asked = 0;

export const isOpen = () => one("dialog[open]") !== null;

// A question that was asked for and has not come yet is not wanted any more.
export const forget = () => (asked += 1);

const isBusy = (dialog) => dialog.getAttribute("closedby") === "none";

function dismiss(dialog) {
  if (!isBusy(dialog)) dialog.close();
}

// The browser gives the focus back when the dialog closes. The close event comes later, when a person may already be
// somewhere else, so it must not move the focus.
export async function open(url) {
  const turn = ++asked;
  const opener = document.activeElement;
  let response, html;
  try {
    response = await fetch(url, { headers: HEADERS });
    html = await response.text();
  } catch {
    say("The server does not answer.", "bad");
    return;
  }
  // The answer to the last question counts, and none takes the keys from a person who types.
  const now = document.activeElement;
  if (turn !== asked || isOpen() || (now !== opener && typing(now))) return;
  if (!response.headers.has("X-Dialog")) {
    location.assign(isSignIn(response.url) ? signIn() : url);
    return;
  }
  const dialog = make("dialog", { class: "dialog", "aria-labelledby": "dialog-title" });
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("cancel", (event) => isBusy(dialog) && event.preventDefault());
  fill(dialog, html);
  if (opener?.isConnected) opener.focus();
  dialog.showModal();
  (dialog.querySelector("[autofocus]") ?? dialog.querySelector("input:not([type=hidden]), a, button"))?.focus();
}

function fill(dialog, html) {
  const next = new DOMParser().parseFromString(html, "text/html");
  dialog.replaceChildren(...next.body.childNodes);
}

// What was confirmed goes on, so the dialog stays until the answer is there.
async function submit(dialog, form, submitter) {
  if (isBusy(dialog)) return;
  const data = new URLSearchParams(new FormData(form, submitter));
  for (const button of form.querySelectorAll("[type=submit]")) button.disabled = true;
  dialog.setAttribute("closedby", "none");
  const signal = AbortSignal.timeout(PATIENCE_MS);
  let response, html;
  try {
    response = await fetch(form.getAttribute("action"), { method: "POST", body: data, headers: HEADERS, signal });
    html = await response.text();
  } catch {
    say("The server does not answer. Check whether anything has changed before you try again.", "bad");
    dialog.close();
    return;
  }
  if (response.headers.has("X-Dialog")) {
    fill(dialog, html);
    dialog.removeAttribute("closedby");
    (dialog.querySelector("[aria-invalid]") ?? dialog.querySelector("a, button"))?.focus();
  } else {
    dialog.close();
    show(new URL(response.url), html);
  }
}

on("click", "[data-dialog]", (event, link) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  open(link.href);
});
on("click", "dialog [data-cancel]", (event, link) => {
  event.preventDefault();
  dismiss(link.closest("dialog"));
});
on("click", "dialog", (event, dialog) => {
  if (event.target === dialog) dismiss(dialog);
});
document.addEventListener("submit", (event) => {
  const dialog = event.target.closest("dialog");
  if (!dialog) return;
  event.preventDefault();
  submit(dialog, event.target, event.submitter);
});
document.addEventListener("treadle:page", forget);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.metaKey || event.ctrlKey)) return;
  const button = one("dialog[open] [data-confirm]") ?? event.target.closest?.("form[data-answer]")?.querySelector("[data-confirm]");
  if (button) {
    event.preventDefault();
    button.form.requestSubmit(button);
  }
});
