import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const FOLDER = fileURLToPath(new URL("..", import.meta.url));
const MOST_BYTES = 12_000;

test("the core is under 12 kB, minified and gzipped", async () => {
  const entry = `${FOLDER}/dist/index.js`;
  const { outputFiles } = await build({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: "esm",
    write: false,
  });
  const bytes = gzipSync(outputFiles[0]?.contents ?? "", { level: 9 }).length;
  assert.ok(bytes > 1000 && bytes < MOST_BYTES, `${bytes} bytes`);
});

test("the package has no dependency, and the lock names no registry", () => {
  const about = JSON.parse(readFileSync(`${FOLDER}/package.json`, "utf8"));
  assert.equal(about.dependencies, undefined);
  assert.equal(about.sideEffects, false);
  for (const entry of [".", "./pocketbase", "./react"]) {
    assert.equal(Object.keys(about.exports[entry])[0], "types");
  }
  assert.ok(!readFileSync(`${FOLDER}/package-lock.json`, "utf8").includes('"resolved"'));
});

test("`npm pack` holds the compiled modules with their types, and what every package has", () => {
  const words = ["pack", "--dry-run", "--json", "--ignore-scripts"];
  const told = JSON.parse(
    execFileSync("npm", words, { cwd: FOLDER, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }),
  );
  const [pack] = Array.isArray(told) ? told : Object.values(told as object);
  const files: string[] = pack.files.map((file: { path: string }) => file.path);
  const others = files.filter((path) => !/^dist\/\w+\.(js|d\.ts)$/.test(path)).sort();
  assert.deepEqual(others, ["LICENSE", "README.md", "package.json"]);
  for (const name of ["index", "pocketbase", "react"]) {
    assert.ok(files.includes(`dist/${name}.js`) && files.includes(`dist/${name}.d.ts`));
  }
});
