import assert from "node:assert/strict";
import { test } from "node:test";
import { Treadle, TreadleError } from "treadle";
import { asSuperuser, Fetches, json, signedIn, topicOf, URL_OF_SERVER, until } from "./support.js";

const EMPTY = { items: [], page: 1, perPage: 30, totalItems: 0 };

function fake(options = {}): { fetches: Fetches; client: Treadle } {
  const fetches = new Fetches();
  return { fetches, client: new Treadle("http://queue.test", { fetch: fetches.fetch, ...options }) };
}

test("GET is repeated after network errors, 429 and 503, and Retry-After is obeyed", async () => {
  const { fetches, client } = fake();
  const answers = [
    () => Promise.reject(new TypeError("fetch failed")),
    () => json(503, {}),
    () => json(429, {}, { "Retry-After": "1" }),
    () => json(200, EMPTY),
  ];
  const times: number[] = [];
  fetches.answer = () => {
    times.push(Date.now());
    return answers.shift()?.() ?? json(500, {});
  };
  assert.equal((await client.jobs.list()).page, 1);
  assert.equal(fetches.urls.length, 4);
  assert.ok((times[3] ?? 0) - (times[2] ?? 0) >= 1000, "not before the server said");
});

test("a call gives up after its retries, with the last error", async () => {
  const { fetches, client } = fake({ retries: 1 });
  fetches.answer = () => json(503, { code: "store_unavailable", message: "away", data: {} });
  await assert.rejects(client.jobs.list(), { status: 503, code: "store_unavailable" });
  assert.equal(fetches.urls.length, 2);
  await assert.rejects(client.jobs.list({}, { retries: 0 }), { status: 503 });
  assert.equal(fetches.urls.length, 3);
});

test("a longer wait than the call has is an error now", async () => {
  const { fetches, client } = fake({ timeoutMs: 5000 });
  fetches.answer = () => json(429, { code: "busy", message: "wait" }, { "Retry-After": "60" });
  await assert.rejects(client.jobs.list(), { status: 429, retryAfterMs: 60_000 });
  assert.equal(fetches.urls.length, 1);
});

test("other errors are not repeated", async () => {
  const { fetches, client } = fake();
  fetches.answer = () => json(500, {});
  await assert.rejects(client.jobs.list(), { status: 500 });
  assert.equal(fetches.urls.length, 1);
});

test("every enqueue has a key, and is repeated with the same one", async () => {
  const { fetches, client } = fake();
  let calls = 0;
  fetches.answer = () => (++calls < 3 ? json(503, {}) : json(200, { id: "1" }));
  await client.jobs.enqueue("mail", {});
  const [first, second, third] = fetches.bodies().map((body) => body.idempotencyKey);
  assert.equal(typeof first, "string");
  assert.deepEqual([second, third], [first, first]);
  await client.jobs.enqueue("mail", {});
  assert.notEqual(fetches.bodies().at(-1)?.idempotencyKey, first);
  await client.jobs.enqueue("mail", {}, { idempotencyKey: "mine" });
  assert.equal(fetches.bodies().at(-1)?.idempotencyKey, "mine");
});

test("a POST without a key is never repeated", async () => {
  const { fetches, client } = fake();
  fetches.answer = () => json(503, {});
  await assert.rejects(client.jobs.requeue("1"), { status: 503 });
  await assert.rejects(client.send("/api/jobs/enqueue", { method: "POST", body: { topic: "mail" } }), { status: 503 });
  assert.equal(fetches.urls.length, 2);
});

test("an answer that was lost makes no second job", async () => {
  const fetches = new Fetches();
  const client = await signedIn({ fetch: fetches.fetch });
  const topic = topicOf("lost");
  let lost = 0;
  fetches.answer = async (url, init) => {
    if (!url.includes("enqueue") || lost++ > 0) return null;
    await fetch(url, init);
    throw new TypeError("terminated");
  };
  const job = await client.jobs.enqueue(topic, { n: 1 });
  assert.equal(job.deduplicated, true);
  assert.equal((await client.jobs.list({ topic })).totalItems, 1);
  lost = 0;
  const jobs = await client.jobs.enqueueMany([{ topic }, { topic }]);
  assert.equal(jobs.length, 2);
  assert.equal((await client.jobs.list({ topic })).totalItems, 3);
});

