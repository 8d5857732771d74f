// Shows what a schedule means while it is written. Without JavaScript, the Preview button does the same.
import { on, one } from "./dom.js";

const PAUSE_MS = 250;
let timer = 0;
let asked = 0;

async function preview(form) {
  const turn = ++asked;
  let response;
  try {
    response = await fetch(form.dataset.preview, { method: "POST", body: new URLSearchParams(new FormData(form)) });
  } catch {
    return; // the next change asks again
  }
  const html = await response.text();
  if (!response.ok || turn !== asked) return;
  const next = new DOMParser().parseFromString(html, "text/html");
  for (const id of ["outlook", "next-runs", "payload-words"]) {
    const found = next.getElementById(id);
    if (found) one(`#${id}`)?.replaceWith(document.adoptNode(found));
  }
}

function soon(form) {
  clearTimeout(timer);
  timer = setTimeout(() => preview(form), PAUSE_MS);
}

on("input", "form[data-preview]", (_, form) => soon(form));
on("click", "a[data-cron]", (event, link) => {
  if (event.metaKey || event.ctrlKey) return;
  event.preventDefault();
  const form = link.closest("form");
  form.elements.cron.value = link.dataset.cron;
  form.elements.every.value = "";
  preview(form);
});
