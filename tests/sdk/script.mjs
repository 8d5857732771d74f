// Runs the script on stdin with PocketBase's client and tells on stdout what it returned, or what the client threw.
// node script.mjs FOLDER-WITH-THE-PACKAGE URL

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url] = process.argv.slice(2);
const found = createRequire(`${folder}/`).resolve("pocketbase");
const { default: PocketBase, ClientResponseError } = await import(pathToFileURL(found));

const { script, given } = JSON.parse(readFileSync(0, "utf8"));
const pb = new PocketBase(url);
pb.autoCancellation(false);

const AsyncFunction = (async () => {}).constructor;
let told;
try {
  told = { returned: (await new AsyncFunction("pb", "given", "PocketBase", script)(pb, given, PocketBase)) ?? null };
} catch (error) {
  if (!(error instanceof ClientResponseError)) throw error;
  const { status, response, message, isAbort } = error;
  told = { thrown: { status, response, message, isAbort, path: new URL(error.url).pathname } };
}
process.stdout.write(JSON.stringify(told));