test("a call is aborted by its signal, at once and with its own kind of error", async () => {
  const { fetches, client } = fake();
  fetches.answer = (_, init) =>
    new Promise((_, reject) => init.signal?.addEventListener("abort", () => reject(init.signal?.reason)));
  const abort = new AbortController();
  const call = client.jobs.list({}, { signal: abort.signal });
  await until(() => fetches.urls.length === 1);
  abort.abort();
  await assert.rejects(call, { isAbort: true, code: "aborted", status: 0 });
  await assert.rejects(client.jobs.get("1", { signal: AbortSignal.abort() }), { isAbort: true });
  assert.equal(fetches.urls.length, 1);
});

test("a signal also ends the pause before a retry", async () => {
  const { fetches, client } = fake({ timeoutMs: 0 });
  fetches.answer = () => json(503, {}, { "Retry-After": "3600" });
  const abort = new AbortController();
  const call = client.jobs.list({}, { signal: abort.signal });
  await until(() => fetches.urls.length === 1);
  abort.abort();
  await assert.rejects(call, { isAbort: true });
});

test("a call that takes too long is no abort", async () => {
  const { fetches, client } = fake({ timeoutMs: 30 });
  fetches.answer = (_, init) =>
    new Promise((_, reject) => init.signal?.addEventListener("abort", () => reject(init.signal?.reason)));
  await assert.rejects(client.jobs.list(), { code: "timeout", isAbort: false, status: 0 });
});

test("React Native's way to say that a call was aborted", async () => {
  const { fetches, client } = fake();
  fetches.answer = () => Promise.reject(new Error("Aborted"));
  await assert.rejects(client.jobs.list(), { isAbort: true });
  assert.equal(fetches.urls.length, 1);
});

test("a proxy's page is a typed error", async () => {
  const { fetches, client } = fake({ retries: 0 });
  for (const status of [200, 502]) {
    fetches.answer = () =>
      new Response("<html>Bad gateway</html>", { status, headers: { "Content-Type": "text/html" } });
    const error = await client.jobs.list().catch((error) => error);
    assert.ok(error instanceof TreadleError);
    assert.deepEqual([error.status, error.code], [status, "not_json"]);
    assert.ok(!error.message.includes("<"));
  }
});

test("a server that can't be reached", async () => {
  const client = new Treadle("http://127.0.0.1:9", { retries: 0 });
  await assert.rejects(client.jobs.list(), { code: "network_error", status: 0, isAbort: false });
});

test("an address with a path, and headers of one's own", async () => {
  const { fetches } = fake();
  const client = new Treadle("http://queue.test/queue/", { fetch: fetches.fetch });
  fetches.answer = () => json(200, EMPTY);
  await client.jobs.list({ topic: "a" }, { headers: { "X-Tenant": "t1" } });
  assert.equal(fetches.urls[0], "http://queue.test/queue/api/jobs?topic=a");
  assert.equal(fetches.header(0, "X-Tenant"), "t1");
});

test("tokens of claims and places in streams come as text", async () => {
  const topic = topicOf("token");
  const client = await asSuperuser();
  await client.jobs.enqueue(topic, {});
  const body = { workerId: "w", topics: [topic] };
  const claimed = await client.send<{ items: { token: unknown }[] }>("/api/workers/claim", { method: "POST", body });
  assert.equal(typeof claimed.items[0]?.token, "string");
  const stream = client.jobs.stream({ snapshot: true });
  const { value } = await stream.next();
  stream.close();
  assert.match(String(value?.id), /^\d+$/);
  assert.equal(typeof value?.id, "string");
});

test("without a window the default is a server on this machine", async () => {
  const fetches = new Fetches();
  fetches.answer = () => json(200, EMPTY);
  await new Treadle(undefined, { fetch: fetches.fetch }).jobs.list();
  assert.equal(fetches.urls[0], "http://127.0.0.1:8090/api/jobs");
  assert.match(URL_OF_SERVER, /^http/);
});
