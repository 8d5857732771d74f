import assert from "node:assert/strict";
import { test } from "node:test";
import { asSuperuser, CuttingProxy, signedIn, topicOf, URL_OF_SERVER, until } from "./support.js";

interface Word {
  attempt: number;
  word: number;
}

const count = (words: number): number[] => Array.from({ length: words }, (_, n) => n);

test("values come in order while the job runs, and end with it", async () => {
  const client = await signedIn();
  const { id } = await client.jobs.enqueue("speak", { words: 20 });
  const heard: number[] = [];
  const output = client.jobs.output<Word>(id, "tokens");
  for await (const { word } of output) heard.push(word);
  assert.deepEqual(heard, count(20));
  assert.equal((await client.jobs.get(id)).status, "completed");
  const again: number[] = [];
  for await (const { word } of client.jobs.output<Word>(id, "tokens")) again.push(word);
  assert.deepEqual(again, heard);
  const rest: number[] = [];
  for await (const { word } of client.jobs.output<Word>(id, "tokens", { after: "15" })) rest.push(word);
  assert.deepEqual(rest, [15, 16, 17, 18, 19]);
  assert.equal(output.lastEventId, "20");
});

test("a new attempt resets what was heard", async () => {
  const client = await signedIn();
  const { id } = await client.jobs.enqueue("speak", { words: 10, fails: 1 });
  let heard: Word[] = [];
  const resets: number[] = [];
  const onReset = (attempt: number) => {
    resets.push(attempt);
    heard = [];
  };
  for await (const word of client.jobs.output<Word>(id, "tokens", { onReset })) heard.push(word);
  assert.deepEqual(resets, [2]);
  assert.deepEqual(
    heard,
    count(10).map((word) => ({ attempt: 2, word })),
  );
});

test("dropped connections lose nothing and double nothing", async () => {
  const proxy = new CuttingProxy(URL_OF_SERVER);
  const client = await signedIn({}, await proxy.listen());
  proxy.cutAfter = () => (proxy.accepted <= 20 ? 500 + Math.floor(Math.random() * 800) : null);
  const { id } = await (await signedIn()).jobs.enqueue("speak", { words: 400 });
  const heard: number[] = [];
  for await (const { word } of client.jobs.output<Word>(id, "tokens")) heard.push(word);
  assert.deepEqual(heard, count(400));
  assert.ok(proxy.accepted > 5);
  proxy.close();
});

test("leaving closes the connection and cancels nothing", async () => {
  const client = await signedIn();
  const { id } = await client.jobs.enqueue("speak", { words: 50 });
  for await (const _ of client.jobs.output(id, "tokens")) break;
  await client.jobs.track(id).result();
  await assert.rejects(client.jobs.output("01890000-0000-7000-8000-000000000000", "tokens").next(), { status: 404 });
});

test("a worker in JavaScript emits too", async () => {
  const client = await asSuperuser();
  const topic = topicOf("emits");
  const worker = client.jobs.work(topic, async (_, { emit }) => {
    for (const word of ["one", "two"]) await emit(word, "tokens");
  });
  const { id } = await client.jobs.enqueue(topic, {});
  await until(async () => (await client.jobs.get(id)).status === "completed");
  const heard: unknown[] = [];
  for await (const word of client.jobs.output(id, "tokens")) heard.push(word);
  assert.deepEqual(heard, ["one", "two"]);
  await worker.stop();
});
