// Parts of a page that are fetched when they are opened: whole payloads, and code samples of them.
import { one } from "./dom.js";

async function load(details) {
  const place = one("[data-loaded]", details);
  if (place.dataset.loaded) return;
  place.dataset.loaded = "loading";
  place.textContent = "Loading …";
  try {
    const response = await fetch(details.dataset.load, { headers: { "X-Dialog": "1" } });
    if (!response.ok) throw new Error(response.statusText);
    place.innerHTML = await response.text();
    place.dataset.loaded = "yes";
  } catch {
    place.textContent = "This could not be loaded. Close it and open it again.";
    place.dataset.loaded = "";
  }
}

// This event does not bubble.
document.addEventListener("toggle", (event) => {
  if (event.target.open && event.target.matches?.("[data-load]")) load(event.target);
}, true);
