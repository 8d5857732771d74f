// Runs scripts with PocketBase's client: one on each line of stdin, and what it returned, or what the client threw, on a
// line of stdout.
// With an extension, `pb` is a client after its `withJobs(pb)`.
// node script.mjs FOLDER-WITH-THE-PACKAGE URL [EXTENSION]

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, url, extension] = process.argv.slice(2);
const found = createRequire(`${folder}/`).resolve("pocketbase");
const { default: PocketBase, ClientResponseError } = await import(pathToFileURL(found));
const { withJobs } = extension ? await import(pathToFileURL(extension)) : {};
const AsyncFunction = (async () => {}).constructor;

async function run({ script, given }) {
  const pb = new PocketBase(url);
  if (withJobs) withJobs(pb);
  else pb.autoCancellation(false);
  try {
    const names = ["pb", "given", "PocketBase", "withJobs"];
    return { returned: (await new AsyncFunction(...names, script)(pb, given, PocketBase, withJobs)) ?? null };
  } catch (error) {
    if (!(error instanceof ClientResponseError)) throw error;
    const { status, response, message, isAbort } = error;
    return { thrown: { status, response, message, isAbort, path: new URL(error.url).pathname } };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await run(JSON.parse(line)))}\n`);
}
