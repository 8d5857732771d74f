// Runs scripts with PocketBase's client: one on each line of stdin, and what it returned, or what the client threw, on a
// line of stdout.
// With an extension, `pb` is a client after its `withJobs(pb)`.
// node script.mjs FOLDER-WITH-THE-PACKAGE URL [EXTENSION]

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, url, extension] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(createRequire(`${folder}/`).resolve(name)));
const { default: PocketBase, ClientResponseError } = await load("pocketbase");
// Browsers have it, and its realtime needs it.
globalThis.EventSource = (await load("eventsource")).EventSource;
const { withJobs } = extension ? await import(pathToFileURL(extension)) : {};
const AsyncFunction = (async () => {}).constructor;

/** Waits until this holds; the test's own time limit ends it otherwise. */
async function until(holds) {
  while (!holds()) await new Promise((go) => setTimeout(go, 10));
}

async function run({ script, given }) {
  const pb = new PocketBase(url);
  if (withJobs) withJobs(pb);
  else pb.autoCancellation(false);
  try {
    const names = ["pb", "given", "PocketBase", "withJobs", "until"];
    return { returned: (await new AsyncFunction(...names, script)(pb, given, PocketBase, withJobs, until)) ?? null };
  } catch (error) {
    if (!(error instanceof ClientResponseError)) throw error;
    const { status, response, message, isAbort } = error;
    return { thrown: { status, response, message, isAbort, path: error.url ? new URL(error.url).pathname : "" } };
  } finally {
    pb.realtime.unsubscribe().catch(() => {}); // not awaited: a client that is refused would try again first
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await run(JSON.parse(line)))}\n`);
}
